"""Tells a user who does something else that a long answer is ready: a bell or a notification."""

import os
import sys
from typing import Literal

from .output import Output, strip_control

Kind = Literal["auto", "bell", "osc9", "off"]
LONG_SECONDS = 20.0  # of an answer; after a shorter one the user is still here
# The terminals, by TERM_PROGRAM, that show OSC 9 as a notification of the system. tmux has a name
# of its own there, and passes only the bell on.
WITH_NOTIFICATIONS = ("iTerm.app", "WezTerm", "ghostty")


def notify(out: Output, kind: Kind, seconds: float, text: str) -> None:
    """Notify of an answer that took so long; nothing for a short one, and without a terminal."""
    if kind == "off" or seconds < LONG_SECONDS or out.quiet or not out.stderr_is_tty:
        return
    if kind == "auto":
        kind = "osc9" if os.environ.get("TERM_PROGRAM") in WITH_NOTIFICATIONS else "bell"
    if kind == "osc9" and out.styled:
        sys.stderr.write(f"\x1b]9;{' '.join(strip_control(text).split())}\a")
    else:
        sys.stderr.write("\a")
    sys.stderr.flush()
