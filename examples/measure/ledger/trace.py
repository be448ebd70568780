"""Traces the operations that MLX would run for a function, without computing anything.

`mx.export_function` passes every operation to a callback. It works on any machine, also with lazy
arrays of any size.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Array:
    """Shape and dtype of one array of a graph."""

    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.size


@dataclass(frozen=True, slots=True)
class Operation:
    """One primitive of MLX. `inputs` and `outputs` are keys of `Graph.arrays`."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations in an order in which they can run.

    `inputs`: the label of each input array. `constants`: arrays that existed before.
    """

    arrays: Mapping[str, Array]
    inputs: Mapping[str, str]
    constants: frozenset[str]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]

    def made_by(self) -> dict[str, Operation]:
        """The operation that computes each array; inputs and constants have none."""
        return {made: op for op in self.operations for made in op.outputs}

    def reached(self) -> "Graph":
        """The graph without operations that no output needs."""
        made_by = self.made_by()
        order: dict[int, Operation] = {}
        waiting = [made_by[out] for out in reversed(self.outputs) if out in made_by]
        while waiting:
            op = waiting[-1]
            before = [made_by[name] for name in op.inputs if name in made_by]
            before = [one for one in before if id(one) not in order]
            if before and id(op) not in order:
                waiting += before
                continue
            order.setdefault(id(waiting.pop()), op)
        operations = tuple(order.values())
        return Graph(self.arrays, self.inputs, self.constants, self.outputs, operations)


def trace(
    fn: Callable[..., Sequence[mx.array]], arrays: Sequence[mx.array], labels: Sequence[str] = ()
) -> Graph:
    """The operations of `fn(*arrays)`; `labels` name the arrays. ValueError if MLX cannot trace it.

    MLX inlines compiled functions and, on the CPU, `mx.fast`: see fold.py.
    """
    found: dict[str, Array] = {}
    operations: list[Operation] = []
    ends: dict[str, list[str]] = {"inputs": [], "outputs": [], "constants": []}

    def note(parts: Sequence[tuple[str, tuple[int, ...], mx.Dtype]]) -> tuple[str, ...]:
        found.update((name, Array(tuple(shape), dtype)) for name, shape, dtype in parts)
        return tuple(name for name, _, _ in parts)

    def record(event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "primitive":
            ins, outs = note(event["inputs"]), note(event["outputs"])
            operations.append(Operation(event["name"], ins, outs, tuple(event["arguments"])))
        elif kind == "constants":
            ends[kind] += note([(name, a.shape, a.dtype) for name, a in event[kind]])
        elif kind in ends:
            ends[kind] += note(event[kind])

    mx.export_function(record, fn, *arrays)
    named = labels or [str(number) for number in range(len(arrays))]
    inputs = dict(zip(ends["inputs"], named, strict=True))
    constants = frozenset(ends["constants"])
    return Graph(found, inputs, constants, tuple(ends["outputs"]), tuple(operations))
