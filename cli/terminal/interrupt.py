"""Ctrl-C asks for a stop at the next block; a second one stops at once. Knows no models."""

import signal
import time
from types import FrameType, TracebackType
from typing import Any


class Leave(Exception):
    """The user leaves a chat; `code` is the program's exit code."""

    def __init__(self, code: int = 0):
        super().__init__()
        self.code = code


class Interrupt:
    """Watches for Ctrl-C while it is entered; `asked` and `twice` say whether it came.

    A second one counts within `window` seconds of the last.
    """

    def __init__(self, window: float = float("inf")) -> None:
        self.asked = self.twice = False
        self.at = float("-inf")  # when it came last, on the clock of time.monotonic
        self._window = window
        self._held = False
        self._before: Any = None

    def __enter__(self) -> "Interrupt":
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as under nohup
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise KeyboardInterrupt when Ctrl-C came."""
        if self.asked:
            raise KeyboardInterrupt

    def hold(self, held: bool = True) -> None:
        """While held a second one, too, only sets `twice`: what has to be kept gets its time."""
        self._held = held

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before, self.at = self.at, time.monotonic()
        if self.asked and self.at - before <= self._window:
            self.twice = True
            if not self._held:
                raise KeyboardInterrupt
        self.asked = True
