"""Runs Metal kernels on the CPU: the text MLX would give to Apple's compiler, thread by thread.

`run` and `check` are for tests of one kernel; `emulated` and `Emulator.launch` put emulated
kernels into a whole MLX program. What is not emulated is refused (`Refused`), never guessed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from .findings import Finding, KernelFault, Traffic, Work
from .launcher import Emulator, Record, emulated
from .lint import lint
from .source import Refused

__all__ = [
    "RUNS",
    "Emulator",
    "Finding",
    "KernelFault",
    "Outcome",
    "Record",
    "Refused",
    "Traffic",
    "Work",
    "check",
    "compare",
    "emulated",
    "run",
]


# What a kernel has to pass: orders of threads, contents of unset locals, sanitizers, race check.
RUNS = (
    ("plain", "forward"),
    ("plain", "reverse"),
    ("plain", "random:1"),
    ("pattern", "random:2"),
    ("zero", "reverse"),
    ("sanitize", "forward"),
    ("race", "forward"),
)


@dataclass(frozen=True)
class Outcome:
    outputs: tuple[mx.array, ...]
    records: tuple[Record, ...]
    findings: tuple[Finding, ...]

    @property
    def traffic(self) -> dict[str, Traffic]:
        return self.records[-1].traffic


def run(
    fn: Callable[..., Any],
    *arrays: mx.array,
    schedule: str = "forward",
    build: str = "plain",
    **options: Any,
) -> Outcome:
    """`fn(*arrays)` with its kernels emulated; findings are returned, not raised.

    `options` are fields of `Emulator`: `limit`, `shift`.
    """
    with emulated(build, schedule, strict=False, **options) as emulator:
        try:
            result = fn(*arrays)
            outputs = tuple(result) if isinstance(result, list | tuple) else (result,)
            mx.eval(outputs)
        except KernelFault as fault:
            found = [f for r in emulator.records for f in r.findings] or [fault.finding]
            return Outcome((), tuple(emulator.records), tuple(found))
    findings = tuple(f for r in emulator.records for f in r.findings)
    return Outcome(outputs, tuple(emulator.records), findings)


def check(
    fn: Callable[..., Any],
    reference: Callable[..., Any],
    *arrays: mx.array,
    rtol: float = 0.0,
    atol: float = 0.0,
    runs: Sequence[tuple[str, str]] = RUNS,
    **options: Any,
) -> Outcome:
    """Run `fn` by every (build, schedule) and hold each result to `reference(*arrays)`.

    Equal within `atol + rtol * |reference|`; both 0 mean bit for bit, NaN equal to NaN.
    `options` as of `run`. The lint has to be content too. Raises AssertionError that names the
    run. Returns the outcome of the last run: of RUNS the race check's, which counts traffic too.
    """
    wanted = reference(*arrays)
    wanted = tuple(wanted) if isinstance(wanted, list | tuple) else (wanted,)
    outcome = None
    for build, schedule in runs:
        outcome = run(fn, *arrays, schedule=schedule, build=build, **options)
        label = f"{build}, {schedule}"
        assert outcome.records, "no kernel ran"
        assert not outcome.findings, f"[{label}] " + "; ".join(map(str, outcome.findings[:4]))
        assert len(outcome.outputs) == len(wanted), label
        for i, (got, want) in enumerate(zip(outcome.outputs, wanted, strict=True)):
            compare(got, want, rtol, atol, f"[{label}] output {i}")
    assert outcome is not None
    for record in {r.launch.source: r for r in outcome.records}.values():
        complaints = lint(record.launch)
        assert not complaints, f"[lint] {record.launch.name} " + "; ".join(complaints[:4])
    return outcome


def compare(got: mx.array, want: mx.array, rtol: float, atol: float, label: str) -> None:
    """Raise AssertionError where two arrays differ by more than allowed."""
    assert got.shape == want.shape, f"{label}: shape {got.shape}, not {want.shape}"
    assert got.dtype == want.dtype, f"{label}: {got.dtype}, not {want.dtype}"
    floating = mx.issubdtype(got.dtype, mx.floating)
    g, w = (np.array(a.astype(mx.float32) if floating else a) for a in (got, want))
    if not floating:
        bad = g != w
    else:
        with np.errstate(invalid="ignore"):
            near = np.abs(g - w) <= atol + rtol * np.abs(w)
        bad = ~(near | (g == w) | (np.isnan(g) & np.isnan(w)))
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise AssertionError(
            f"{label}: {bad.sum()} of {bad.size} differ, {at}: {g[at]} not {w[at]}"
        )
