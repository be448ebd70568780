"""Holds every kernel against its reference on this machine, and times it against MLX's own.

A kernel that gives other results, raises or is slower is not used. Knows how to try an operation
(`trials`), nothing of models, files or terminals.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import mlx.core as mx

from dflash_mlx.errors import first_line
from dflash_mlx.kernels.source import Launcher

from .cases import TOLERANCE, Case
from .shapes import GENERIC, Shapes
from .trials import TRIALS, Trial

BUDGET = 2.0  # seconds, at the start of a program
SLOW = 1.05  # times MLX's own; less than that is noise
RUNS, SERIES = 5, 4  # medians of so many series of so many calls, each after the one before
UNUSED = "this model does not use it"
UNTIMED = "not timed yet: the time was spent"
STARTED = "its last check did not end"

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one operation's kernel.

    `error` is the largest difference of an output from its reference, relative to 1 or to what it
    should be where that is more; None where decisions differ or there is nothing to compare.
    `seconds` a call and `ratio` to MLX's own are None if not timed. `reason` says why it is not
    used, and is empty if it is; `right` is False only for results that are wrong.
    """

    name: str
    right: bool
    error: float | None = None
    seconds: float | None = None
    ratio: float | None = None
    reason: str = ""

    @property
    def final(self) -> bool:
        """Whether there is nothing left to find out."""
        return self.reason != UNTIMED

    @property
    def used(self) -> bool:
        """Whether the model has use for it."""
        return self.reason != UNUSED


OnVerdict = Callable[[Verdict], None]


def prove(
    launcher: Launcher,
    shapes: Shapes,
    *,
    clock: Clock = time.perf_counter,
    budget: float = BUDGET,
    known: Mapping[str, Verdict] | None = None,
    everything: bool = False,
    trials: Sequence[Trial] = TRIALS,
    on_verdict: OnVerdict = lambda _: None,
) -> tuple[Verdict, ...]:
    """Try the operations that a model of these shapes uses: all results first, then the times.

    What is not timed when `budget` seconds are spent is not used: give its verdict as `known` the
    next time, and only its time is looked at. With `everything` also operations that the model does
    not use are compared, at other shapes. `on_verdict` gets what is known so far: before something
    is tried that it has begun, and then what came of it.
    """
    began, verdicts = clock(), dict(known or {})
    tried = {trial: bool(trial.fitting(shapes)) for trial in trials}
    for trial, used in tried.items():
        if trial.name in verdicts or not (used or everything):
            continue
        on_verdict(Verdict(trial.name, False, reason=STARTED))
        cases = trial.fitting(shapes if used else GENERIC)
        verdict = compared(launcher, trial, cases, bits=shapes.exact or everything)
        if verdict.right:
            verdict = replace(verdict, reason=UNTIMED if used else UNUSED)
        verdicts[trial.name] = verdict
        on_verdict(verdict)
    for trial, used in tried.items():
        verdict = verdicts.get(trial.name)
        if verdict is None or verdict.final or not used or clock() - began >= budget:
            continue
        on_verdict(Verdict(trial.name, False, reason=STARTED))
        case = trial.fitting(shapes)[-1]
        verdicts[trial.name] = timed(launcher, trial, case, verdict, clock)
        on_verdict(verdicts[trial.name])
    return tuple(verdicts[trial.name] for trial in tried if trial.name in verdicts)


def compared(
    launcher: Launcher, trial: Trial, cases: Sequence[Case], *, bits: bool = False
) -> Verdict:
    """Whether a kernel gives what its reference gives; and `bits` of a row as of that row alone."""
    worst = 0.0
    for case in cases:
        try:
            got = outputs(trial.op.launch(launcher, *case))
            alone: list[mx.array] = []
            if bits and trial.alone:
                alone = outputs(trial.op.launch(launcher, *trial.alone(*case)))
            mx.eval(got, alone)
        except Exception as error:  # whatever it is, the kernel cannot be used
            return Verdict(trial.name, False, reason=f"raised {named(error)}")
        want = outputs((trial.truth or trial.op.reference)(*case))
        if [(x.shape, x.dtype) for x in got] != [(x.shape, x.dtype) for x in want]:
            return Verdict(trial.name, False, reason="gives another shape or dtype")
        for ours, theirs in zip(got, want, strict=True):
            error, allowed = distance(trial.meaning(ours), trial.meaning(theirs))
            if not error <= allowed:
                reason = difference(error, theirs)
                return Verdict(trial.name, False, error if allowed else None, reason=reason)
            worst = max(worst, error)
        if alone and not same_bits(trial, got[0], alone[0]):
            return Verdict(trial.name, False, reason="gives a row other bits than that row alone")
    return Verdict(trial.name, True, worst)


def same_bits(trial: Trial, whole: mx.array, alone: mx.array) -> bool:
    """Whether one row came out the same with the others and without."""
    place = trial.row % whole.shape[trial.axis]
    row = mx.take(whole, mx.array([place]), axis=trial.axis)
    unsigned = {2: mx.uint16, 4: mx.uint32}[alone.dtype.size]
    return bool(mx.array_equal(row.view(unsigned), alone.view(unsigned)))


def outputs(result: Any) -> list[mx.array]:
    """The arrays of a result."""
    return list(result) if isinstance(result, list | tuple) else [result]


def distance(got: mx.array, want: mx.array) -> tuple[float, float]:
    """How far two arrays are apart, and how far they may be; infinite where one has a NaN."""
    if not mx.issubdtype(want.dtype, mx.floating):
        far = mx.abs(got.astype(mx.int64) - want.astype(mx.int64))
        return greatest(far), 0.0
    allowed = TOLERANCE[want.dtype]
    got, want = got.astype(mx.float32), want.astype(mx.float32)
    same = (got == want) | (mx.isnan(got) & mx.isnan(want))
    far = mx.where(same, 0.0, mx.abs(got - want) / mx.maximum(1, mx.abs(want)))
    return greatest(mx.where(mx.isnan(far), mx.inf, far)), allowed


def greatest(x: mx.array) -> float:
    """The greatest element."""
    found: Any = x.max().item()
    return float(found)


def difference(error: float, want: mx.array) -> str:
    """What is wrong with a result, for people."""
    if not mx.issubdtype(want.dtype, mx.floating):
        return "decides otherwise than its reference"
    if error == float("inf"):
        return "gives what is no number"
    return f"differs from its reference by {error:.1g}"


def named(error: Exception) -> str:
    """An exception in a few words."""
    return f"{type(error).__name__}: {first_line(error)}"


def timed(launcher: Launcher, trial: Trial, case: Case, verdict: Verdict, clock: Clock) -> Verdict:
    """A verdict with times: kernel and stock in turns, each once before it counts."""
    ways = (lambda *args: trial.op.launch(launcher, *args), trial.stock)
    taken: tuple[list[float], list[float]] = ([], [])
    mx.eval([part for part in case if isinstance(part, mx.array)])
    try:
        for _ in range(RUNS + 1):
            for way, seconds in zip(ways, taken, strict=True):
                seconds.append(series(way, case, clock))
    except Exception as error:
        return replace(verdict, right=False, reason=f"raised {named(error)}")
    ours, theirs = (median(seconds[1:]) / SERIES for seconds in taken)
    ratio = ours / theirs if theirs else 1.0
    reason = f"{ratio:.1f}x as slow as MLX's own" if ratio > SLOW else ""
    return replace(verdict, seconds=ours, ratio=ratio, reason=reason)


def series(way: Callable[..., Any], case: Case, clock: Clock) -> float:
    """The seconds of a few calls, each of which waits for the one before."""
    began, result = clock(), outputs(way(*case))
    for _ in range(SERIES - 1):
        result = outputs(way(mx.depends(case[0], result), *case[1:]))
    mx.eval(result)
    return clock() - began
