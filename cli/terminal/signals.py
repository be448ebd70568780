"""Ctrl-C, Ctrl-Z and the modes of the terminal."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any

# Ctrl-C

LEAVE_WINDOW = 2.0  # seconds; a second Ctrl-C within this time leaves a chat
LEAVE_HINT = f"Ctrl-C again within {LEAVE_WINDOW:g} seconds to leave"


class LeaveChat(Exception):
    """Raised to leave a chat; `code` is the exit code."""

    def __init__(self, code: int = 0):
        super().__init__()
        self.code = code


class Interrupt:
    """Catches SIGINT inside its context. requested, requested_twice: whether Ctrl-C was typed.

    A second Ctrl-C counts only within `window` seconds of the one before. With `terminate` SIGTERM
    counts like Ctrl-C. A signal that was ignored before stays ignored. While `deferred`, a second
    Ctrl-C only sets `requested_twice`; saving can then finish. last_at: time.monotonic of the last
    signal. exit_code: 128 + the number of the last signal; 0 without a signal.
    """

    def __init__(self, window: float = float("inf"), *, terminate: bool = False) -> None:
        self.requested = False
        self.requested_twice = False
        self.last_at = float("-inf")
        self._window = window
        self.deferred = False
        self._signals = (signal.SIGINT, signal.SIGTERM) if terminate else (signal.SIGINT,)
        self._previous_handlers: dict[int, Any] = {}
        self.exit_code = 0

    def __enter__(self) -> "Interrupt":
        for number in self._signals:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as SIGINT in a background job
                self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def check(self) -> None:
        if self.requested:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        previous = self.last_at
        self.last_at = time.monotonic()
        if self.requested and self.last_at - previous <= self._window:
            self.requested_twice = True
            if not self.deferred:
                raise KeyboardInterrupt
        self.requested = True


# The terminal on standard input


@contextmanager
def cbreak_mode() -> Iterator[None]:
    """Each key can be read at once and is not echoed; Enter is \\r and Ctrl-J is \\n.

    SIGTERM and a closed window (SIGHUP, unless ignored) end the program after the terminal is
    restored.
    """
    import termios

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    try:
        original = termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):  # not a terminal
        original = None
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    previous = {number: signal.signal(number, leave) for number in numbers}
    try:
        if original is not None:
            changed = [*original]
            changed[0] &= ~termios.ICRNL
            changed[3] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)
        yield
    finally:
        if original is not None:
            with suppress(termios.error):  # the terminal was closed
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, original)
        for number, handler in previous.items():
            signal.signal(number, handler)


def cooked_mode() -> AbstractContextManager[None]:
    """The terminal reads lines and echoes keys, as a shell and editors such as ed expect."""
    from prompt_toolkit.input import vt100

    return vt100.cooked_mode(0)


def terminal_as_stdin() -> bool:
    """Make the terminal on stdout standard input, too; False if stdout is no terminal."""
    try:
        # Not /dev/tty: macOS cannot wait for keys there.
        terminal = os.open(os.ttyname(sys.stdout.fileno()), os.O_RDWR | os.O_NOCTTY)
    except (OSError, ValueError):
        return False
    os.dup2(terminal, 0)
    os.close(terminal)
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="replace", closefd=False)
    return True


# Ctrl-Z


@contextmanager
def suspendable(before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Inside the context Ctrl-Z calls `before`, to erase moving lines, and `fg` calls `after`.

    Under a shell without job control Ctrl-Z stays ignored.
    """
    if signal.getsignal(signal.SIGTSTP) == signal.SIG_IGN:
        yield
        return
    # Here, because the handler may run in the middle of this import.
    from prompt_toolkit.input import vt100

    def stop(number: int, frame: Any) -> None:
        before()
        with vt100.cooked_mode(0):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # returns after `fg`
            signal.signal(number, stop)
        after()

    previous = signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, previous)
