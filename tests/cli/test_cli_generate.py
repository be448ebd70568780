"""`dflash generate` through pipes: whole transcripts, and what each flag does."""

import json
import re
import shutil

import pytest
import tiny
from golden_pair import CHAT, EXPECTED, GOLDEN, PAIR, RAW, said
from typer.testing import CliRunner


def test_pipe_gets_the_answer_and_nothing_else(dflash):
    result = dflash(*RAW, "--max-tokens", "96")
    cut = "the answer was cut by --max-tokens, after 96 tokens\n"
    assert (result.exit_code, result.stderr) == (0, cut)
    assert result.stdout == said(0) + "\n"
    assert dflash(*RAW, "--max-tokens", "96", "--quiet").stderr == ""


def test_chat_template_is_applied(dflash):
    result = dflash(CHAT, "--max-tokens", "96")
    assert result.stdout == said(1) + "\n"


def test_stats_can_be_forced(dflash):
    result = dflash(*RAW, "--max-tokens", "96", "--stats")
    assert result.stdout == said(0) + "\n"
    tau = f"{EXPECTED['tau'][0]:.2f}"
    line = re.sub(r"[\d.,]+(?= tok/s)|[\d.]+(?= s\b)", "N", result.stderr)
    assert line.startswith(f"  96 tokens · N tok/s · τ {tau} · accept ")
    assert line.endswith("% · N s · cut by --max-tokens\n")


def test_json_object(ask):
    found = ask(*RAW, "--max-tokens", "96")
    assert found["text"] == said(0)
    assert found["tokens"] == EXPECTED["greedy_tokens"][0]
    assert found["finish_reason"] == "length"
    assert (found["reasoning"], found["model"], found["draft"]) == ("", PAIR[1], PAIR[3])
    assert found["usage"] == {"prompt": len(RAW[1]), "cached": 0, "generated": 96}
    assert found["seed"] is None
    rounds = EXPECTED["acceptance_lengths"][0]
    speculation = found["speculation"]
    assert speculation["block_size"] == 8
    assert speculation["verifies"] == len(rounds)
    assert speculation["mean_acceptance_length"] == pytest.approx(EXPECTED["tau"][0], abs=1e-3)
    assert speculation["accepted"] == sum(speculation["accepted_by_position"])
    assert set(found["timing"]) == {"load_s", "prefill_s", "first_token_s", "decode_s", "tok_s"}
    assert set(found["versions"]) == {"dflash", "mlx", "mlx_lm"}
    assert found["peak_memory_gb"] > 0


def test_json_lines(dflash, ask):
    result = dflash("--jsonl", *RAW, "--max-tokens", "96")
    *blocks, last = map(json.loads, result.stdout.splitlines())
    assert {block["type"] for block in blocks} == {"block"}
    assert "".join(block["text"] for block in blocks) == last["text"] == said(0)
    assert [token for block in blocks for token in block["tokens"]] == last["tokens"]
    assert sum(block["accepted"] for block in blocks) == last["speculation"]["accepted"]
    assert last.pop("type") == "answer"
    assert set(last) == set(ask(*RAW, "--max-tokens", "4"))
    assert dflash("--jsonl", "--json", "x").exit_code == 2


def test_json_has_the_settings(ask):
    """All that the answer depends on beside the models."""
    given = ("--temp", "0.5", "--top-k", "4", "--stop", "a", "--stop", "b", "--accept", "token")
    assert ask(*RAW, *given, "--max-tokens", "4")["sampling"] == {
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 4,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "accept": "token",
        "max_tokens": 4,
        "stop": ["a", "b"],
    }
    assert ask(*RAW, "--temp", "0.5", "--max-tokens", "4")["sampling"]["accept"] == "match"


def test_json_has_the_seed(ask):
    """With it the answer can be had again. Without one there is none, and answers differ."""
    drawn = [*RAW, "--temp", "1", "--max-tokens", "30"]
    first, second = (ask(*drawn, "--seed", "7") for _ in range(2))
    assert (first["seed"], first["tokens"]) == (7, second["tokens"])
    first, second = ask(*drawn), ask(*drawn)
    assert (first["seed"], second["seed"]) == (None, None)
    assert first["tokens"] != second["tokens"]


PARTS = [
    (["ab"], None, None, "ab"),
    (["-"], "cd\n", None, "cd"),
    ([], "cd", None, "cd"),
    (["ab"], "cd\n", None, "ab\n\ncd"),
    (["ab"], "", None, "ab"),
    (["ab"], "\n", None, "ab"),
    ([], None, "ef\n", "ef"),
    (["ab"], "cd", "ef\n\n", "ab\n\nef\n\n\ncd"),
]


@pytest.mark.parametrize(("arguments", "stdin", "file", "prompt"), PARTS)
def test_parts_of_the_prompt(ask, tmp_path, arguments, stdin, file, prompt):
    """One token a character: the prompt's length tells what was sent."""
    if file is not None:
        (tmp_path / "prompt.txt").write_text(file)
        arguments = [*arguments, "-f", str(tmp_path / "prompt.txt")]
    found = ask(*arguments, "--raw", "--max-tokens", "1", input=stdin)
    assert found["usage"]["prompt"] == len(prompt)


def test_stdin_that_is_not_text(dflash):
    result = dflash("-", input=b"\xff\xfe\x00")
    assert result.exit_code == 2
    assert "standard input is not UTF-8 text." in result.stderr


CHANGES = [
    ["--temp", "1.5", "--seed", "1"],
    ["--repetition-penalty", "9"],
    ["--presence-penalty", "9"],
    ["--frequency-penalty", "9"],
    ["--max-tokens", "7"],
    ["--stop", said(0)[5:8]],
]
SAME = [
    ["--temp", "1", "--top-k", "1"],
    ["--temp", "1", "--top-p", "1e-9"],
    ["--temp", "1", "--min-p", "1"],
    ["--block-size", "3"],
    ["--draft-bits", "4"],
    ["--accept", "block"],
]


@pytest.mark.parametrize("flags", CHANGES)
def test_flag_changes_the_answer(ask, flags):
    assert ask("--max-tokens", "30", *RAW, *flags)["text"] != said(0)[:30]


@pytest.mark.parametrize("flags", SAME)
def test_flag_leaves_the_greedy_answer(ask, flags):
    assert ask("--max-tokens", "30", *RAW, *flags)["text"] == said(0)[:30]


def test_flags_of_the_drafter(ask):
    """These change the way to the answer, not the answer."""
    plain = ask("--max-tokens", "60", *RAW)["speculation"]
    assert ask("--max-tokens", "60", *RAW, "--block-size", "3")["speculation"]["block_size"] == 3
    assert ask("--max-tokens", "60", *RAW, "--draft-bits", "4")["speculation"] != plain
    drawn = ["--temp", "1", "--seed", "2", "--max-tokens", "60", *RAW]
    rules = [ask(*drawn, "--accept", rule)["text"] for rule in ("match", "token", "block")]
    assert len(set(rules)) > 1


def test_stop_text_is_not_shown(ask):
    found = ask("--max-tokens", "90", *RAW, "--stop", said(0)[20:23], "--stop", "never")
    assert found["text"] == said(0)[: said(0).index(said(0)[20:23])]
    assert found["finish_reason"] == "stop"


def test_system_prompt(ask):
    plain = ask(CHAT, "--max-tokens", "1")["usage"]["prompt"]
    with_system = ask(CHAT, "--max-tokens", "1", "-s", "amber")["usage"]["prompt"]
    assert with_system == plain + len("system\namber\n") + 2


@pytest.fixture
def thinker(tmp_path):
    """The golden target with a template that opens a thinking part when asked to."""
    folder = tmp_path / "target"
    shutil.copytree(GOLDEN / "target", folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8"))
    config["chat_template"] += "{% if enable_thinking %}<think>\n{% endif %}"
    path.write_text(json.dumps(config), "utf-8")
    return ["-m", str(folder), "-d", PAIR[3]]


def test_thinking(cli_app, thinker):
    def run(*flags):
        arguments = ["generate", *thinker, CHAT, "--max-tokens", "40", *flags]
        return CliRunner().invoke(cli_app, arguments)

    found = json.loads(run("--json", "--think").stdout)
    assert found["reasoning"]
    assert found["text"] == ""
    assert json.loads(run("--json", "--no-think").stdout)["reasoning"] == ""
    assert json.loads(run("--json").stdout)["reasoning"] == ""
    assert run("--think").stdout == ""
    aloud = run("--think", "--show-thinking")
    assert aloud.stdout == ""
    assert aloud.stderr == (
        f"[thinking]\n{found['reasoning']}\n[end of thinking]\n"
        "the model ended in its thinking and gave no answer\n"
        "the answer was cut by --max-tokens, after 40 tokens\n"
    )


def test_an_empty_answer_is_reported(cli_app):
    """A pipe showed nothing at all, with exit code 0."""
    done = CliRunner().invoke(cli_app, ["generate", *PAIR, "hi", "--grammar", 'start: ""'])
    assert (done.exit_code, done.stdout.strip()) == (0, "")
    assert "the answer is empty" in done.stderr


@pytest.mark.parametrize(("flags", "told"), [([], True), (["--json"], True), (["-q"], False)])
def test_a_drafter_of_no_use_is_told(cli_app, monkeypatch, flags, told):
    """Also to scripts, on stderr."""
    target = tiny.make_target("qwen3", vocab_size=272)
    pair = tiny.make_pair(target, tiny.random_drafter(target), "tiny", "random")
    monkeypatch.setattr("dflash_mlx.cli.backend.open.load_pair", lambda *_: (pair, 0.1))
    result = CliRunner().invoke(cli_app, ["generate", *PAIR, "hello", "--max-tokens", "60", *flags])
    assert result.exit_code == 0, result.output
    assert ("almost no draft was accepted" in result.stderr) == told
    assert "low acceptance" not in result.stderr
