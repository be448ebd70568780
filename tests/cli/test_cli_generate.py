"""`dflash generate` through pipes: whole transcripts, and what each flag does."""

import json
import re
from dataclasses import asdict

import pytest
import tiny
from golden_pair import CHAT, EXPECTED, PAIR, RAW, said
from typer.testing import CliRunner

from dflash_mlx.options import SamplingParams


def test_pipe_gets_the_answer_and_nothing_else(dflash):
    result = dflash(*RAW, "--max-tokens", "96")
    cut = "the answer was cut by --max-tokens, after 96 tokens\n"
    assert (result.exit_code, result.stderr) == (0, cut)
    assert result.stdout == said(0) + "\n"
    assert dflash(*RAW, "--max-tokens", "96", "--quiet").stderr == ""
    assert dflash(CHAT, "--max-tokens", "96").stdout == said(1) + "\n"  # in the chat template


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
    changed = {"temperature": 0.5, "top_k": 4}
    plain = asdict(SamplingParams())
    del plain["seed"], plain["logit_bias"]
    limits = {"accept": "token", "max_tokens": 4, "stop": ["a", "b"]}
    assert ask(*RAW, *given, "--max-tokens", "4")["sampling"] == plain | changed | limits
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


def test_system_prompt_and_stdin_that_is_not_text(ask, dflash):
    plain = ask(CHAT, "--max-tokens", "1")["usage"]["prompt"]
    with_system = ask(CHAT, "--max-tokens", "1", "-s", "amber")["usage"]["prompt"]
    assert with_system == plain + len("system\namber\n") + 2
    result = dflash("-", input=b"\xff\xfe\x00")
    assert result.exit_code == 2
    assert "standard input is not UTF-8 text." in result.stderr


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        ("--temp 1.5 --seed 1", False),
        *[(f"--{name}-penalty 9", False) for name in ("repetition", "presence", "frequency")],
        ("--max-tokens 7", False),
        (f"--stop {said(0)[5:8]}", False),
        *[(f"--temp 1 {one}", True) for one in ("--top-k 1", "--top-p 1e-9", "--min-p 1")],
        *[(flag, True) for flag in ("--block-size 3", "--draft-bits 4", "--accept block")],
    ],
)
def test_flags_and_the_greedy_answer(ask, flags, same):
    text = ask("--max-tokens", "30", *RAW, *flags.split(" ", 3))["text"]
    assert (text == said(0)[:30]) == same


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
