"""`dflash generate` from outside: whole transcripts, exit codes, and what each flag does."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

GOLDEN = Path(__file__).parent / "golden" / "qwen3_full"
PAIR = ["-m", str(GOLDEN / "target"), "-d", str(GOLDEN / "draft")]
EXPECTED = json.loads((GOLDEN / "expected.json").read_text("utf-8"))
SPECIAL = {97: "<|im_start|>", 99: "<|mask|>", 100: "<think>", 101: "</think>"}
RAW = ["--raw", EXPECTED["prompt_texts"][0]]
CHAT = EXPECTED["prompt_messages"][1][0]["content"]


def text_of(tokens):
    """The golden vocabulary: newline, then ASCII from the space on."""
    known = {0: "\n", **{i: chr(31 + i) for i in range(1, 96)}, **SPECIAL}
    return "".join(known.get(token, f"<|reserved_{token - 102}|>") for token in tokens)


def said(case):
    """The reference's answer to a prompt."""
    return text_of(token for token in EXPECTED["greedy_tokens"][case] if token != 98)


@pytest.fixture
def dflash(cli_app):
    """Run `dflash generate` with the golden pair in this process, through pipes."""
    return lambda *args, **kwargs: CliRunner().invoke(cli_app, ["generate", *PAIR, *args], **kwargs)


@pytest.fixture
def ask(dflash):
    """The same with `--json`; gives the object."""

    def run(*args, code=0, **kwargs):
        result = dflash("--json", *args, **kwargs)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return run


def test_pipe_gets_the_answer_and_nothing_else(dflash):
    result = dflash(*RAW, "--max-tokens", "96")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == said(0) + "\n"


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
    rounds = EXPECTED["acceptance_lengths"][0]
    speculation = found["speculation"]
    assert speculation["block_size"] == 8
    assert speculation["verifies"] == len(rounds)
    assert speculation["mean_acceptance_length"] == pytest.approx(EXPECTED["tau"][0], abs=1e-3)
    assert speculation["accepted"] == sum(speculation["accepted_by_position"])
    assert set(found["timing"]) == {"load_s", "prefill_s", "first_token_s", "decode_s", "tok_s"}
    assert set(found["versions"]) == {"dflash", "mlx", "mlx_lm"}
    assert found["peak_memory_gb"] > 0


def test_json_without_a_drafter(cli_app):
    result = CliRunner().invoke(
        cli_app,
        ["generate", *PAIR[:2], "--no-draft", "--json", *RAW, "--max-tokens", "20"],
    )
    found = json.loads(result.stdout)
    assert (found["draft"], found["speculation"]) == (None, None)
    assert found["text"] == said(0)[:20]


def test_compare_transcript(dflash):
    result = dflash(*RAW, "--max-tokens", "96", "--compare")
    assert result.exit_code == 0
    assert result.stdout == said(0) + "\n"
    lines = re.sub(r"[\d,]+\.\d(?=\s)|[\d.]+×", "N", result.stderr).splitlines()
    assert [re.sub(r"\s+", " ", line).strip() for line in lines] == [
        "plain dflash",
        "tok/s N N N",
        "tokens 96 96",
        f"τ 1.00 {EXPECTED['tau'][0]:.2f}",
        re.sub(r"\s+", " ", lines[4]).strip(),
        "output identical",
        "run 1 warm-up · 1 run each · greedy · block 8",
    ]
    assert re.fullmatch(r"  accept +– +[\d.]+%", lines[4])
    assert len({len(line.rstrip()) for line in result.stderr.splitlines()[2:5]}) == 1


def test_compare_as_json(ask):
    found = ask(*RAW, "--max-tokens", "30", "--compare")
    assert found["baseline"]["text"] == found["text"]
    assert found["comparison"]["identical"] is True
    assert found["comparison"]["differs_from_token"] is None
    assert found["comparison"]["speedup"] > 0


def test_compare_with_a_stop_string_is_still_identical(ask):
    """DFlash's last block may go on after the stop string; the text does not."""
    found = ask(*RAW, "--max-tokens", "90", "--compare", "--stop", said(0)[20:23])
    assert found["comparison"]["identical"] is True


def test_samples_are_not_compared(dflash):
    result = dflash(*RAW, "--max-tokens", "9", "--compare", "--temp", "1", "--seed", "3")
    assert "output    not compared: both are samples" in result.stderr
    assert "temperature 1" in result.stderr


def test_difference_is_counted_from_one():
    compare, stats = import_module("dflash_mlx.cli.compare"), import_module("dflash_mlx.stats")
    answer = import_module("dflash_mlx.cli.answer").Answer

    def both(a, b):
        return compare.Comparison(
            answer(stats.Stats(), a, str(a)), answer(stats.Stats(), b, str(b)), False
        )

    assert both([1, 2, 3], [1, 2, 4]).differs_from == 3
    assert both([1, 2, 3], [1, 2]).differs_from == 3
    assert both([1, 2], [1, 2]).differs_from is None
    assert compare.verdict(both([5], [6])) == "differs from token 1"
    assert both([1], [1]).speedup is None


def test_bundled_pair_is_named(cli_app, monkeypatch):
    """With --compare also where nobody watches, so that nobody takes it for a large model."""
    monkeypatch.setattr("dflash_mlx.hub.bundled", lambda part: GOLDEN / part)
    result = CliRunner().invoke(cli_app, ["generate", *RAW, "--max-tokens", "9", "--compare"])
    assert result.stderr.startswith("no --model given: the bundled pair answers")
    quiet = CliRunner().invoke(cli_app, ["generate", *RAW, "--max-tokens", "9"])
    assert quiet.stderr == ""


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


def test_seed(ask):
    flags = ["--temp", "2", "--max-tokens", "30", *RAW]
    first, again, other = (ask(*flags, "--seed", seed)["text"] for seed in ("1", "1", "2"))
    assert first == again != other


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
    assert run("--think").output == ""
    aloud = run("--think", "--show-thinking")
    assert aloud.stdout == ""
    assert aloud.stderr == found["reasoning"] + "\n\n"


def kill_at(monkeypatch, number, times=1):
    """Ctrl-C while the given block is counted."""
    stats, seen = import_module("dflash_mlx.stats").Stats, []
    record = stats.record

    def counting(self, block):
        record(self, block)
        seen.append(block)
        if len(seen) == number:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(stats, "record", counting)


def test_interrupt_keeps_what_was_said(dflash, monkeypatch):
    handler = signal.getsignal(signal.SIGINT)
    kill_at(monkeypatch, 3)
    result = dflash(*RAW, "--max-tokens", "96", "--stats")
    assert result.exit_code == 130
    count = 1 + sum(EXPECTED["acceptance_lengths"][0][:2])
    assert result.stdout == said(0)[:count] + "\n"
    assert result.stderr.startswith(f"  stopped · {count} tokens kept · ")
    assert signal.getsignal(signal.SIGINT) is handler


def test_interrupt_as_json(ask, monkeypatch):
    kill_at(monkeypatch, 2)
    found = ask(*RAW, "--max-tokens", "96", code=130)
    assert found["finish_reason"] == "interrupted"
    assert said(0).startswith(found["text"])


def test_second_interrupt_leaves_at_once(dflash, monkeypatch):
    kill_at(monkeypatch, 3, times=2)
    result = dflash(*RAW, "--max-tokens", "96", "--stats")
    assert result.exit_code == 130
    assert "Traceback" not in result.output
    assert "stopped" not in result.stderr


def test_interrupt_while_the_prompt_is_read(dflash, monkeypatch):
    context = import_module("dflash_mlx.context").Context
    read, passes = context._pass, []

    def reading(self, tokens):
        passes.append(len(tokens))
        os.kill(os.getpid(), signal.SIGINT)
        return read(self, tokens)

    monkeypatch.setattr(context, "_pass", reading)
    monkeypatch.setattr(context.read, "__defaults__", (16,))  # tokens a chunk
    result = dflash("--raw", "x" * 40, "--stats")
    assert result.exit_code == 130
    assert (result.stdout, result.stderr) == ("", "  stopped while the prompt was read\n")
    assert passes == [16]


def test_interrupt_of_the_plain_half(ask, monkeypatch):
    """The DFlash answer is whole and stays; there is nothing to compare."""
    kill_at(monkeypatch, 24 + 16 + 10)
    found = ask(*RAW, "--max-tokens", "40", "--compare", code=130)
    assert found["text"] == said(0)[:40]
    assert "comparison" not in found


def start(*arguments, **options):
    """`dflash generate` with the golden pair in a process of its own."""
    program = "from importlib import import_module; import_module('dflash_mlx.cli.app').main()"
    return subprocess.Popen(
        [sys.executable, "-c", program, "generate", *PAIR, *arguments], **options
    )


def test_closed_pipe_is_silent():
    process = start(*RAW, "--max-tokens", "4000", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(4) == said(0)[:4].encode()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 141


def read_all(fd):
    """What a terminal got."""
    got = b""
    while True:
        try:
            part = os.read(fd, 4096)
        except OSError:
            return got.decode()
        if not part:
            return got.decode()
        got += part


def on_terminal(*arguments, pipe=False, **env):
    """Run on a terminal of 80 columns: what it showed, and what a pipe on stdout got."""
    termios = pytest.importorskip("termios")
    lead, follow = os.openpty()
    termios.tcsetwinsize(follow, (24, 80))
    process = start(
        *arguments,
        stdin=follow,
        stdout=subprocess.PIPE if pipe else follow,
        stderr=follow,
        env={**os.environ, "TERM": "xterm-256color", **env},
    )
    os.close(follow)
    piped = process.stdout.read() if process.stdout else b""
    shown = read_all(lead)
    assert process.wait(60) == 0
    os.close(lead)
    return shown.replace("\r\n", "\n"), piped


def test_terminal_shows_answer_and_dim_stats():
    shown, _ = on_terminal(*RAW, "--max-tokens", "30")
    assert said(0)[:30] + "\n" in shown
    assert re.search(
        r"\x1b\[2m  30 tokens · [\d.]+ tok/s · τ [\d.]+ · accept \d+% · [\d.]+ s · cut by "
        r"--max-tokens\x1b\[0m\n",
        shown,
    )


def test_pipe_stays_clean_beside_a_terminal():
    shown, piped = on_terminal(*RAW, "--max-tokens", "30", pipe=True)
    assert piped.decode() == said(0)[:30] + "\n"
    assert "30 tokens" in shown


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (["--plain"], {}),
        ([], {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TERM": "dumb"}),
    ],
)
def test_poor_terminal_gets_ascii_without_codes(flags, env):
    shown, _ = on_terminal(*RAW, "--max-tokens", "30", *flags, **env)
    assert shown.isascii()
    assert "\x1b" not in shown
    assert " tok/s | tau " in shown


def test_no_color_leaves_no_colour():
    """Dim is no colour and may stay."""
    shown, _ = on_terminal(*RAW, "--max-tokens", "30", NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*3\d", shown)
