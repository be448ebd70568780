"""Traces the operations that MLX would run for a function, without running them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx


@dataclass(frozen=True)
class Operation:
    """One primitive: its name, then shape and dtype of each input and output."""

    name: str
    inputs: tuple[tuple[tuple[int, ...], mx.Dtype], ...]
    outputs: tuple[tuple[tuple[int, ...], mx.Dtype], ...]


def operations(fn: Callable[..., Any], *arrays: mx.array) -> list[Operation]:
    """The primitives of `fn(*arrays)` in the order in which MLX would run them."""
    found: list[Operation] = []

    def record(event: dict[str, Any]) -> None:
        if event["type"] == "primitive":
            sides = [
                tuple((tuple(shape), dtype) for _, shape, dtype in event[side])
                for side in ("inputs", "outputs")
            ]
            found.append(Operation(event["name"], *sides))

    mx.export_function(record, fn, *arrays)
    return found
