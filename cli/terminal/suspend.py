"""Ctrl-Z: the program stops with the terminal as the shell wants it, and goes on after `fg`.

Knows signals and terminal flags; what must be erased first is told by its caller.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def suspendable(erase: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-Z first calls `erase`, which removes what would be redrawn.

    A shell without job control ignores Ctrl-Z as before.
    """
    if signal.getsignal(signal.SIGTSTP) == signal.SIG_IGN:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        erase()
        with default_terminal():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # returns after `fg`
            signal.signal(number, stop)

    previous = signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, previous)


@contextmanager
def default_terminal() -> Iterator[None]:
    """Echo and line input inside; before and after, the flags that are set now."""
    import termios

    try:
        flags = termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):  # not a terminal
        yield
        return
    shown = [*flags]
    shown[3] |= termios.ECHO | termios.ICANON
    with suppress(termios.error):
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, shown)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, flags)
