"""What operations move and dispatch, by rule.

- A view is free; strides are followed, so a reshape that strides cannot express is a copy.
- Any other operation reads its inputs once, each element of a view or a broadcast once, and writes
  its outputs. A slice update moves the update, because MLX writes in place where nobody else holds
  the array. A gather reads what it picks.
- A concatenation is one dispatch an input, as in MLX; a pad fills and copies.
- Kernels and products that take only dense inputs copy others first: one more dispatch each.
- A product with a quantised matrix reads it again for every few rows, `reads`; a mixture of experts
  reads an expert for each row that picked it, or once where rows are sorted by expert. What is read
  more than once is `again`. Caches of the chip, which may catch it, are not modelled. This
  package's product reads its matrix once for every tile of rows in its grid.
- Keys and values count once a dispatch, in MLX's attention and in this package's alike, though
  either reads them once for a few queries only.
- A sort of a long row merges in passes over it.

A count, not a time: nothing here says how fast a chip does it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, log2, prod

from .layout import Layout, layouts
from .trace import Array, Graph, Operation

FREE = frozenset("Transpose Slice Split StopGradient Broadcast View".split())
COPIES = frozenset(
    "Reshape Flatten Unflatten Squeeze ExpandDims Contiguous Copy Gather GatherAxis Concatenate "
    "AsType Pad Scatter ScatterAxis".split()
)
DENSE = frozenset("CustomKernel QuantizedMatmul GatherQMM GatedDelta".split())
SORTS = frozenset("Sort ArgSort Partition ArgPartition".split())
SORTED_AT_ONCE = 2048  # elements of a row
VECTOR_ROWS = 10  # of a product with a quantised matrix; the smallest limit of MLX's chips
TILE_ROWS = 32
LONG = 1024  # keys from which MLX's vector attention takes two dispatches


@dataclass(frozen=True, slots=True)
class Cost:
    """What one operation moves, in bytes: `again` is the part of `read` that is read repeatedly.

    `copied` are bytes of arrays `of` that are moved as they are.
    """

    op: Operation
    dispatches: int
    read: int
    written: int
    again: int = 0
    copied: int = 0
    of: tuple[str, ...] = ()


def costs(graph: Graph) -> list[Cost]:
    """The cost of every operation that is not free."""
    found = layouts(graph)
    return [cost for op in graph.operations for cost in cost_of(op, graph.arrays, found)]


def cost_of(
    op: Operation, arrays: Mapping[str, Array], found: Mapping[str, Layout]
) -> Iterator[Cost]:
    """The cost of an operation, after those of the copies that it needs of its inputs."""

    def nbytes(name: str) -> int:
        return found[name].elements * arrays[name].dtype.size

    out = sum(arrays[name].nbytes for name in op.outputs)
    if op.inputs and found[op.outputs[0]].base == found[op.inputs[0]].base:
        if op.name == "SliceUpdate":
            update = nbytes(op.inputs[1])
            yield Cost(op, 1, update, update)
        return
    if op.name in FREE:
        return
    if op.name in COPIES:
        of = tuple(found[name].base for name in op.inputs)
        if op.name in ("Gather", "GatherAxis"):
            index = sum(nbytes(name) for name in op.inputs[1:])
            yield Cost(op, 1, out + index, out, copied=out, of=of[:1])
            return
        count = {"Concatenate": len(op.inputs), "Pad": 2, "Scatter": 2, "ScatterAxis": 2}
        read = sum(nbytes(name) for name in op.inputs)
        yield Cost(op, count.get(op.name, 1), read, out, copied=out, of=of)
        return
    if op.name in DENSE:
        for name in op.inputs:
            if not found[name].contiguous:
                size = nbytes(name)
                yield Cost(op, 1, size, size, copied=size, of=(found[name].base,))
    read = sum(nbytes(name) for name in dict.fromkeys(op.inputs))
    again, dispatches = 0, 1
    if op.name in ("QuantizedMatmul", "Matmul", "AddMM"):
        again = (reads(op, arrays) - 1) * sum(nbytes(name) for name in weights_of(op))
    elif op.name in ("GatherQMM", "GatherMM"):
        size = sum(nbytes(name) for name in weights_of(op))
        picked, distinct, experts = picks(op, arrays)
        read -= size - size * distinct // experts
        again = size * (picked - distinct) // experts
    elif op.name == "CustomKernel" and "small_m_qmm" in op.arguments[0]:
        tiles = op.arguments[3]  # of rows, in the grid
        again = (tiles - 1) * sum(nbytes(name) for name in dict.fromkeys(op.inputs[1:]))
    elif op.name == "ScaledDotProductAttention":
        queries, keys = arrays[op.inputs[0]].shape, arrays[op.inputs[1]].shape
        dispatches = 2 if queries[2] <= 8 and keys[2] >= LONG else 1
    elif op.name in SORTS and arrays[op.inputs[0]].shape[-1] > SORTED_AT_ONCE:
        merges = ceil(log2(arrays[op.inputs[0]].shape[-1] / SORTED_AT_ONCE))
        again, dispatches = merges * read, 1 + 2 * merges
    yield Cost(op, dispatches, read + again, out, again)


def copies(graph: Graph, labels: frozenset[str], share: float = 0.5) -> list[Cost]:
    """Operations that move as it is more than this share of an input with one of these labels."""
    found = []
    for cost in costs(graph):
        sources = [name for name in cost.of if graph.inputs.get(name) in labels]
        if any(cost.copied > share * graph.arrays[name].nbytes for name in sources):
            found.append(cost)
    return found


def weights_of(op: Operation) -> tuple[str, ...]:
    """The inputs of a product that are its matrix: values, scales and biases."""
    match op.name:
        case "QuantizedMatmul":
            return op.inputs[1:]
        case "GatherQMM":
            return op.inputs[1:-2]
    return op.inputs[1:2]


def reads(op: Operation, arrays: Mapping[str, Array]) -> int:
    """How often a product of so many rows reads its matrix.

    MLX multiplies few rows with a quantised matrix one by one (`qmv`), many in tiles of rows.
    """
    shape, matrix = arrays[op.inputs[0]].shape, arrays[op.inputs[1]].shape
    rows = shape[-2] if prod(matrix[:-2]) > 1 else prod(shape[:-1])
    if op.name == "QuantizedMatmul" and rows < VECTOR_ROWS:
        return rows
    return ceil(rows / TILE_ROWS)


def picks(op: Operation, arrays: Mapping[str, Array]) -> tuple[int, int, int]:
    """How many experts a product reads, how many of them can differ, and how many there are."""
    experts, picked = arrays[op.inputs[1]].shape[0], arrays[op.inputs[-1]].size
    distinct = min(picked, experts)
    return (distinct if op.arguments[-1] is True else picked), distinct, experts
