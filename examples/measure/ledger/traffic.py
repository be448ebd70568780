"""Counts what operations move and dispatch, by these rules.

- A view is free. Strides are followed: a reshape that strides cannot express is a copy.
- Any other operation reads each element of its inputs once and writes its outputs. A slice update
  moves only the update, because MLX writes in place if nothing else holds the array. A gather reads
  only the elements that it returns.
- A concatenation is one dispatch per input, as in MLX; a pad fills and copies.
- Kernels and products that need dense inputs first copy others, with one more dispatch each; so
  do norms whose rows have gaps between them, and ropes of a part of a head.
- A product with a matrix reads it once per few rows, see products.py. A mixture of experts reads an
  expert for each row that chose it, or once if many rows are sorted by expert. `again` counts the
  repeated reads. The chip's caches, which may serve them, are not modelled. The product of this
  package reads its matrix once for every tile of rows in its grid, and its experts are read once
  for every few rows that chose them.
- A product in parts, and an attention that splits the keys, write the parts and read them again in
  a second dispatch. `parts` counts these bytes.
- Keys and values count once per dispatch, in MLX's attention and in this package's, although both
  read them once per few queries.
- A convolution's last inputs are kept for the next pass, by a copy that no trace shows.
- A sort of a long row merges in several passes.

These are counts. They do not say how much time a chip needs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, comb, log2, prod

from dflash_mlx.device import Chip
from dflash_mlx.kernels.grouped_experts import OP
from dflash_mlx.kernels.grouped_experts import ROWS as TILE

from .layout import Layout, layouts
from .products import ACCUMULATOR, NAMES, Product
from .trace import Array, Graph, Operation

FREE = frozenset("Transpose Slice Split StopGradient Broadcast View".split())
GATHERS = frozenset(("Gather", "GatherAxis"))
COPIES = GATHERS | frozenset(
    "Reshape Flatten Unflatten Squeeze ExpandDims Contiguous Copy Concatenate AsType Pad Scatter "
    "ScatterAxis".split()
)
DENSE = frozenset("CustomKernel QuantizedMatmul GatherQMM GatedDelta".split())
SORTS = frozenset("Sort ArgSort Partition ArgPartition".split())
SORTED_AT_ONCE = 2048  # elements of a row that MLX sorts in one pass
PAGE = 16_384  # bytes of a page, by which a buffer may be larger than what is kept of it
LONG = 1024  # keys from which MLX's vector attention splits them on a large chip
SORTED_PAIRS = 16  # pairs of rows and experts from which sorted ones share reads,
SHARED_PAIRS = 4  # if there are as many an expert
GROUPED = OP.name  # the kernel whose experts share reads
CHIP = Chip(16, "g")  # M4: that is counted for, unless told


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one operation in bytes. `again`: the part of `read` that was already read.

    `copied`: bytes of the arrays `of` that are moved unchanged. `parts`: bytes of partial results,
    which are written and read once more, and are in `read` and `written`.
    """

    op: Operation
    dispatches: int
    read: int
    written: int
    again: int = 0
    copied: int = 0
    of: tuple[str, ...] = ()
    parts: int = 0


def costs(graph: Graph, chip: Chip = CHIP) -> list[Cost]:
    """The cost of every operation that is not free."""
    found = layouts(graph)
    return [cost for op in graph.operations for cost in cost_of(op, graph.arrays, found, chip)]


def cost_of(
    op: Operation, arrays: Mapping[str, Array], found: Mapping[str, Layout], chip: Chip
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
        if op.name in GATHERS:
            index = sum(nbytes(name) for name in op.inputs[1:])
            yield Cost(op, 1, out + index, out, copied=out, of=of[:1])
            return
        count = {"Concatenate": len(op.inputs), "Pad": 2, "Scatter": 2, "ScatterAxis": 2}
        read = sum(nbytes(name) for name in op.inputs)
        yield Cost(op, count.get(op.name, 1), read, out, copied=out, of=of)
        return
    for name in copied_first(op, found):
        size = nbytes(name)
        yield Cost(op, 1, size, size, copied=size, of=(found[name].base,))
    read = sum(nbytes(name) for name in dict.fromkeys(op.inputs))
    again, dispatches, partial = 0, 1, 0
    if op.name in NAMES:
        product = Product.of(op, arrays)
        again = (product.reads(chip) - 1) * sum(nbytes(name) for name in weights_of(op))
        if partial := product.partial(chip):
            dispatches = 2
    elif is_mixture(op):
        size = sum(nbytes(name) for name in dict.fromkeys(weights_of(op)))
        picked, distinct, experts = picks(op, arrays)
        read -= size - round(size * distinct / experts)
        again = round(size * (picked - distinct) / experts)
    elif op.name == "CustomKernel" and "small_m_qmm" in op.arguments[0]:
        tiles = op.arguments[3]  # tiles of rows in the grid
        again = (tiles - 1) * sum(nbytes(name) for name in dict.fromkeys(op.inputs[1:]))
    elif op.name == "ScaledDotProductAttention":
        if count := splits(op, arrays, chip):
            queries = arrays[op.inputs[0]]
            partial = count * (queries.nbytes + 2 * ACCUMULATOR * prod(queries.shape[:3]))
            dispatches = 2
    elif op.name in SORTS and arrays[op.inputs[0]].shape[-1] > SORTED_AT_ONCE:
        merges = ceil(log2(arrays[op.inputs[0]].shape[-1] / SORTED_AT_ONCE))
        again, dispatches = merges * read, 1 + 2 * merges
    yield Cost(op, dispatches, read + again + partial, out + partial, again, parts=partial)
    if op.name == "Convolution":
        yield from kept(op, arrays)


def copied_first(op: Operation, found: Mapping[str, Layout]) -> tuple[str, ...]:
    """The inputs that an operation copies before it runs, because of their strides."""
    if op.name in DENSE:
        needed = op.inputs[:-2] if op.name == "GatherQMM" else op.inputs  # any indices will do
        return tuple(name for name in needed if not found[name].contiguous)
    first = found[op.inputs[0]] if op.inputs else None
    if first is None:
        return ()
    gaps = op.name == "RMSNorm" and not first.in_rows
    turned = op.name == "PartialRoPE" and first.shape[-2] > 1  # one row is turned in place
    return op.inputs[:1] if gaps or turned else ()


def kept(op: Operation, arrays: Mapping[str, Array]) -> Iterator[Cost]:
    """The copy of a convolution's last inputs, unless they are nearly all of them."""
    given, taps = arrays[op.inputs[0]], arrays[op.inputs[1]].shape[1]
    size = given.nbytes // given.shape[1] * (taps - 1)
    if ceil(given.nbytes / PAGE) * PAGE > size + PAGE:
        yield Cost(op, 1, size, size)


def splits(op: Operation, arrays: Mapping[str, Array], chip: Chip) -> int:
    """In how many parts MLX's vector attention splits the keys; 0 if it does not."""
    (_, heads, rows, _), (_, shared, keys, _) = (arrays[name].shape for name in op.inputs[:2])
    products, large = rows * heads // shared, chip.size in "sd"
    if rows > 8 or not ((large and keys >= LONG) or (heads > shared and keys >= 4 * LONG)):
        return 0
    if chip.size == "g":
        return 64 if products >= 4 else 32
    if chip.size == "s":
        if keys <= LONG or products <= 4:
            return 64
        return 128 if keys <= 8192 else 256 if keys <= 32_768 else 512 if keys <= 65_536 else 1024
    if products <= 2:
        return 256 if keys > 8192 else 128
    return 128 if products < 6 or keys < 16_384 else 512 if keys < 65_536 else 1024


def least(graph: Graph) -> int:
    """Bytes that a pass must read and write: its inputs once, and its results once.

    Of a table only the rows that are looked up; of experts as many as the rows choose on average.
    Intermediate results do not count: a chip with enough memory would not move them.
    """
    arrays, found = graph.arrays, layouts(graph)
    read: dict[str, int] = {}
    written = 0
    for op in graph.operations:
        if op.name in FREE:
            continue
        sizes = {name: found[name].elements * arrays[name].dtype.size for name in op.inputs}
        if op.name in GATHERS:
            sizes[op.inputs[0]] = arrays[op.outputs[0]].nbytes
        elif op.name == "SliceUpdate":
            sizes[op.inputs[0]] = 0
            written += sizes[op.inputs[1]]
        elif is_mixture(op):
            _, distinct, experts = picks(op, arrays)
            for name in weights_of(op):
                sizes[name] = round(sizes[name] * distinct / experts)
        for name, size in sizes.items():
            base = found[name].base
            if base in graph.inputs:
                read[base] = max(read.get(base, 0), size)
    own = {found[name].base: arrays[name].nbytes for name in graph.outputs}
    written += sum(size for base, size in own.items() if base not in graph.inputs)
    return sum(read.values()) + written


def weights_of(op: Operation) -> tuple[str, ...]:
    """The inputs of a product that are its matrix: values, scales and biases."""
    match op.name:
        case "QuantizedMatmul":
            return op.inputs[1:]
        case "GatherQMM":
            return op.inputs[1:-2]
        case "CustomKernel":
            return op.inputs[2:]
    return op.inputs[1:2]


def is_mixture(op: Operation) -> bool:
    """Whether an operation multiplies rows by the experts that they chose."""
    ours = op.name == "CustomKernel" and GROUPED in op.arguments[0]
    return ours or op.name in ("GatherQMM", "GatherMM")


def picks(op: Operation, arrays: Mapping[str, Array]) -> tuple[float, float, int]:
    """The numbers of experts: reads of a product, different ones that are expected, and all.

    Every choice counts as equally likely. Pairs in the order of experts are of unknown rows, and
    count as one choice each. This package's kernel reads an expert once for every `TILE` rows.
    """
    if op.name == "CustomKernel":
        pairs, experts = op.arguments[3], arrays[op.inputs[2]].shape[0]
        shape = arrays[op.inputs[1]].shape
        rows = shape[0] if len(shape) > 1 else 1  # few indices are padded: those of a row
        chance = pairs / rows / experts
        return experts * tiles(rows, chance), experts * (1 - (1 - chance) ** rows), experts
    experts, indices = arrays[op.inputs[1]].shape[0], arrays[op.inputs[-1]]
    taken = indices.shape[-1] if len(indices.shape) > 1 else 1
    distinct = experts * (1 - (1 - taken / experts) ** (indices.size / taken))
    ordered = op.arguments[-1] is True and indices.size >= SORTED_PAIRS
    shared = ordered and indices.size // experts >= SHARED_PAIRS
    return (distinct if shared else indices.size), distinct, experts


def tiles(rows: int, chance: float) -> float:
    """How often `TILE` rows begin on average, if each of `rows` is one of them by this chance."""
    shares = [comb(rows, n) * chance**n * (1 - chance) ** (rows - n) for n in range(rows + 1)]
    return sum(share * ceil(n / TILE) for n, share in enumerate(shares))
