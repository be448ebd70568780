"""`dflash generate` at its ends: Ctrl-C, closed pipes, terminals good and poor."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from golden_pair import EXPECTED, PAIR, RAW, said
from terminal import Terminal

from dflash_mlx.engine.stats import Stats
from dflash_mlx.models.target import Target

record = Stats.record


def kill_at(monkeypatch, number, times=1):
    seen = []

    def counting(self, block):
        record(self, block)
        seen.append(block)
        if len(seen) == number:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Stats, "record", counting)


def test_interrupt_keeps_what_was_said(dflash, ask, monkeypatch):
    handler = signal.getsignal(signal.SIGINT)
    kill_at(monkeypatch, 3)
    result = dflash(*RAW, "--max-tokens", "96", "--stats")
    assert result.exit_code == 130
    count = 1 + sum(EXPECTED["acceptance_lengths"][0][:2])
    assert result.stdout == said(0)[:count] + "\n"
    assert result.stderr.startswith(f"  stopped · {count} tokens kept · ")
    assert signal.getsignal(signal.SIGINT) is handler
    kill_at(monkeypatch, 2)
    found = ask(*RAW, "--max-tokens", "96", code=130)
    assert found["finish_reason"] == "interrupted"
    assert said(0).startswith(found["text"])
    kill_at(monkeypatch, 3, times=2)  # leaves at once
    result = dflash(*RAW, "--max-tokens", "96", "--stats")
    assert result.exit_code == 130
    assert "Traceback" not in result.output
    assert "stopped" not in result.stderr


def test_interrupt_while_the_prompt_is_read(dflash, monkeypatch):
    monkeypatch.setattr("dflash_mlx.engine.prompt_chunks.FIRST", 16)
    read, passes = Target.read, []

    def reading(self, parts, **options):
        if options:  # not when the target is loaded
            passes.extend(part.tokens.size for part in parts)
            os.kill(os.getpid(), signal.SIGINT)
        return read(self, parts, **options)

    monkeypatch.setattr(Target, "read", reading)
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


COMMAND = [sys.executable, "-m", "dflash_mlx.cli", "generate", *PAIR]


def test_closed_pipe_is_silent():
    command = [*COMMAND, *RAW, "--max-tokens", "4000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(4) == said(0)[:4].encode()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 141


def on_terminal(*arguments, **env):
    shown = Terminal(COMMAND + list(arguments), {**os.environ, "TERM": "xterm-256color", **env})
    try:
        assert shown.ends() == 0
        return shown.raw.replace("\r\n", "\n")
    finally:
        shown.close()


def test_terminal_shows_answer_and_dim_stats():
    shown = on_terminal(*RAW, "--max-tokens", "30")
    assert said(0)[:30] + "\n" in shown
    assert re.search(
        r"\x1b\[2m  30 tokens · [\d.]+ tok/s · τ [\d.]+ · accept \d+% · [\d.]+ s · cut by "
        r"--max-tokens\x1b\[0m\n",
        shown,
    )


@pytest.mark.quick_every(2)
@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (["--plain"], {}),
        ([], {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TERM": "dumb"}),
    ],
)
def test_poor_terminal_gets_ascii_without_codes(flags, env):
    shown = on_terminal(*RAW, "--max-tokens", "30", *flags, **env)
    assert shown.isascii()
    assert "\x1b" not in shown
    assert " tok/s | tau " in shown


@pytest.mark.slow
def test_no_color_leaves_no_colour():
    """Dim is no colour and may stay."""
    shown = on_terminal(*RAW, "--max-tokens", "30", NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*3\d", shown)


def dflash_in_shell(command, *, redirect=""):
    words = [sys.executable, "-m", "dflash_mlx.cli", *command]
    script = f'"$@" {redirect}'
    return subprocess.run(["sh", "-c", script, "sh", *words], capture_output=True, check=False)


SHORT = ["generate", *PAIR, *RAW, "--max-tokens", "5"]


@pytest.mark.quick_every(4)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
@pytest.mark.parametrize("command", [SHORT, ["--help"]])
@pytest.mark.parametrize("redirect", [">&-", ">/dev/full"])
def test_stdout_that_takes_nothing(command, redirect):
    """A closed stdout gave two tracebacks, and a full disk an "unexpected OSError"."""
    done = dflash_in_shell(command, redirect=redirect)
    assert done.returncode == 1
    error, hint = done.stderr.decode().splitlines()
    reason = "Bad file descriptor" if redirect == ">&-" else "No space left on device"
    assert error == f"Error: the output cannot be written ({reason})."
    assert hint.startswith("Hint:  ")


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("redirect", ["2>&-", "<&- 2>&-"])
def test_closed_stderr_costs_no_answer(redirect):
    """A closed stderr left the answer out, and gave exit code 1."""
    done = dflash_in_shell(SHORT, redirect=redirect)
    assert (done.returncode, done.stdout.decode()) == (0, said(0)[:5] + "\n")
    assert dflash_in_shell(["generate", ""], redirect=redirect).returncode == 2


ENTRY = "from dflash_mlx.cli.__main__ import main\nmain()\n"  # as installers write it


def test_no_library_warns_in_the_log_of_a_server():
    """Guards transformers' warning about each prompt that is too long."""
    script = (
        "import sys; from importlib import import_module\n"
        "try: import_module('dflash_mlx.cli.app').app(['serve', '--host', '0.0.0.0'])\n"
        "except SystemExit: from transformers import logging; print(logging.get_verbosity())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "every machine of the network" in done.stderr
    assert done.stdout == "40\n"  # errors only


def interrupted(tmp_path, *command, module="", file="dflash", text=ENTRY):
    """Run Python with a file that an installer wrote; the module named sends Ctrl-C if imported."""
    (tmp_path / file).write_text(text)
    if module:
        (tmp_path / f"{module}.py").write_text("import os\nos.kill(os.getpid(), 2)\nimport nothing")
    return subprocess.run(
        [sys.executable, *(command or [tmp_path / file]), "generate"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )


@pytest.mark.parametrize("module", ["ctypes", "typer"])  # the first and one of the last
@pytest.mark.parametrize("command", [(), ("-m", "dflash_mlx"), ("-m", "dflash_mlx.cli")])
def test_ctrl_c_while_the_program_is_imported(tmp_path, command, module):
    """Ctrl-C in the first moments gave a traceback of imports."""
    done = interrupted(tmp_path, *command, module=module)
    assert (done.returncode, done.stderr) == (130, b"")
    project = Path(__file__).parents[2] / "pyproject.toml"
    start = tomllib.loads(project.read_text())["project"]["scripts"]["dflash"]
    assert start == "dflash_mlx.cli.__main__:main"


def test_ctrl_c_while_the_program_ends(tmp_path):
    """The interpreter's end printed an exception that nobody could catch."""
    at_exit = "import atexit, os\natexit.register(os.kill, os.getpid(), 2)\n"
    done = interrupted(tmp_path, text=at_exit + ENTRY)
    assert (done.returncode, done.stderr.count(b"\n")) == (130, 2)  # that a prompt is missing


def test_ctrl_c_stays_that_of_another_program(tmp_path):
    """Who imports the package handles Ctrl-C as before."""
    text = "try:\n    import dflash_mlx, typer\nexcept KeyboardInterrupt:\n    print('mine')\n"
    done = interrupted(tmp_path, module="typer", file="mine.py", text=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"mine\n", b"")
