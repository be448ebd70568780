"""The exact source and launch sizes of every `mx.fast.metal_kernel` call, without a Mac.

Inside `mx.export_function` MLX records a call of a Metal kernel instead of refusing it, and hands
the text it would give to Apple's compiler to a callback. Knows nothing of running that text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx


@dataclass(frozen=True)
class Spec:
    shape: tuple[int, ...]
    dtype: mx.Dtype


@dataclass(frozen=True)
class Launch:
    """One recorded call: sizes are threads, `source` is what Apple's compiler would get."""

    name: str
    source: str
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    row_contiguous: bool


def trace(fn: Callable[..., Any], *arrays: mx.array) -> list[Launch]:
    """Every kernel launch of `fn(*arrays)`, in order; nothing is executed."""
    found: list[Launch] = []

    def record(event: dict[str, Any]) -> None:
        if event["type"] == "primitive" and event["name"] == "CustomKernel":
            found.append(_launch(event))

    mx.export_function(record, fn, *arrays)
    return found


def _launch(event: dict[str, Any]) -> Launch:
    name, source, *sizes = event["arguments"][:8]
    _shape_infos, row_contiguous = event["arguments"][8:10]
    return Launch(
        name=name,
        source=source,
        grid=tuple(sizes[:3]),
        threadgroup=tuple(sizes[3:]),
        inputs=tuple(Spec(tuple(shape), dtype) for _, shape, dtype in event["inputs"]),
        outputs=tuple(Spec(tuple(shape), dtype) for _, shape, dtype in event["outputs"]),
        row_contiguous=row_contiguous,
    )
