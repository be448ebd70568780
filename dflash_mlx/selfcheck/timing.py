"""The time of a kernel, and of stock MLX for the same work."""

from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import mlx.core as mx

from dflash_mlx.kernels.source import Launcher

from .cases import Case, Trial, outputs

MAX_TIME_RATIO = 1.05  # to the time of stock MLX; smaller differences are noise
RUNS = 5  # the time is the median of these
CALLS = 4  # dependent calls in a run

Clock = Callable[[], float]


class Timed(NamedTuple):
    """A kernel at one size: seconds per call, their `ratio` to stock MLX's, bytes as `weight`."""

    size: tuple[int, ...]
    weight: int
    seconds: float
    ratio: float

    @property
    def won(self) -> bool:
        """Whether the kernel is used at this size."""
        return self.ratio <= MAX_TIME_RATIO


def compare_times(
    launcher: Launcher, trial: Trial, case: Case, clock: Clock
) -> tuple[float, float]:
    """Time the kernel and stock MLX in turn: the kernel's seconds per call, and the ratio.

    The first run of each is a warm-up.
    """
    calls = (lambda *args: trial.op.launch(launcher, *args), trial.stock)
    durations: tuple[list[float], list[float]] = ([], [])
    mx.eval([part for part in case if isinstance(part, mx.array)])
    for _ in range(RUNS + 1):
        for call, seconds in zip(calls, durations, strict=True):
            seconds.append(time_calls(call, case, clock))
    ours, theirs = (median(seconds[1:]) / CALLS for seconds in durations)
    return ours, ours / theirs if theirs else 1.0


def describe_ratio(ratio: float) -> str:
    """The reason that is shown for a slow kernel; empty for one that is not."""
    return f"{ratio:.1f}x as slow as MLX's own" if ratio > MAX_TIME_RATIO else ""


def time_calls(call: Callable[..., Any], case: Case, clock: Clock) -> float:
    """The total seconds of CALLS calls, each of which depends on the one before."""
    began = clock()
    result = outputs(call(*case))
    for _ in range(CALLS - 1):
        result = outputs(call(mx.depends(case[0], result), *case[1:]))
    mx.eval(result)
    return clock() - began
