"""The self-check: compares every kernel with its reference and with the time of stock MLX.

A kernel is not used if its results differ, if it raises, or where it is slower. `trials` says what
is compared and timed, and `results` keeps the results in a file.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from math import inf
from statistics import median
from typing import Any

import mlx.core as mx

from dflash_mlx.errors import first_line
from dflash_mlx.kernels.dispatch import TOO_MANY_THREADS, Kernels
from dflash_mlx.kernels.grouped_experts import Experts
from dflash_mlx.kernels.samples import Case
from dflash_mlx.kernels.shapes import Shapes
from dflash_mlx.kernels.small_m_qmm import Weights
from dflash_mlx.kernels.source import Launcher, recorded
from dflash_mlx.types import Progress, silent

from .results import (
    NARROW,
    STARTED,
    STORE,
    UNCHECKED,
    UNTIMED,
    KernelResult,
    Timed,
    apply_results,
    result_key,
)
from .trials import MAX_RATIO, TRIALS, Stock, Trial

# Seconds of a program's start. The first start should take at most 6 s longer than later ones, and
# a step takes up to 1 s: MLX compiles two libraries for it, half a second each.
TIME_BUDGET = 5.0
# Relative to the larger of 1 and the expected absolute value. MLX may compute float32 products with
# 19 bits (TF32) on the newest chips.
TOLERANCE = {mx.float32: 2e-3, mx.float16: 4e-3, mx.bfloat16: 3e-2}
RUNS = 3  # the time is the median of these
CALLS = 16  # dependent calls in a run, so that waiting for its end is a small part of its time
COPIES = 3  # of the inputs, at least: those of a single one would stay in the chip's system cache
COLD_BYTES = 200_000_000  # all copies: twice the largest system cache, 96 MB on an Ultra

Clock = Callable[[], float]
Step = Callable[[KernelResult], KernelResult]

log = logging.getLogger(__name__)


class KernelCheck:
    """The check of a pair's kernels on this machine; it goes on where the last program ended.

    anew: it begins again instead. results: by operation, what is known so far.
    """

    def __init__(
        self,
        kernels: Kernels,
        shapes: Shapes,
        *,
        anew: bool = False,
        clock: Clock = time.perf_counter,
        trials: Sequence[Trial] = TRIALS,
    ):
        assert kernels.launcher is not None
        self._kernels = kernels
        self._launcher = kernels.launcher
        self._shapes = shapes
        self._clock = clock
        self._key = result_key(shapes)
        self._keeps = True
        self._anew = anew
        known = {} if anew else STORE.read().get(self._key, {})
        used = [trial for trial in trials if trial.fitting(shapes)]
        self.results: dict[str, KernelResult] = {
            trial.name: known.get(trial.name, KernelResult(trial.name, True, reason=UNCHECKED))
            for trial in used
        }
        self._steps = (None for trial in used for _ in self._check(trial))

    def run(self, seconds: float = inf, on_check: Progress = silent) -> bool:
        """Check until `seconds` have passed, or to the end. Returns whether anything is left.

        `on_check` is called with the number of operations that are checked, and of all.
        """
        ends = self._clock() + seconds
        total = len(self.results)
        while (done := sum(result.final for result in self.results.values())) < total:
            if self._clock() >= ends:
                return True
            on_check(done, total)
            if not self.step():  # an interrupt or an error has ended the check
                break
        return False

    def step(self) -> bool:
        """Compare or time one kernel once. Returns False if there was nothing left."""
        return next(self._steps, self) is None

    def fail(self, name: str, reason: str) -> None:
        """Remember that a kernel failed after its check, now and at later starts."""
        self.results[name] = KernelResult(name, False, reason=reason)
        self._keep(self.results[name])

    def kernels(self) -> Kernels:
        """The pair's kernels: those that are right and fast are enabled, as far as is known."""
        return apply_results(self._kernels, self.results.values())

    def _check(self, trial: Trial) -> Iterator[None]:
        """Compare all cases, then time all sizes, unless one fails; yields after each."""
        name = trial.name
        for step in self._steps_of(trial):
            self._keep(KernelResult(name, False, reason=STARTED))  # a kernel may end the program
            try:
                self.results[name] = step(self.results[name])
            finally:
                self._keep(self.results[name])
            yield
            if not self.results[name].right:
                return

    def _steps_of(self, trial: Trial) -> Iterator[Step]:
        """Exact mode times nothing: it uses all kernels that are right."""
        exact = self._shapes.exact
        if self.results[trial.name].reason == UNCHECKED:
            *cases, last = trial.fitting(self._shapes)
            compared = partial(compare, self._launcher, trial, exact=exact)
            yield from (partial(compared, case) for case in cases)
            yield partial(compared, last, then="" if exact else UNTIMED)
        if self.results[trial.name].reason == UNTIMED:
            others = self.kernels().without([trial.name])
            known = {timed.size for timed in self.results[trial.name].sizes}
            for case in trial.timed(self._shapes):
                if (size := trial.op.size(*case)) not in known:
                    known.add(size)
                    yield partial(self._time, trial, case, others)
            yield lambda result: replace(
                result, reason="" if result.won else why_slow(result.ratio)
            )

    def _time(self, trial: Trial, case: Case, others: Kernels, known: KernelResult) -> KernelResult:
        launch = partial(trial.op.launching(exact=False, smaller=known.smaller), self._launcher)
        try:
            seconds, ratio = compare_times(trial, launch, case, others, self._clock)
        except Exception as error:
            return replace(known, right=False, reason=f"raised {describe_error(error)}")
        timed = Timed(trial.op.size(*case), seconds, ratio, ratio <= trial.most)
        return replace(known, sizes=(*known.sizes, timed))

    def _keep(self, result: KernelResult) -> None:
        """Write one result to the file until that fails (logged); others are kept.

        Another program may check the same pair. With `anew` the first result replaces the entry.
        """
        if self._keeps:
            known = {} if self._anew else STORE.read().get(self._key, {})
            self._keeps = STORE.write(self._key, known | {result.name: result})
            self._anew = False


def why_slow(ratio: float | None) -> str:
    """The reason to show for a kernel that won at no size; None: there was none."""
    if ratio is None:
        return NARROW
    return f"{ratio:.1f}x as slow as MLX's own" if ratio > MAX_RATIO else "it gains nothing here"


def compare(
    launcher: Launcher,
    trial: Trial,
    case: Case,
    known: KernelResult,
    *,
    exact: bool = False,
    then: str = UNCHECKED,
) -> KernelResult:
    """The known result with one more case; `then` is its reason if that is right.

    In exact mode one row must have the bits of a launch of its own. If the chip refuses so many
    threads in a threadgroup, the smaller launch is compared instead.
    """
    launch = partial(trial.op.launching(exact, known.smaller), launcher)
    try:
        got = outputs(launch(*case))
        alone = outputs(launch(*trial.alone(*case))) if exact and trial.alone else []
        mx.eval(got, alone)
    except Exception as error:  # after any error the kernel cannot be used
        log.info("the kernel of %s raised", trial.name, exc_info=True)  # the compiler's lines
        has_smaller = trial.op.smaller is not None and not (known.smaller or exact)
        if has_smaller and str(error).startswith(TOO_MANY_THREADS):
            return compare(launcher, trial, case, replace(known, smaller=True), then=then)
        return KernelResult(trial.name, False, reason=f"raised {describe_error(error)}")
    try:
        error, fault = compare_outputs(trial, case, got)
    except Exception as error:  # the reference is computed here
        log.info("%s cannot be compared with its reference", trial.name, exc_info=True)
        reason = f"cannot be compared with its reference: {describe_error(error)}"
        return KernelResult(trial.name, False, reason=reason)
    if not fault and alone and not mx.array_equal(bits(trial.row(got[0])), bits(alone[0])):
        fault = "gives a row other bits than that row alone"
    if fault:
        return KernelResult(trial.name, False, error, fault, smaller=known.smaller)
    return replace(known, error=max(error or 0.0, known.error or 0.0), reason=then)


def compare_outputs(trial: Trial, case: Case, got: list[mx.array]) -> tuple[float | None, str]:
    """The largest error of a kernel's outputs and what is wrong with them, if anything.

    Integers have no tolerance; floats are relative, see `TOLERANCE`.
    """
    want = outputs((trial.expected or trial.op.reference)(*case))
    if [(x.shape, x.dtype) for x in got] != [(x.shape, x.dtype) for x in want]:
        return None, "gives another shape or dtype"
    worst = 0.0
    for ours, theirs in zip(map(trial.comparable, got), map(trial.comparable, want), strict=True):
        if not mx.issubdtype(theirs.dtype, mx.floating):
            if not mx.array_equal(ours, theirs):
                return None, "decides otherwise than its reference"
            continue
        error = largest_error(ours, theirs)
        if error == inf:
            return error, "gives what is no number"
        if error > TOLERANCE[theirs.dtype]:
            return error, f"differs from its reference by {error:.1g}"
        worst = max(worst, error)
    return worst, ""


def largest_error(got: mx.array, want: mx.array) -> float:
    """Divided by the larger of 1 and the wanted absolute value; infinite if only one is NaN."""
    got, want = got.astype(mx.float32), want.astype(mx.float32)
    same = (got == want) | (mx.isnan(got) & mx.isnan(want))
    far = mx.where(same, 0.0, mx.abs(got - want) / mx.maximum(1, mx.abs(want)))
    return float(mx.where(mx.isnan(far), mx.inf, far).max())


def bits(x: mx.array) -> mx.array:
    return x.view({2: mx.uint16, 4: mx.uint32}[x.dtype.size])


def outputs(result: Any) -> list[mx.array]:
    return list(result) if isinstance(result, list | tuple) else [result]


def describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


# The time of a kernel, and of what runs without it, both as in an answer


def compare_times(
    trial: Trial, launch: Callable[..., Any], case: Case, others: Kernels, clock: Clock
) -> tuple[float, float]:
    """Time a kernel and what runs without it in turn: its seconds per call, and the ratio.

    The first run of each is a warm-up.
    """
    cases = copies(trial, case)
    ours = [lambda x, rest=rest: launch(x, *rest) for _, *rest in cases]
    stock = [trial.stock(others, *case) for case in cases]

    def dependent(calls: list[Stock], _: Any, first: mx.array) -> list[mx.array]:
        """The outputs of the last of CALLS calls, each of which depends on the one before."""
        result = outputs(calls[0](first))
        for number in range(1, CALLS):
            place = number % len(cases)
            result = outputs(calls[place](mx.depends(cases[place][0], result)))
        return result

    # As in an answer: many products are recorded together, other operations by themselves.
    by_rival = trial.rival is not None and others.launches(trial.rival, *case[:2])
    runs = [
        recorded(others.launcher if trial.recorded else None, partial(dependent, ours)),
        recorded(others.launcher if by_rival else None, partial(dependent, stock)),
    ]
    durations: list[list[float]] = [[], []]
    for _ in range(RUNS + 1):
        for run, seconds in zip(runs, durations, strict=True):
            began = clock()
            mx.eval(run(case[0]))
            seconds.append(clock() - began)
    ours_took, stock_took = (median(seconds[1:]) / CALLS for seconds in durations)
    return ours_took, ours_took / stock_took if stock_took else 1.0


def copies(trial: Trial, case: Case) -> list[Case]:
    """The case with evaluated inputs, and copies of it in other memory, or other cases.

    There are enough to find none of them in the system cache, as in an answer, which reads all
    other layers in between: COLD_BYTES, or COPIES of the largest matrix of a model.
    """
    size = sum(array.nbytes for array in arrays_of(case))
    count = CALLS if trial.again else min(CALLS, max(COPIES, -(-COLD_BYTES // size)))
    again = trial.again or (lambda case, _: tuple(map(copied, case)))
    cases = [case, *(again(case, number) for number in range(1, count))]
    mx.eval([arrays_of(case) for case in cases])
    return cases


def arrays_of(part: Any) -> list[mx.array]:
    if isinstance(part, mx.array):
        return [part]
    if isinstance(part, Weights | Experts):
        part = tuple(getattr(part, field.name) for field in fields(part))
    return [array for one in part for array in arrays_of(one)] if isinstance(part, tuple) else []


def copied(part: Any) -> Any:
    """A copy of an array or of weights; anything else is returned as it is."""
    if isinstance(part, mx.array):
        return part + mx.array(0, part.dtype)
    if isinstance(part, Weights):
        return replace(part, **{f.name: copied(getattr(part, f.name)) for f in fields(part)})
    return part


# Building the kernels that a pair uses, so that the first answer does not wait for it


def build(
    kernels: Kernels,
    shapes: Shapes,
    *,
    on_kernels: Progress = silent,
    trials: Sequence[Trial] = TRIALS,
) -> dict[str, str]:
    """Launch every kernel that is used at these shapes, so that MLX compiles it.

    Returns the operations whose kernels raised, with the reasons. `on_kernels` is called with the
    number of operations that are ready, and of all.
    """
    failed = dict[str, str]()
    used = [trial for trial in trials if kernels.enables(trial.op) and trial.fitting(shapes)]
    for done, trial in enumerate(used):
        on_kernels(done, len(used))
        try:
            for arrays in launches(kernels, trial, shapes):
                mx.eval(arrays)
        except Exception as error:
            log.info("the kernel of %s raised", trial.name, exc_info=True)  # the compiler's lines
            failed[trial.name] = f"raised {describe_error(error.__cause__ or error)}"
    on_kernels(len(used), len(used))
    mx.clear_cache()
    return failed


def launches(kernels: Kernels, trial: Trial, shapes: Shapes) -> Iterator[list[mx.array]]:
    """The outputs of an operation's kernels for the cases at which they are used, unevaluated."""
    sizes = trial.sizes(shapes) if trial.sizes and not kernels.exact else ()
    for case in chain(trial.fitting(shapes), sizes):
        if kernels.launches(trial.op, *case):
            yield outputs(kernels(trial.op, *case))
