"""Ctrl-Z: the program stops with the terminal as the shell wants it, and goes on after `fg`.

Knows signals and terminal flags; what must be erased first is told by its caller.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .line_editor import terminal_flags


@contextmanager
def suspendable(erase: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-Z first calls `erase`, which removes what would be redrawn.

    A shell without job control ignores Ctrl-Z as before.
    """
    from termios import ECHO, ICANON

    if signal.getsignal(signal.SIGTSTP) == signal.SIG_IGN:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        erase()
        with terminal_flags(lambda flags: flags | ECHO | ICANON):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # returns after `fg`
            signal.signal(number, stop)

    previous = signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, previous)
