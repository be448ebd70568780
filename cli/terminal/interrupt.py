"""Handles Ctrl-C: the first one requests a stop at the next block, the second one stops at once.

Knows no models.
"""

import signal
import time
from types import FrameType, TracebackType
from typing import Any


class LeaveChat(Exception):
    """Raised to leave a chat; `code` is the exit code."""

    def __init__(self, code: int = 0):
        super().__init__()
        self.code = code


class Interrupt:
    """Catches SIGINT inside its context; `requested` and `requested_twice` count Ctrl-C.

    A second Ctrl-C counts only within `window` seconds of the one before. With `terminate` SIGTERM
    counts as Ctrl-C does. A signal that was ignored before stays ignored.
    """

    def __init__(self, window: float = float("inf"), *, terminate: bool = False) -> None:
        self.requested = self.requested_twice = False
        self.last_at = float("-inf")  # time.monotonic of the last Ctrl-C
        self._window = window
        self._deferred = False
        self._signals = (signal.SIGINT, signal.SIGTERM) if terminate else (signal.SIGINT,)
        self._previous_handlers: dict[int, Any] = {}
        self.exit_code = 0  # that of a program which the last signal ended; 0 without one

    def __enter__(self) -> "Interrupt":
        for number in self._signals:
            if signal.getsignal(number) is not signal.SIG_IGN:  # a background job's SIGINT
                self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt after Ctrl-C."""
        if self.requested:
            raise KeyboardInterrupt

    def defer(self, deferred: bool = True) -> None:
        """While deferred, a second Ctrl-C only sets `requested_twice`; saving can then finish."""
        self._deferred = deferred

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        previous, self.last_at = self.last_at, time.monotonic()
        if self.requested and self.last_at - previous <= self._window:
            self.requested_twice = True
            if not self._deferred:
                raise KeyboardInterrupt
        self.requested = True
