"""A long answer is told by a bell or a notification, unless that is switched off."""

from importlib import import_module
from typing import Any

import pytest

output = import_module("dflash_mlx.cli.terminal.output")

LONG = output.LONG_SECONDS
BELL = "\a"
OSC_9 = "\x1b]9;the sky\a"


@pytest.mark.parametrize(
    ("kind", "wanted", "changes"),
    [
        ("bell", BELL, {}),
        ("osc9", OSC_9, {}),
        ("off", "", {}),
        # A notification only where it is known to be shown; others could print it as text.
        *[("auto", OSC_9, {"program": name}) for name in ("iTerm.app", "WezTerm", "ghostty")],
        *[("auto", BELL, {"program": name}) for name in ("Apple_Terminal", "tmux", "")],
        ("bell", "", {"seconds": LONG - 0.1}),
        ("bell", "", {"quiet": True}),
        ("osc9", "", {"stderr_is_tty": False}),
        ("osc9", BELL, {"styled": False}),
        # A prompt cannot end the notification and go on as control characters.
        ("osc9", "\x1b]9;a]52;c;x b\a", {"text": "a\a\x1b]52;c;x\a\nb"}),
    ],
)
def test_what_is_told(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    wanted: str,
    changes: dict[str, Any],
) -> None:
    monkeypatch.setenv("TERM_PROGRAM", changes.pop("program", ""))
    seconds, text = changes.pop("seconds", LONG), changes.pop("text", "the sky")
    out = output.Output()
    for name, value in {"stderr_is_tty": True, "styled": True, **changes}.items():
        setattr(out, name, value)
    output.notify(out, kind, seconds, text)
    assert capsys.readouterr().err == wanted
