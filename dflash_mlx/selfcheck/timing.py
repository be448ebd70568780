"""The time of a kernel, and of stock MLX for the same work, both as an answer runs them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import mlx.core as mx

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.grouped_experts import Experts
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
Run = Callable[[mx.array], list[mx.array]]


class Timed(NamedTuple):
    """A kernel at one size: seconds per call, their `ratio` to stock MLX's, bytes as `weight`.

    `rival_ratio`: to the time of what is used without it, stock MLX or another kernel; None for a
    kernel that is one of ours.
    """

    size: tuple[int | str, ...]
    weight: int
    seconds: float
    ratio: float
    rival_ratio: float | None = None

    @property
    def won(self) -> bool:
        """Whether the kernel is used at this size. One that is not ours has to be faster."""
        if self.rival_ratio is None:
            return self.ratio <= MAX_TIME_RATIO
        return self.rival_ratio * MAX_TIME_RATIO <= 1


def compare_times(
    launcher: Launcher, trial: Trial, case: Case, clock: Clock, kernels: Kernels | None = None
) -> tuple[float, float, float | None]:
    """Time the kernel and stock MLX in turn: the kernel's seconds per call, and the ratio.

    If the trial has a rival, the third is the ratio to what `kernels` use without this one. The
    rival is timed in the same turns. The first run of each is a warm-up.
    """
    cases = copies(case, trial.again)

    def by_kernel(operation: Trial) -> Run:
        def launches(launcher: Launcher, first: mx.array) -> list[mx.array]:
            return chain(lambda *args: operation.launch(launcher, *args), cases, first)

        return recorded(launcher, launches) if trial.recorded else partial(launches, launcher)

    given = [trial.once(*case) for case in cases]
    mx.eval([arrays_of(case) for case in given])
    runs = [by_kernel(trial), partial(chain, trial.stock, given)]
    rival = trial.rival
    if rival is not None and kernels is not None and kernels.launches(rival, *case):
        runs.append(by_kernel(replace(trial, op=rival)))
    durations: list[list[float]] = [[] for _ in runs]
    for _ in range(RUNS + 1):
        for run, seconds in zip(runs, durations, strict=True):
            began = clock()
            mx.eval(run(cases[0][0]))
            seconds.append(clock() - began)
    ours, *others = (median(seconds[1:]) / CALLS for seconds in durations)
    ratios = [ours / seconds if seconds else 1.0 for seconds in others]
    return ours, ratios[0], None if rival is None else ratios[-1]


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


def copies(case: Case, again: Callable[[Case, int], Case] | None = None) -> list[Case]:
    """The case with evaluated inputs, and copies of it in other memory, or those of `again`.

    There are enough to find none of them in the system cache, as in an answer, which reads all
    other layers in between. They take about COLD_BYTES; COPIES of the largest matrix of a model
    are at most the bytes of one layer's.
    """
    if again is not None:
        cases = [case, *(again(case, number) for number in range(1, CALLS))]
        mx.eval([arrays_of(case) for case in cases])
        return cases
    size = sum(array.nbytes for array in arrays_of(case))
    count = min(CALLS, max(COPIES, -(-COLD_BYTES // size)))
    cases = [case, *(tuple(map(copied, case)) for _ in range(count - 1))]
    mx.eval([arrays_of(case) for case in cases])
    return cases


def arrays_of(case: Case) -> list[mx.array]:
    """The arrays of a case that its operation reads, also those of weights."""
    parts: list[Any] = []
    for part in case:
        for one in part.parts if isinstance(part, Experts) else (part,):
            is_weights = isinstance(one, Weights)
            parts += [one.values, one.scales, one.biases, one.bias] if is_weights else [one]
    return [part for part in parts if isinstance(part, mx.array)]


def copied(part: Any) -> Any:
    """A copy of an array or of weights; anything else is returned as it is."""
    if isinstance(part, mx.array):
        return part + mx.array(0, part.dtype)
    if isinstance(part, Weights):
        names = ("values", "scales", "biases", "bias")
        return replace(part, **{name: copied(getattr(part, name)) for name in names})
    return part
