"""Notices a pass that does not end. A rank whose GPU hangs still sends heartbeats."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Seconds expected of a pass unlike the last ones. It may compile kernels, or read a model back that
# was moved out of memory. Nobody has measured it: a generous guess for a long chunk of a prompt.
UNKNOWN_SECONDS = 60.0
PAUSE_SECONDS = 30.0  # after which a pass is unlike those before it
SLACK_SECONDS = 4.0  # a hang is noticed within twice the expected seconds plus five, with the beat
LAST_PASSES = 8  # of a size; the longest is expected of the next


@dataclass(frozen=True, slots=True)
class RunningPass:
    """A pass by its start on the clock, and the seconds that are expected of it."""

    began: float
    expected: float


class PassTimes:
    """How long a rank's passes take, and whether the running one takes too long.

    Passes are alike if they have about as many rows and as much context, to a factor of two.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seconds: dict[tuple[int, int], deque[float]] = {}
        self._running: RunningPass | None = None
        self._ended = -PAUSE_SECONDS

    @contextmanager
    def measured(self, rows: int, context: int) -> Iterator[None]:
        """Run a pass over some rows after `context` tokens, and learn how long it takes."""
        size = rows.bit_length(), context.bit_length()
        seconds = self._seconds.setdefault(size, deque(maxlen=LAST_PASSES))
        began = self._clock()
        known = seconds and began - self._ended < PAUSE_SECONDS
        self._running = RunningPass(began, max(seconds) if known else UNKNOWN_SECONDS)
        try:
            yield
        finally:
            self._running = None
        self._ended = self._clock()
        seconds.append(self._ended - began)

    def overdue(self) -> str:
        """What is wrong with the running pass, as the end of a sentence; empty if nothing is."""
        if (running := self._running) is None:
            return ""
        lasted = self._clock() - running.began
        if lasted <= 2 * running.expected + SLACK_SECONDS:
            return ""
        return (
            f"has not finished a pass after {lasted:.0f} seconds, where {running.expected:.1f} "
            "were expected: the GPU of a rank may hang."
        )
