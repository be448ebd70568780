"""This package's kernels in the emulator, as they are and with planted faults."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np

from dflash_mlx.kernels import (
    gated_delta_inputs,
    gated_delta_replay,
    gated_delta_tape,
    gated_delta_tree,
    grouped_experts,
    selector_walk,
    small_m_qmm,
    verify_accept,
    verify_accept_sample,
    verify_attention,
)
from dflash_mlx.kernels.dispatch import Op
from dflash_mlx.kernels.source import MetalLauncher, Source

from . import emulator
from .emulator import Outcome, compare

Edit = tuple[str, str]
# One for each operation that has kernels.
MODULES: tuple[ModuleType, ...] = (
    gated_delta_inputs,
    gated_delta_tape,
    gated_delta_replay,
    gated_delta_tree,
    grouped_experts,
    selector_walk,
    small_m_qmm,
    verify_accept,
    verify_accept_sample,
    verify_attention,
)
# As the emulator's, for operations whose arguments are not all arrays.
run: Callable[..., Outcome] = emulator.run
check: Callable[..., Outcome] = emulator.check
# Cheap ones first: most faults show at once.
RUNS = [("plain", "forward"), ("plain", "reverse"), ("race", "forward"), ("sanitize", "forward")]


@dataclass(frozen=True)
class Edited(Source):
    """A source with one text of its header or body replaced."""

    edit: Edit = ("", "")

    @property
    def body(self) -> str:
        return super().body.replace(*self.edit)

    @property
    def header(self) -> str:
        return super().header.replace(*self.edit)


class Faulty(MetalLauncher):
    """The launcher of a Mac that plants a fault; `found` says how often its place was there.

    It does so kernel by kernel: those of an operation may share a header.
    """

    def __init__(self, edit: Edit):
        super().__init__()
        self.edit = edit
        self.found: dict[str, int] = {}

    def __call__(self, source: Source, *args: Any, **call: Any) -> list[mx.array]:
        self.found[source.name] = (source.header + source.body).count(self.edit[0])
        names = source.name, source.inputs, source.outputs, source.headers
        return super().__call__(Edited(*names, self.edit), *args, **call)


def through(op: Op, edit: Edit | None = None, **options: Any) -> Callable[..., Any]:
    """What `emulator.check` and `run` take: the operation's launch, emulated."""

    def fn(*arrays: Any) -> Any:
        launcher = Faulty(edit) if edit else MetalLauncher()
        result = op.launch(launcher, *arrays, **options)
        if isinstance(launcher, Faulty):
            found = set(launcher.found.values())
            assert found <= {0, 1}, f"{edit} stands in the texts {found} times"
        return result

    return fn


def caught(
    op: Op,
    edit: Edit,
    cases: Sequence[Sequence[Any]],
    tolerance: float,
    runs: Sequence[tuple[str, str]] = RUNS,
    wanted: Sequence[Any] | None = None,
    **options: Any,
) -> str | None:
    """What the first run that shows the planted fault shows, or None. It has to compile.

    `wanted`: what the reference gives for each case, if that is known.
    """
    wanted = wanted or [op.reference(*case) for case in cases]
    for build, schedule in runs:
        for case, want in zip(cases, wanted, strict=True):
            label = f"{build}, {schedule}"
            outcome = run(through(op, edit, **options), *case, build=build, schedule=schedule)
            if outcome.findings:
                return f"{label}: {outcome.findings[0].kind}"
            try:
                for got, w in zip(outcome.outputs, _tuple(want), strict=True):
                    compare(got, w, tolerance, tolerance, label)
            except AssertionError:
                return f"{label}: wrong numbers"
    return None


def same_bits(a: mx.array, b: mx.array) -> bool:
    words = {2: mx.uint16, 4: mx.uint32}[a.dtype.size]
    return a.dtype == b.dtype and np.array_equal(np.array(a.view(words)), np.array(b.view(words)))


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
