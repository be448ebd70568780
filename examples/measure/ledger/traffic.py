"""Counts what operations move and dispatch, by these rules.

- A view is free. Strides are followed: a reshape that strides cannot express is a copy.
- Any other operation reads each element of its inputs once and writes its outputs. A slice update
  moves only the update, because MLX writes in place if nothing else holds the array. A gather reads
  only the elements that it returns.
- A concatenation is one dispatch per input, as in MLX; a pad fills and copies.
- Kernels and products that need dense inputs first copy others, with one more dispatch each.
- A product with a quantised matrix reads the matrix once per few rows, see `reads`. A mixture of
  experts reads an expert for each row that chose it, or once if rows are sorted by expert. `again`
  counts the repeated reads. The chip's caches, which may serve them, are not modelled. The product
  of this package reads its matrix once for every tile of rows in its grid.
- Keys and values count once per dispatch, in MLX's attention and in this package's, although both
  read them once per few queries.
- A sort of a long row merges in several passes.

These are counts. They do not say how much time a chip needs.
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
SORTED_AT_ONCE = 2048  # elements of a row that MLX sorts in one pass
VECTOR_ROWS = (
    10  # from here on a quantised product works in tiles: MLX's smallest limit of all chips
)
TILE_ROWS = 32
LONG = 1024  # number of keys from which MLX's vector attention takes two dispatches


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one operation in bytes. `again`: the part of `read` that was already read.

    `copied`: bytes of the arrays `of` that are moved unchanged.
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
    """Yield the costs of copies of its inputs that an operation needs, then its own."""

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
        tiles = op.arguments[3]  # tiles of rows in the grid
        again = (tiles - 1) * sum(nbytes(name) for name in dict.fromkeys(op.inputs[1:]))
    elif op.name == "ScaledDotProductAttention":
        queries, keys = arrays[op.inputs[0]].shape, arrays[op.inputs[1]].shape
        dispatches = 2 if queries[2] <= 8 and keys[2] >= LONG else 1
    elif op.name in SORTS and arrays[op.inputs[0]].shape[-1] > SORTED_AT_ONCE:
        merges = ceil(log2(arrays[op.inputs[0]].shape[-1] / SORTED_AT_ONCE))
        again, dispatches = merges * read, 1 + 2 * merges
    yield Cost(op, dispatches, read + again, out, again)


def copies(graph: Graph, labels: frozenset[str], share: float = 0.5) -> list[Cost]:
    """Operations that copy more than `share` of an input with one of these labels."""
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
    """How often a product reads its matrix.

    MLX multiplies few rows with a quantised matrix one by one (`qmv`), more in tiles of rows.
    """
    shape, matrix = arrays[op.inputs[0]].shape, arrays[op.inputs[1]].shape
    rows = shape[-2] if prod(matrix[:-2]) > 1 else prod(shape[:-1])
    if op.name == "QuantizedMatmul" and rows < VECTOR_ROWS:
        return rows
    return ceil(rows / TILE_ROWS)


def picks(op: Operation, arrays: Mapping[str, Array]) -> tuple[int, int, int]:
    """The numbers of experts: reads of a product, different ones among them at most, and all."""
    experts, picked = arrays[op.inputs[1]].shape[0], arrays[op.inputs[-1]].size
    distinct = min(picked, experts)
    return (distinct if op.arguments[-1] is True else picked), distinct, experts
