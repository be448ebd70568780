"""The self-check: compares every kernel with its reference and with the time of stock MLX.

A kernel is not used if its results differ, if it raises, or if it is slower. `trials` says what is
compared and timed, `timing` how, and `results` keeps the results in a file.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mlx.core as mx

from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.kernels.dispatch import EXACT_ROWS, TOO_MANY_THREADS, Kernels
from dflash_mlx.kernels.source import Launcher
from dflash_mlx.models.packed import SequencePass
from dflash_mlx.models.target import Target
from dflash_mlx.types import Progress, silent

from .cases import TOLERANCE, Case, Sized
from .results import (
    NARROW,
    STARTED,
    STORE,
    UNCHECKED,
    UNTIMED,
    UNUSED,
    KernelResult,
    apply_results,
    result_key,
    unchecked,
    write_results,
)
from .shapes import GENERIC, Shapes
from .timing import Clock, Timed, compare_times, describe_ratio
from .trials import TRIALS, Trial, outputs

# Seconds of a program's start. The first start should take at most 6 s longer than later ones, and
# a step takes up to 1 s: MLX compiles two libraries for it, half a second each.
TIME_BUDGET = 5.0
OnResult = Callable[[KernelResult], None]
Step = Callable[[KernelResult], KernelResult]

log = logging.getLogger(__name__)


class PairCheck:
    """The check of a pair's kernels on this machine; it goes on where the last program ended."""

    def __init__(
        self,
        kernels: Kernels,
        shapes: Shapes,
        *,
        clock: Clock = time.perf_counter,
        trials: Sequence[Trial] = TRIALS,
    ):
        assert kernels.launcher is not None
        self._kernels = kernels
        self._clock = clock
        key = result_key(shapes)
        known = STORE.read().get(key, {})
        names = [trial.name for trial in trials if trial.fitting(shapes)]
        self._keep = Keeper(key)
        self._results = {name: known.get(name, unchecked(name)) for name in names}
        self._steps = check_steps(
            kernels.launcher,
            shapes,
            self._results,
            clock=clock,
            trials=trials,
            on_result=self._keep,
        )

    def run(self, seconds: float, on_check: Progress = silent) -> bool:
        """Check until `seconds` have passed, or to the end. Returns whether anything is left.

        `on_check` is called with the number of operations that are checked, and of all.
        """
        ends = self._clock() + seconds
        total = len(self._results)
        while (done := sum(result.final for result in self._results.values())) < total:
            if self._clock() >= ends:
                return True
            on_check(done, total)
            self.step()
        return False

    def step(self) -> bool:
        """Compare or time one kernel once. Returns False if there was nothing left."""
        return next(self._steps, None) is not None

    def fail(self, name: str, reason: str) -> None:
        """Remember that a kernel failed after its check, now and at later starts."""
        self._results[name] = KernelResult(name, False, reason=reason)
        self._keep(self._results[name])

    def kernels(self) -> Kernels:
        """The pair's kernels: those that are right and fast are enabled, as far as is known."""
        return apply_results(self._kernels, self._results.values())


@dataclass(slots=True)
class Keeper:
    """Writes results to an entry until that fails (logged). With `anew` the first replaces it."""

    key: str
    anew: bool = False
    fails: bool = False

    def __call__(self, result: KernelResult) -> None:
        if not self.fails:
            self.fails = not write_results(self.key, [result], anew=self.anew)
            self.anew = False


def prove(
    launcher: Launcher,
    shapes: Shapes,
    *,
    clock: Clock = time.perf_counter,
    everything: bool = False,
    timed: bool = True,
    trials: Sequence[Trial] = TRIALS,
    on_result: OnResult = lambda _: None,
) -> tuple[KernelResult, ...]:
    """Check all kernels now; arguments as `check_steps`. Returns one result for each operation."""
    results: dict[str, KernelResult] = {}
    steps = check_steps(
        launcher,
        shapes,
        results,
        clock=clock,
        everything=everything,
        timed=timed,
        trials=trials,
        on_result=on_result,
    )
    for _ in steps:
        pass
    return tuple(results.values())


def check_steps(
    launcher: Launcher,
    shapes: Shapes,
    results: dict[str, KernelResult],
    *,
    clock: Clock,
    trials: Sequence[Trial],
    on_result: OnResult,
    everything: bool = False,
    timed: bool = True,
) -> Iterator[KernelResult]:
    """Check the kernels of the operations that a model of these shapes uses, step by step.

    A step is one comparison of outputs, which may compile the kernel, or one timing. It continues
    `results`, and yields the operation's new one. Exact mode times nothing: it uses all kernels
    that are right. With `everything`, operations that the model does not use are compared too, at
    `GENERIC` shapes, and all also as exact mode launches them. `on_result` is called before each
    step with the reason `STARTED`, and after it with the result, or the one before if interrupted.
    """

    def run(result: KernelResult, step: Step) -> KernelResult:
        on_result(KernelResult(result.name, False, reason=STARTED))
        try:
            result = step(result)
        finally:
            results[result.name] = result
            on_result(result)
        return result

    for trial in trials:
        used = bool(trial.fitting(shapes))
        if not (used or everything):
            continue
        result = results.get(trial.name, unchecked(trial.name))
        if result.reason == UNCHECKED:
            passed = UNUSED if not used else "" if shapes.exact else UNTIMED
            modes = sorted({shapes.exact, shapes.exact or everything})
            cases = trial.fitting(shapes if used else GENERIC)
            for step in comparisons(launcher, trial, cases, modes, passed):
                result = run(result, step)
                yield result
                if not result.right:
                    break
            del cases  # their arrays were evaluated
        if result.reason == UNTIMED and timed:
            kernels = apply_results(Kernels(launcher, on=frozenset()), results.values())
            way = with_smaller(trial) if result.smaller else trial
            for step in timings(launcher, way, shapes, result, clock, kernels):
                result = run(result, step)
                yield result
                if not result.right:
                    break


def exactly(trial: Trial) -> Trial:
    """The same trial for the launch of exact mode."""
    return replace(trial, op=replace(trial.op, launch=trial.op.launching(exact=True), smaller=None))


def with_smaller(trial: Trial) -> Trial:
    """The same trial for the launch with fewer threads in the largest threadgroups."""
    launch = trial.op.launching(exact=False, smaller=True)
    return replace(trial, op=replace(trial.op, launch=launch, smaller=None))


def comparisons(
    launcher: Launcher, trial: Trial, cases: Sequence[Case], modes: Sequence[bool], passed: str
) -> Iterator[Step]:
    """Compare all cases in all modes, exact or not. `passed`: the reason after the last one."""
    for exact in modes:
        way = exactly(trial) if exact else trial
        for case in cases:
            is_last = exact == modes[-1] and case is cases[-1]
            after = passed if is_last else UNCHECKED
            yield partial(compare_next, launcher, way, case, exact, after)


def compare_next(
    launcher: Launcher, trial: Trial, case: Case, bits: bool, passed: str, result: KernelResult
) -> KernelResult:
    """The result after one more case; its reason is `passed` if it is right."""
    found = compare(launcher, with_smaller(trial) if result.smaller else trial, case, bits=bits)
    if not found.right:
        return found
    error = max(found.error or 0.0, result.error or 0.0)
    return replace(found, error=error, reason=passed, smaller=found.smaller or result.smaller)


def compare(launcher: Launcher, trial: Trial, case: Case, *, bits: bool = False) -> KernelResult:
    """Compare one case. With `bits` one row must have the same bits as in a launch of its own.

    If the chip refuses so many threads in a threadgroup, the smaller launch is compared instead.
    """
    try:
        got = outputs(trial.op.launch(launcher, *case))
        alone: list[mx.array] = []
        if bits and trial.alone:
            alone = outputs(trial.op.launch(launcher, *trial.alone(*case)))
        mx.eval(got, alone)
    except Exception as error:  # after any error the kernel cannot be used
        log.info("the kernel of %s raised", trial.name, exc_info=True)  # the compiler's lines
        if trial.op.smaller is not None and str(error).startswith(TOO_MANY_THREADS):
            return replace(compare(launcher, with_smaller(trial), case, bits=bits), smaller=True)
        return KernelResult(trial.name, False, reason=f"raised {describe_error(error)}")
    try:
        return compare_outputs(trial, case, got, alone)
    except Exception as error:
        log.info("%s cannot be compared with its reference", trial.name, exc_info=True)
        reason = f"cannot be compared with its reference: {describe_error(error)}"
        return KernelResult(trial.name, False, reason=reason)


def compare_outputs(
    trial: Trial, case: Case, got: list[mx.array], alone: list[mx.array]
) -> KernelResult:
    """Compare a kernel's outputs with its reference's, and those of one row with `alone`, if any.

    Raises MLX's errors: the reference is computed here.
    """
    want = outputs((trial.expected or trial.op.reference)(*case))
    if [(x.shape, x.dtype) for x in got] != [(x.shape, x.dtype) for x in want]:
        return KernelResult(trial.name, False, reason="gives another shape or dtype")
    worst = 0.0
    for ours, theirs in zip(got, want, strict=True):
        error, allowed = error_and_tolerance(trial.comparable(ours), trial.comparable(theirs))
        if not error <= allowed:
            reason = describe_difference(error, theirs)
            return KernelResult(trial.name, False, error if allowed else None, reason=reason)
        worst = max(worst, error)
    if alone and not same_bits(trial, got[0], alone[0]):
        return KernelResult(trial.name, False, reason="gives a row other bits than that row alone")
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
    got = got.astype(mx.float32)
    want = want.astype(mx.float32)
    same = (got == want) | (mx.isnan(got) & mx.isnan(want))
    far = mx.where(same, 0.0, mx.abs(got - want) / mx.maximum(1, mx.abs(want)))
    return largest(mx.where(mx.isnan(far), mx.inf, far)), allowed


def largest(x: mx.array) -> float:
    element: Any = x.max().item()
    return float(element)


def describe_difference(error: float, want: mx.array) -> str:
    if not mx.issubdtype(want.dtype, mx.floating):
        return "decides otherwise than its reference"
    if error == float("inf"):
        return "gives what is no number"
    return f"differs from its reference by {error:.1g}"


def describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def timings(
    launcher: Launcher,
    trial: Trial,
    shapes: Shapes,
    known: KernelResult,
    clock: Clock,
    kernels: Kernels,
) -> Iterator[Step]:
    """Time a kernel at all sizes that are not `known`. `kernels`: those in use so far."""
    if trial.sizes is None:
        yield partial(measure_times, launcher, trial, trial.fitting(shapes)[-1], clock)
        return
    sizes = {timed.size for timed in known.sizes}
    for sized in trial.sizes(shapes):
        if sized.size not in sizes:
            sizes.add(sized.size)
            yield partial(measure_size, launcher, trial, sized, clock, kernels)
    yield partial(summed, trial)


def measure_times(
    launcher: Launcher, trial: Trial, case: Case, clock: Clock, result: KernelResult
) -> KernelResult:
    try:
        ours, ratio, _ = compare_times(launcher, trial, case, clock)
    except Exception as error:
        return replace(result, right=False, reason=f"raised {describe_error(error)}")
    return replace(result, seconds=ours, ratio=ratio, reason=describe_ratio(ratio))


def measure_size(
    launcher: Launcher,
    trial: Trial,
    sized: Sized,
    clock: Clock,
    kernels: Kernels,
    result: KernelResult,
) -> KernelResult:
    size, weight, case = sized
    try:
        timed = Timed(size, weight, *compare_times(launcher, trial, case, clock, kernels))
    except Exception as error:
        return replace(result, right=False, reason=f"raised {describe_error(error)}")
    return replace(result, sizes=(*result.sizes, timed))


def summed(trial: Trial, result: KernelResult) -> KernelResult:
    """The result after all sizes: means of the times, and the reason why the kernel is not used."""
    if not result.sizes:
        return replace(result, reason=NARROW)
    total = sum(timed.weight for timed in result.sizes)
    seconds = sum(timed.weight * timed.seconds for timed in result.sizes) / total
    ratio = sum(timed.weight * timed.ratio for timed in result.sizes) / total
    reason = "" if result.won else trial.slow or describe_ratio(ratio)
    return replace(result, seconds=seconds, ratio=ratio, reason=reason)


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
    cases: Iterable[Case] = trial.fitting(shapes)
    if trial.sizes is not None and not kernels.exact:
        cases = (*(sized.case for sized in trial.sizes(shapes)), *trial.untimed(shapes))
    for case in cases:
        if kernels.launches(trial.op, *case):
            yield outputs(kernels(trial.op, *case))


# Exact mode: whether rows of one pass have the same bits as rows of separate passes

PROMPT = EXACT_ROWS + 1  # tokens to read first: more rows than a verify pass may have


def check_exact(target: Target, name: str) -> None:
    """Raise DFlashError if two rows have other bits in one pass than in two.

    Logits and taps are compared, also those of the next step from either cache. `name`: the
    target's name in the message.
    """
    count = min(PROMPT, target.context_length - 3)
    *prompt, first, second, third = ((7919 * n + 13) % target.vocab_size for n in range(count + 3))
    together = TokenSequence(target, None)
    apart = TokenSequence(target, None)
    for sequence in (together, apart):
        sequence.read(prompt)
    joint = [*rows_of(step(together, first, second)), *rows_of(step(together, third))]
    separate = [row for token in (first, second, third) for row in rows_of(step(apart, token))]
    if not all(equal_bits(a, b) for a, b in zip(joint, separate, strict=True)):
        raise DFlashError(
            f"'{name}' cannot be exact here: it gives two tokens other bits in one pass than in "
            "two, so some operation of MLX depends on the number of rows.",
            hint="leave exact mode off (--exact), and report it with `dflash doctor --json`",
        )


def step(sequence: TokenSequence, *tokens: int) -> SequencePass:
    anchor, *others = tokens
    output = sequence.verify(anchor, mx.array(others, dtype=mx.int32))
    sequence.commit(tokens, output.taps, all_kept=True)
    return output


def rows_of(output: SequencePass) -> list[mx.array]:
    return [mx.concatenate([*row]) for row in zip(output.logits, output.taps[0], strict=True)]


def equal_bits(a: mx.array, b: mx.array) -> bool:
    unsigned = {2: mx.uint16, 4: mx.uint32}[a.dtype.size]
    return a.dtype == b.dtype and bool(mx.array_equal(a.view(unsigned), b.view(unsigned)))


def prove_and_keep(
    launcher: Launcher, shapes: Shapes, *, on_result: OnResult = lambda _: None, **options: Any
) -> tuple[KernelResult, ...]:
    """As `prove`; also writes each result to the file at once, in place of older ones.

    `STARTED` is written first, so that a kernel that crashes the process is off at the next start.
    """
    keep = Keeper(result_key(shapes), anew=True)

    def both(result: KernelResult) -> None:
        keep(result)
        on_result(result)

    return prove(launcher, shapes, on_result=both, **options)
