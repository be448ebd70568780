"""The self-check: compares every kernel with its reference and with the time of stock MLX.

A kernel is not used if its results differ, if it raises, or if it is slower. `cases` has the inputs
of each operation, `results` the file that keeps the results.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.kernels.dispatch import EXACT_ROWS, Kernels
from dflash_mlx.kernels.source import Launcher
from dflash_mlx.models.packed import SequencePass
from dflash_mlx.models.target import Target
from dflash_mlx.types import Progress, silent

from .cases import TOLERANCE, Case, Sized
from .results import (
    NARROW,
    STARTED,
    STORE,
    UNTIMED,
    UNUSED,
    KernelResult,
    apply_results,
    result_key,
    write_results,
)
from .shapes import GENERIC, Shapes
from .timing import Clock, Timed, compare_times, describe_ratio
from .trials import TRIALS, Trial, outputs

TIME_BUDGET = 2.0  # seconds, at the start of a program
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
    which then only times it, or the remaining sizes. With `everything`, operations that the model
    does not use are compared too, at `GENERIC` shapes. `on_result` is called before each comparison
    and timing with the reason `STARTED`, and after it with the result. Returns one result for each
    operation that was checked.
    """
    began = clock()
    results = dict(known or {})
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
    # Operations that are timed at several sizes take longest, so they come last.
    for trial in sorted(tried, key=lambda trial: trial.sizes is not None):
        result = results.get(trial.name)
        if result is None or result.final or not tried[trial] or clock() - began >= budget:
            continue
        on_result(KernelResult(trial.name, False, reason=STARTED))
        if trial.sizes is not None and not shapes.exact:
            ends = began + budget
            result = measure_sizes(launcher, trial, trial.sizes(shapes), result, clock, ends)
        else:
            result = measure_times(launcher, trial, trial.fitting(shapes)[-1], result, clock)
        results[trial.name] = result
        on_result(results[trial.name])
    return tuple(results[trial.name] for trial in tried if trial.name in results)


def exactly(trial: Trial) -> Trial:
    """The same trial for the launch of exact mode."""
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
        except Exception as error:  # after any error the kernel cannot be used
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
    got = got.astype(mx.float32)
    want = want.astype(mx.float32)
    same = (got == want) | (mx.isnan(got) & mx.isnan(want))
    far = mx.where(same, 0.0, mx.abs(got - want) / mx.maximum(1, mx.abs(want)))
    return largest(mx.where(mx.isnan(far), mx.inf, far)), allowed


def largest(x: mx.array) -> float:
    element: Any = x.max().item()
    return float(element)


def describe_difference(error: float, want: mx.array) -> str:
    """The reason to show for a wrong output."""
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
    """The result with the time of the kernel at one case."""
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
    """The result with the times of the sizes that are not timed yet.

    Starts no further size after the time `ends` of the clock.
    """
    by_size = {timed.size: timed for timed in result.sizes}
    for size, weight, case in sizes:
        if size in by_size:
            continue
        if clock() >= ends:
            return replace(result, sizes=(*by_size.values(),))
        try:
            by_size[size] = Timed(size, weight, *compare_times(launcher, trial, case, clock))
        except Exception as error:
            return replace(result, right=False, reason=f"raised {describe_error(error)}")
    if not by_size:
        return replace(result, reason=NARROW)
    total = sum(timed.weight for timed in by_size.values())
    seconds = sum(timed.weight * timed.seconds for timed in by_size.values()) / total
    ratio = sum(timed.weight * timed.ratio for timed in by_size.values()) / total
    won = any(timed.won for timed in by_size.values())
    return replace(
        result,
        seconds=seconds,
        ratio=ratio,
        reason="" if won else describe_ratio(ratio),
        sizes=(*by_size.values(),),
    )


# Building the kernels that a pair uses, so that the first answer does not wait for it


def build(
    kernels: Kernels,
    shapes: Shapes,
    *,
    on_kernels: Progress = silent,
    trials: Sequence[Trial] = TRIALS,
) -> None:
    """Launch every kernel that is used at these shapes, so that MLX compiles it.

    `on_kernels` is called with the number of operations that are ready, and of all.
    """
    used = [trial for trial in trials if kernels.enables(trial.op) and trial.fitting(shapes)]
    for done, trial in enumerate(used):
        on_kernels(done, len(used))
        for arrays in launches(kernels, trial, shapes):
            mx.eval(arrays)
    on_kernels(len(used), len(used))
    mx.clear_cache()


def launches(kernels: Kernels, trial: Trial, shapes: Shapes) -> Iterator[list[mx.array]]:
    """The outputs of an operation's kernels for the cases at which they are used, unevaluated."""
    cases: Iterable[Case] = trial.fitting(shapes)
    if trial.sizes is not None and not kernels.exact:
        cases = (sized.case for sized in trial.sizes(shapes))
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
    """Read tokens in one pass, and commit them."""
    anchor, *others = tokens
    output = sequence.verify(anchor, mx.array(others, dtype=mx.int32))
    sequence.commit(tokens, output.taps, all_kept=True)
    return output


def rows_of(output: SequencePass) -> list[mx.array]:
    """Logits and taps of each row, joined."""
    return [mx.concatenate([*row]) for row in zip(output.logits, output.taps[0], strict=True)]


def equal_bits(a: mx.array, b: mx.array) -> bool:
    """Whether two arrays of floats have the same bits."""
    unsigned = {2: mx.uint16, 4: mx.uint32}[a.dtype.size]
    return a.dtype == b.dtype and bool(mx.array_equal(a.view(unsigned), b.view(unsigned)))


def proven(
    kernels: Kernels,
    shapes: Shapes,
    *,
    clock: Clock = time.perf_counter,
    trials: Sequence[Trial] = TRIALS,
    on_kernels: Progress = silent,
) -> Kernels:
    """Disable the kernels that are wrong or slow at these shapes on this machine.

    Results are read from the file; missing ones are determined now and written to it. `on_kernels`
    is called with the number of operations that were compared, and of all.
    """
    assert kernels.launcher is not None
    known = STORE.read().get(result_key(shapes), {})
    used = [trial.name for trial in trials if trial.fitting(shapes)]
    compared = set[str]()

    def report(result: KernelResult) -> None:
        on_kernels(len(compared), len(used))
        compared.add(result.name)

    if not all(name in known and known[name].final for name in used):
        options: dict[str, Any] = {"known": known, "clock": clock, "trials": trials}
        results = prove_and_keep(kernels.launcher, shapes, on_result=report, **options)
        known = {result.name: result for result in results}
    return apply_results(kernels, [known[name] for name in used])


def prove_and_keep(
    launcher: Launcher,
    shapes: Shapes,
    *,
    on_result: OnResult = lambda _: None,
    known: Mapping[str, KernelResult] | None = None,
    **options: Any,
) -> tuple[KernelResult, ...]:
    """As `prove`; also writes each result to the file at once.

    `STARTED` is written first, so that a kernel that crashes the process is off at the next start.
    An exception, such as Ctrl-C, empties the entry.
    """
    key = result_key(shapes)
    kept = write_results(key, anew=not known)

    def keep(result: KernelResult) -> None:
        if kept:  # else a warning was logged
            write_results(key, [result])
        on_result(result)

    try:
        return prove(launcher, shapes, on_result=keep, known=known, **options)
    except BaseException:
        if kept:
            write_results(key, anew=True)
        raise
