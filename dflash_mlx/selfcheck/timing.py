"""The time of a kernel, and of stock MLX for the same work, both as an answer runs them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import mlx.core as mx

from dflash_mlx.kernels.small_m_qmm import Weights
from dflash_mlx.kernels.source import Launcher, recorded

from .cases import Case
from .trials import Trial, outputs

MAX_TIME_RATIO = 1.05  # to the time of stock MLX; smaller differences are noise
RUNS = 3  # the time is the median of these
CALLS = 16  # dependent calls in a run, so that waiting for its end is a small part of its time
COPIES = 3  # of the inputs, at least: those of a single one would stay in the chip's system cache
COLD_BYTES = 200_000_000  # all copies: twice the largest system cache, 96 MB on an Ultra

Clock = Callable[[], float]


class Timed(NamedTuple):
    """A kernel at one size: seconds per call, their `ratio` to stock MLX's, bytes as `weight`."""

    size: tuple[int | str, ...]
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
    cases = copies(case)

    def launches(launcher: Launcher, first: mx.array) -> list[mx.array]:
        return chain(lambda *args: trial.launch(launcher, *args), cases, first)

    kernel = recorded(launcher, launches) if trial.recorded else partial(launches, launcher)
    given = [trial.once(*case) for case in cases]
    mx.eval([arrays_of(case) for case in given])
    stock = partial(chain, trial.stock, given)
    durations: tuple[list[float], list[float]] = ([], [])
    for _ in range(RUNS + 1):
        for run, seconds in zip((kernel, stock), durations, strict=True):
            began = clock()
            mx.eval(run(cases[0][0]))
            seconds.append(clock() - began)
    ours, theirs = (median(seconds[1:]) / CALLS for seconds in durations)
    return ours, ours / theirs if theirs else 1.0


def describe_ratio(ratio: float) -> str:
    """The reason that is shown for a slow kernel; empty for one that is not."""
    return f"{ratio:.1f}x as slow as MLX's own" if ratio > MAX_TIME_RATIO else ""


def chain(call: Callable[..., Any], cases: list[Case], first: mx.array) -> list[mx.array]:
    """The outputs of the last of CALLS calls, each of which depends on the one before.

    They take the `cases` in turn; `first` is the first argument of the first call.
    """
    result = outputs(call(first, *cases[0][1:]))
    for number in range(1, CALLS):
        x, *rest = cases[number % len(cases)]
        result = outputs(call(mx.depends(x, result), *rest))
    return result


def copies(case: Case) -> list[Case]:
    """The case with evaluated inputs, and copies of it in other memory.

    There are enough to find none of them in the system cache, as in an answer, which reads all
    other layers in between. They take about COLD_BYTES; COPIES of the largest matrix of a model
    are at most the bytes of one layer's.
    """
    size = sum(array.nbytes for array in arrays_of(case))
    count = min(CALLS, max(COPIES, -(-COLD_BYTES // size)))
    cases = [case, *(tuple(map(copied, case)) for _ in range(count - 1))]
    mx.eval([arrays_of(case) for case in cases])
    return cases


def arrays_of(case: Case) -> list[mx.array]:
    """The arrays of a case that its operation reads, also those of weights."""
    parts: list[Any] = []
    for part in case:
        is_weights = isinstance(part, Weights)
        parts += [part.values, part.scales, part.biases, part.bias] if is_weights else [part]
    return [part for part in parts if isinstance(part, mx.array)]


def copied(part: Any) -> Any:
    """A copy of an array or of weights; anything else is returned as it is."""
    if isinstance(part, mx.array):
        return part + mx.array(0, part.dtype)
    if isinstance(part, Weights):
        names = ("values", "scales", "biases", "bias")
        return replace(part, **{name: copied(getattr(part, name)) for name in names})
    return part
