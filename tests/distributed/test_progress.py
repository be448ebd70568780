"""A pass that hangs is noticed within twice the expected seconds plus five; others never are."""

import pytest

from dflash_mlx.distributed.group import BEAT
from dflash_mlx.distributed.progress import LAST_PASSES, UNKNOWN_SECONDS, PassTimes


class Simulated:
    """A rank's passes on a simulated clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.times = PassTimes(lambda: self.now)

    def run(self, seconds: float, rows: int = 4, context: int = 100) -> float | None:
        """Run a pass of so many seconds; returns when it was overdue, if it was."""
        with self.times.measured(rows, context):
            began = self.now
            while self.now < began + seconds:
                if fault := self.times.overdue():
                    assert "the GPU of a rank may hang" in fault
                    return self.now - began
                self.now += min(BEAT, began + seconds - self.now)
        assert not self.times.overdue()
        return None


@pytest.mark.parametrize("usual", [0.02, 0.6, 30.0])
def test_a_pass_that_hangs(usual: float) -> None:
    """After passes of about this many seconds; the slowest of the last ones is expected."""
    rank = Simulated()
    for number in range(20):
        assert rank.run(usual * (1 + number % 3 / 10)) is None
    noticed = rank.run(1e6)
    assert noticed is not None
    assert 2 * usual < noticed <= 2 * 1.2 * usual + 5


def test_a_first_pass_that_hangs() -> None:
    """It may compile kernels for a minute, and is noticed all the same."""
    assert Simulated().run(UNKNOWN_SECONDS) is None
    noticed = Simulated().run(1e6)
    assert noticed is not None
    assert noticed <= 2 * UNKNOWN_SECONDS + 5


@pytest.mark.parametrize(("rows", "context"), [(2048, 100), (4, 100_000)])
def test_a_pass_unlike_the_others_may_take_long(rows: int, context: int) -> None:
    """More rows or more context; from its own size on, it is known, too."""
    rank = Simulated()
    for _ in range(20):
        rank.run(0.05)
    assert rank.run(50, rows, context) is None
    assert rank.run(90, rows, context) is None
    noticed = rank.run(1e6)
    assert noticed is not None
    assert noticed < 6


def test_a_pass_after_a_pause_may_take_long() -> None:
    """The system may have moved the model out of memory meanwhile."""
    rank = Simulated()
    for _ in range(20):
        rank.run(0.05)
    rank.now += 600
    assert rank.run(50) is None


def test_the_first_passes_are_forgotten() -> None:
    """Those that compiled kernels are not expected for ever."""
    rank = Simulated()
    rank.run(40)
    for _ in range(LAST_PASSES):
        rank.run(0.05)
    noticed = rank.run(1e6)
    assert noticed is not None
    assert noticed < 6
