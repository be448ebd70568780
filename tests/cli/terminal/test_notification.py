"""A long answer is told by a bell or a notification, unless that is switched off."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from typer.testing import Result

output = import_module("dflash_mlx.cli.terminal.output")

LONG = output.LONG_SECONDS
BELL = "\a"
OSC_9 = "\x1b]9;the sky\a"


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.delenv("TERM_PROGRAM", raising=False)

    def tell(kind: str, seconds: float = LONG, text: str = "the sky", **changes: Any) -> str:
        out = output.Output()
        out.stderr_is_tty = True
        out.styled = True
        for name, value in changes.items():
            setattr(out, name, value)
        output.notify(out, kind, seconds, text)
        return capsys.readouterr().err

    return tell


@pytest.mark.parametrize(("kind", "wanted"), [("bell", BELL), ("osc9", OSC_9), ("off", "")])
def test_as_chosen(told: Callable[..., str], kind: str, wanted: str) -> None:
    assert told(kind) == wanted


@pytest.mark.parametrize(
    ("program", "wanted"),
    [("iTerm.app", OSC_9), ("WezTerm", OSC_9), ("ghostty", OSC_9), ("Apple_Terminal", BELL),
     ("tmux", BELL), (None, BELL)],
)  # fmt: skip
def test_by_the_terminal(
    told: Callable[..., str], monkeypatch: pytest.MonkeyPatch, program: str | None, wanted: str
) -> None:
    """A notification only where it is known to be shown; others could print it as text."""
    if program:
        monkeypatch.setenv("TERM_PROGRAM", program)
    assert told("auto") == wanted


def test_nothing_without_need(told: Callable[..., str]) -> None:
    assert told("bell", LONG - 0.1) == ""
    assert told("bell", quiet=True) == ""
    assert told("osc9", stderr_is_tty=False) == ""


def test_a_plain_terminal_gets_no_escape_codes(told: Callable[..., str]) -> None:
    assert told("osc9", styled=False) == BELL


def test_a_prompt_cannot_end_the_notification(told: Callable[..., str]) -> None:
    """Guards the terminal from control characters in the text."""
    assert told("osc9", text="a\a\x1b]52;c;x\a\nb") == "\x1b]9;a]52;c;x b\a"


def test_the_config_file_switches_it_off(
    run: Callable[..., Result], config: Callable[[str], int]
) -> None:
    """Under the name of the flag; a wrong value is refused with the right ones."""
    config('notify = "loud"\n')
    refused = run("chat", "--demo", "hi")
    assert refused.exit_code != 0
    assert "notify" in refused.output
    assert "osc9" in refused.output
