"""Comparison of every kernel with its reference on this machine, and with the time of stock MLX.

A kernel with other results, with an exception, or slower than stock MLX is not used. `trials` has
the inputs of each operation. This module knows no models, files or terminals.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from dflash_mlx.errors import first_line
from dflash_mlx.kernels.source import Launcher

from .cases import TOLERANCE, Case
from .products import Sized
from .shapes import GENERIC, Shapes
from .times import Clock, Timed, compare_times, describe_ratio, outputs
from .trials import TRIALS, Trial

TIME_BUDGET = 2.0  # seconds, at the start of a program
UNUSED = "this model does not use it"
UNTIMED = "not timed yet: the time was spent"
NARROW = "all matrices are too narrow for it"
STARTED = "its last check did not end"


@dataclass(frozen=True, slots=True)
class KernelResult:
    """The result of one operation's kernel.

    `right` is False if the kernel raises or its outputs are wrong. `error` is the largest
    difference of an output from the reference's, divided by the larger of 1 and the absolute value
    of the reference; None if integers differ or nothing was compared. `seconds` per call and
    `ratio` to the time of stock MLX are None if not timed. `reason` says why the kernel is not
    used; empty if it is used. With `sizes` it is used where it won, and `seconds` and `ratio` are
    means of all sizes, weighted by their bytes.
    """

    name: str
    right: bool
    error: float | None = None
    seconds: float | None = None
    ratio: float | None = None
    reason: str = ""
    sizes: tuple[Timed, ...] = ()

    @property
    def final(self) -> bool:
        """Whether neither a comparison nor a timing is left to do."""
        return self.reason != UNTIMED

    @property
    def used(self) -> bool:
        """Whether the model uses the operation."""
        return self.reason != UNUSED


OnResult = Callable[[KernelResult], None]


def prove(
    launcher: Launcher,
    shapes: Shapes,
    *,
    clock: Clock = time.perf_counter,
    budget: float = TIME_BUDGET,
    known: Mapping[str, KernelResult] | None = None,
    everything: bool = False,
    trials: Sequence[Trial] = TRIALS,
    on_result: OnResult = lambda _: None,
) -> tuple[KernelResult, ...]:
    """Check the kernels of the operations that a model of these shapes uses.

    First all outputs are compared, then all kernels are timed, until `budget` seconds have passed
    on `clock`. A kernel that is not timed is not used; pass its result as `known` to a later call,
    which then only times it, or the sizes that are left. With `everything` also the operations that
    the model does not use are compared, at `GENERIC` shapes. `on_result` is called before each
    comparison and timing with the reason `STARTED`, and after it with the result. Returns one
    result for each operation tried.
    """
    began, results = clock(), dict(known or {})
    if shapes.exact:
        trials = [exactly(trial) for trial in trials]
    tried = {trial: bool(trial.fitting(shapes)) for trial in trials}
    for trial, used in tried.items():
        if trial.name in results or not (used or everything):
            continue
        on_result(KernelResult(trial.name, False, reason=STARTED))
        cases = trial.fitting(shapes if used else GENERIC)
        result = compare(launcher, trial, cases, bits=shapes.exact)
        if result.right and everything:
            result = compare(launcher, exactly(trial), cases, bits=True)
        if result.right:
            result = replace(result, reason=UNTIMED if used else UNUSED)
        results[trial.name] = result
        on_result(result)
    for trial in sorted(tried, key=lambda trial: trial.sizes is not None):  # those take longest
        result = results.get(trial.name)
        if result is None or result.final or not tried[trial] or clock() - began >= budget:
            continue
        on_result(KernelResult(trial.name, False, reason=STARTED))
        if trial.sizes is not None and not shapes.exact:
            ends = began + budget
            found = measure_sizes(launcher, trial, trial.sizes(shapes), result, clock, ends)
        else:
            found = measure_times(launcher, trial, trial.fitting(shapes)[-1], result, clock)
        results[trial.name] = found
        on_result(results[trial.name])
    return tuple(results[trial.name] for trial in tried if trial.name in results)


def exactly(trial: Trial) -> Trial:
    """The trial of the launch of exact mode."""
    return replace(trial, op=replace(trial.op, launch=trial.op.launching(exact=True)))


def compare(
    launcher: Launcher, trial: Trial, cases: Sequence[Case], *, bits: bool = False
) -> KernelResult:
    """Compare the outputs of a kernel with those of its reference, for all cases.

    With `bits` one row must also have the same bits as in a launch with that row alone.
    """
    worst = 0.0
    for case in cases:
        try:
            got = outputs(trial.op.launch(launcher, *case))
            alone: list[mx.array] = []
            if bits and trial.alone:
                alone = outputs(trial.op.launch(launcher, *trial.alone(*case)))
            mx.eval(got, alone)
        except Exception as error:  # whatever it is, the kernel cannot be used
            return KernelResult(trial.name, False, reason=f"raised {describe_error(error)}")
        want = outputs((trial.expected or trial.op.reference)(*case))
        if [(x.shape, x.dtype) for x in got] != [(x.shape, x.dtype) for x in want]:
            return KernelResult(trial.name, False, reason="gives another shape or dtype")
        for ours, theirs in zip(got, want, strict=True):
            error, allowed = error_and_tolerance(trial.comparable(ours), trial.comparable(theirs))
            if not error <= allowed:
                reason = describe_difference(error, theirs)
                return KernelResult(trial.name, False, error if allowed else None, reason=reason)
            worst = max(worst, error)
        if alone and not same_bits(trial, got[0], alone[0]):
            return KernelResult(
                trial.name, False, reason="gives a row other bits than that row alone"
            )
    return KernelResult(trial.name, True, worst)


def same_bits(trial: Trial, whole: mx.array, alone: mx.array) -> bool:
    """Whether one row has the same bits with the other rows and without them."""
    place = trial.row % whole.shape[trial.axis]
    row = mx.take(whole, mx.array([place]), axis=trial.axis)
    unsigned = {2: mx.uint16, 4: mx.uint32}[alone.dtype.size]
    return bool(mx.array_equal(row.view(unsigned), alone.view(unsigned)))


def error_and_tolerance(got: mx.array, want: mx.array) -> tuple[float, float]:
    """The largest error of `got` and the largest that is allowed; infinite if only one is NaN.

    Integers have no tolerance; floats are relative, see `TOLERANCE`.
    """
    if not mx.issubdtype(want.dtype, mx.floating):
        far = mx.abs(got.astype(mx.int64) - want.astype(mx.int64))
        return largest(far), 0.0
    allowed = TOLERANCE[want.dtype]
    got, want = got.astype(mx.float32), want.astype(mx.float32)
    same = (got == want) | (mx.isnan(got) & mx.isnan(want))
    far = mx.where(same, 0.0, mx.abs(got - want) / mx.maximum(1, mx.abs(want)))
    return largest(mx.where(mx.isnan(far), mx.inf, far)), allowed


def largest(x: mx.array) -> float:
    """The largest element."""
    found: Any = x.max().item()
    return float(found)


def describe_difference(error: float, want: mx.array) -> str:
    """The reason that is shown for a wrong output."""
    if not mx.issubdtype(want.dtype, mx.floating):
        return "decides otherwise than its reference"
    if error == float("inf"):
        return "gives what is no number"
    return f"differs from its reference by {error:.1g}"


def describe_error(error: Exception) -> str:
    """The class and the first line of an exception."""
    return f"{type(error).__name__}: {first_line(error)}"


def measure_times(
    launcher: Launcher, trial: Trial, case: Case, result: KernelResult, clock: Clock
) -> KernelResult:
    """The result with `seconds` and `ratio`."""
    try:
        ours, ratio = compare_times(launcher, trial, case, clock)
    except Exception as error:
        return replace(result, right=False, reason=f"raised {describe_error(error)}")
    return replace(result, seconds=ours, ratio=ratio, reason=describe_ratio(ratio))


def measure_sizes(
    launcher: Launcher,
    trial: Trial,
    sizes: Iterable[Sized],
    result: KernelResult,
    clock: Clock,
    ends: float,
) -> KernelResult:
    """The result with what is not timed yet of its `sizes`, begun before the clock is at `ends`."""
    found = {timed.size: timed for timed in result.sizes}
    for size, weight, case in sizes:
        if size in found:
            continue
        if clock() >= ends:
            return replace(result, sizes=(*found.values(),))
        try:
            found[size] = Timed(size, weight, *compare_times(launcher, trial, case, clock))
        except Exception as error:
            return replace(result, right=False, reason=f"raised {describe_error(error)}")
    if not found:
        return replace(result, reason=NARROW)
    total = sum(timed.weight for timed in found.values())
    seconds = sum(timed.weight * timed.seconds for timed in found.values()) / total
    ratio = sum(timed.weight * timed.ratio for timed in found.values()) / total
    won = any(timed.won for timed in found.values())
    return replace(
        result,
        seconds=seconds,
        ratio=ratio,
        reason="" if won else describe_ratio(ratio),
        sizes=(*found.values(),),
    )
