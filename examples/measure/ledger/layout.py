"""Memory layouts of arrays: tells views, which share another array's memory, from copies.

Follows MLX's own views: an operation is free if strides alone can express it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from .trace import Array, Graph, Operation

RESHAPES = frozenset("Reshape Flatten Unflatten Squeeze ExpandDims".split())
VECTOR_ROWS = 8  # the most rows of MLX's vector attention


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape and strides, in elements, of an array in the memory of array `base`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    base: str

    @classmethod
    def dense(cls, name: str, shape: tuple[int, ...]) -> "Layout":
        """The layout of a row-contiguous array in its own memory."""
        return cls(shape, dense_strides(shape), name)

    @property
    def elements(self) -> int:
        """The number of different elements; a broadcast element counts once."""
        sides = zip(self.shape, self.strides, strict=True)
        return prod(side for side, stride in sides if stride or side == 0)

    @property
    def contiguous(self) -> bool:
        """Whether the array is row-contiguous."""
        sides = zip(self.shape, self.strides, dense_strides(self.shape), strict=True)
        return all(side == 1 or stride == dense for side, stride, dense in sides)

    @property
    def in_rows(self) -> bool:
        """Whether rows of the last axis lie one behind another, and nothing lies between them."""
        sides = zip(self.shape, self.strides, strict=True)
        following = 1
        for step, side in sorted((step, side) for side, step in sides if side > 1):
            if step != following:
                return False
            following *= side
        last = self.strides[-1] == 1 or self.shape[-1] == 1
        return last and (self.shape[-2] == 1 or self.strides[-2] == self.shape[-1])


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[place + 1 :]) for place in range(len(shape)))


def reshaped(layout: Layout, shape: tuple[int, ...]) -> Layout | None:
    """The layout in another shape; None if strides cannot express it."""
    old = [
        (side, step) for side, step in zip(layout.shape, layout.strides, strict=True) if side != 1
    ]
    merged: list[tuple[int, int]] = []
    for side, step in old:
        if merged and merged[-1][1] == side * step:
            merged[-1] = merged[-1][0] * side, step
        else:
            merged.append((side, step))
    strides: list[int] = []
    for side in reversed(shape):
        if side == 1:
            strides.append(1)
            continue
        if not merged or merged[-1][0] % side:
            return None
        left, step = merged.pop()
        strides.append(step)
        if left != side:
            merged.append((left // side, step * side))
    return Layout(shape, tuple(reversed(strides)), layout.base)


def views(op: Operation, source: Layout, arrays: Mapping[str, Array]) -> list[Layout] | None:
    """The outputs of an operation as views of its first input; None if they are no views."""
    shapes = [arrays[name].shape for name in op.outputs]
    strides, base = source.strides, source.base
    match op.name:
        case "Transpose":
            return [Layout(shapes[0], tuple(strides[axis] for axis in op.arguments[0]), base)]
        case "Slice":
            steps = zip(strides, op.arguments[2], strict=True)
            return [Layout(shapes[0], tuple(stride * step for stride, step in steps), base)]
        case "Split":
            return [Layout(shape, strides, base) for shape in shapes]
        case "StopGradient":
            return [source]
        case "Broadcast":
            return [broadcast(source, shapes[0])]
        case "View" if source.contiguous:
            return [Layout.dense(base, shapes[0])]
        case "Contiguous" if source.contiguous:
            return [source]
        case name if name in RESHAPES:
            found = reshaped(source, shapes[0])
            return None if found is None else [found]
    return None


def broadcast(source: Layout, shape: tuple[int, ...]) -> Layout:
    """A layout broadcast to a shape."""
    more = len(shape) - len(source.shape)
    old = (*(1,) * more, *source.shape)
    strides = (*(0,) * more, *source.strides)
    wide = zip(shape, old, strides, strict=True)
    return Layout(shape, tuple(0 if side != was else step for side, was, step in wide), source.base)


def attended(name: str, shape: tuple[int, ...]) -> Layout:
    """What MLX's attention writes: heads by rows; but the kernel of many rows rows by heads."""
    _, heads, rows, size = shape
    if rows <= VECTOR_ROWS:
        return Layout.dense(name, shape)
    return Layout(shape, (heads * rows * size, size, heads * size, 1), name)


def layouts(graph: Graph) -> dict[str, Layout]:
    """The layout of every array. A slice update reuses the memory that it updates."""
    names = (*graph.inputs, *graph.constants)
    found = {name: Layout.dense(name, graph.arrays[name].shape) for name in names}
    for op in graph.operations:
        made = views(op, found[op.inputs[0]], graph.arrays) if op.inputs else None
        if op.name == "SliceUpdate":
            made = [found[op.inputs[0]]]
        if op.name == "ScaledDotProductAttention":
            made = [attended(op.outputs[0], graph.arrays[op.outputs[0]].shape)]
        if made is None:
            made = [Layout.dense(name, graph.arrays[name].shape) for name in op.outputs]
        found.update(zip(op.outputs, made, strict=True))
    return found
