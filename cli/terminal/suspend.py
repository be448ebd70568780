"""Ctrl-Z: the program stops with the terminal as the shell wants it, and goes on after `fg`.

Knows signals and terminal flags; what must be erased first is told by its caller.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .tty_modes import seen_lines


@contextmanager
def suspendable(before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-Z first calls `before`, which removes what would be redrawn; `fg` calls `after`.

    A shell without job control ignores Ctrl-Z as before.
    """
    if signal.getsignal(signal.SIGTSTP) == signal.SIG_IGN:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        before()
        with seen_lines():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # returns after `fg`
            signal.signal(number, stop)
        after()

    previous = signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, previous)
