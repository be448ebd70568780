"""Seconds of passes on a chip, at any depth, with the kernels that win the package's own race.

Unlike a forecast, this covers the package's kernels and the arithmetic of attention. A product of
few rows is stock MLX's, ours, or one with rows of zeros, whichever wins at the rows that the
self-check times; so is attention. All other kernels are the package's where it has one. Rates are
shares of a chip's FLOPs. Nothing here was measured by this project.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from dflash_mlx.kernels import row_limits, small_m_qmm
from dflash_mlx.kernels.verify_attention import FEW_ROWS, NEAR, TEAM_ROWS
from dflash_mlx.selfcheck.cases import FAR
from dflash_mlx.selfcheck.shapes import CONTEXT
from dflash_mlx.selfcheck.timing import MAX_TIME_RATIO

from .forecast import Chip, fitted, sheet
from .layout import Layout, layouts
from .products import device_chip, is_linear, is_quantised, rows_of, sides
from .tally import MATRIX, VECTOR, Work, work_of
from .trace import Array, Graph, Operation
from .traffic import Cost, cost_of

# Kinds of work besides those of tally.py, and the share of a chip's FLOPs that each gets: the
# middle of what mlx-dspark measured on an M4 Pro, with MLX's kernels and with its own, which have
# nearly the design of ours.
OURS = "ours"  # 17408 x 5120 in 4 bits, 5 to 16 rows: 0.313 to 0.533 ms
KEYS_VECTOR = "attention of few rows"  # 32 heads of 128, 8 rows, 32k keys: 3.05 ms
KEYS_MATRIX = "attention in tiles"  # the same with 16 rows 4.7 ms; 24 of 256: 7.5 and 8.0 ms
KEYS_OURS = "our attention"  # 0.96 and 2.0 ms; 24 heads of 256: 1.56 and 3.3 ms
SHARES = {OURS: 0.575, KEYS_VECTOR: 0.164, KEYS_MATRIX: 0.425, KEYS_OURS: 0.5}
QUERY_TILE = 32  # rows of queries that MLX's attention in tiles computes at once
PRODUCTS = ("QuantizedMatmul", "Matmul", "AddMM")
PAD_DISPATCHES = 2  # of zeros below some rows
Kernel = tuple[int, Work]  # dispatches, and the work of one operation


class Clock:
    """The seconds of kernels on one chip."""

    def __init__(self, chip: Chip):
        self.chip = chip
        flops = 1e12 * sheet()["chips"][chip.name]["tflops"]
        self._rates = {kind: share * flops for kind, share in SHARES.items()}
        self._rates |= {VECTOR: fitted().vector * flops, MATRIX: fitted().matrix * flops}

    def seconds(self, dispatches: float, kind: str, moved: float, flops: float) -> float:
        """Seconds of a kernel: its dispatches, and the longer of its bytes' and its product's."""
        rate = self._rates.get(kind)
        busy = max(moved / self.chip.bandwidth, flops / rate if rate else 0.0)
        return self.chip.dispatch * dispatches + busy

    def of(self, kernel: Kernel) -> float:
        """Seconds of a kernel."""
        dispatches, work = kernel
        return self.seconds(dispatches, work.kind, work.moved, work.flops)


@dataclass(frozen=True, slots=True)
class Line:
    """A kernel at two depths of context."""

    dispatches: int
    kind: str
    moved: tuple[int, int]
    flops: tuple[int, int]


@dataclass(frozen=True)
class Pass:
    """How many kernels of each a pass has, at two `depths`; elsewhere in proportion."""

    depths: tuple[int, int]
    lines: Counter[Line]

    def seconds(self, clock: Clock, depth: int) -> float:
        """Seconds on the GPU after `depth` tokens."""
        near, far = self.depths
        share = (depth - near) / (far - near)

        def at(ends: tuple[int, int]) -> float:
            return max(0.0, ends[0] + share * (ends[1] - ends[0]))

        return sum(
            count * clock.seconds(line.dispatches, line.kind, at(line.moved), at(line.flops))
            for line, count in self.lines.items()
        )

    @property
    def dispatches(self) -> int:
        """All dispatches."""
        return sum(count * line.dispatches for line, count in self.lines.items())

    def with_layers(self, longer: "Pass", layers: float) -> "Pass":
        """The pass of a model that has `layers` times the layers that `longer` has more."""
        found = Counter(self.lines)
        for line in {*self.lines, *longer.lines}:
            found[line] += round(layers * (longer.lines[line] - self.lines[line]))
        return Pass(self.depths, +found)


def raced(near: Graph, far: Graph, depths: tuple[int, int], clock: Clock, columns: int = 0) -> Pass:
    """The pass of two traces, with the products that win the race.

    `columns`: of the only products that are raced, as a drafter runs those of its target's head; 0
    for all.
    """
    lines: Counter[Line] = Counter()
    ends = zip(kernels(near, clock, columns), kernels(far, clock, columns), strict=True)
    for (dispatches, one), (_, two) in ends:
        assert one.kind == two.kind
        lines[Line(dispatches, one.kind, (one.moved, two.moved), (one.flops, two.flops))] += 1
    return Pass(depths, lines)


def kernels(graph: Graph, clock: Clock, columns: int) -> Iterable[Kernel]:
    """The kernels of a graph, in its order."""
    found = layouts(graph)
    for op in graph.operations:
        costs = list(cost_of(op, graph.arrays, found, clock.chip.gpu))
        if not costs:
            continue
        if is_few_rows(op, graph) and columns in (0, sides(op, graph.arrays)[1]):
            yield from (
                (cost.dispatches, work_of(cost, graph, clock.chip.gpu)) for cost in costs[:-1]
            )
            yield winner(Product.of(op, graph, found), rows_of(op, graph.arrays), clock)
            continue
        for cost in costs:
            yield cost.dispatches, attention_of(cost, graph) or work_of(cost, graph, clock.chip.gpu)


def is_few_rows(op: Operation, graph: Graph) -> bool:
    """Whether the self-check times products like this one: few rows, not too narrow a matrix."""
    if not is_quantised(op) and not is_linear(op, graph.arrays):
        return False
    few = 1 < rows_of(op, graph.arrays) <= small_m_qmm.BUCKETS[-1]
    return few and sides(op, graph.arrays)[1] >= small_m_qmm.LEAST_COLUMNS


@dataclass(frozen=True, slots=True)
class Product:
    """A product with a matrix: its operation, shapes and memory layouts without the rows."""

    op: Operation
    weights: tuple[tuple[Array, Layout], ...]
    inputs: Array
    outputs: Array

    @classmethod
    def of(cls, op: Operation, graph: Graph, found: dict[str, Layout]) -> "Product":
        """The same for all products of one size."""
        names = {name: str(place) for place, name in enumerate((*op.inputs, *op.outputs))}
        ends = (tuple(names[name] for name in some) for some in (op.inputs, op.outputs))
        alike = Operation(op.name, *ends)
        weights = tuple(
            (graph.arrays[name], replace(found[name], base=names[name])) for name in op.inputs[1:]
        )
        x, out = (graph.arrays[name] for name in (op.inputs[0], op.outputs[0]))
        return cls(alike, weights, wide(x, 1), wide(out, 1))

    def stock(self, rows: int, clock: Clock) -> Kernel:
        """MLX's own product of so many rows."""
        cost, work = self._counted(rows, clock)
        return cost.dispatches, work

    def ours(self, rows: int, clock: Clock) -> Kernel:
        """Our product, which computes 2, 4, 8 or 16 rows and has no parts."""
        vectors = rows <= small_m_qmm.VECTORS.rows[-1]
        body = small_m_qmm.VECTORS if vectors else small_m_qmm.MATRICES
        count = next(count for count in body.rows if count >= rows)
        cost, _ = self._counted(rows, clock)
        moved = cost.read - cost.again + cost.written - 2 * cost.parts
        flops = 2 * count * self.inputs.shape[-1] * self.outputs.shape[-1]
        return 1, Work(VECTOR if vectors else OURS, moved, flops)

    def padding(self, clock: Clock) -> row_limits.Padding | None:
        """The rows of zeros that the self-check tries."""
        mode = "affine" if is_quantised(self.op) else ""
        chip = device_chip(clock.chip.gpu)
        return row_limits.padding(chip, self.outputs.shape[-1], self.inputs.shape[-1], mode)

    def _counted(self, rows: int, clock: Clock) -> tuple[Cost, Work]:
        """The cost of MLX's product, and its work."""
        op, gpu = self.op, clock.chip.gpu
        x, out = wide(self.inputs, rows), wide(self.outputs, rows)
        arrays = {op.inputs[0]: x, op.outputs[0]: out}
        found = {name: Layout.dense(name, array.shape) for name, array in arrays.items()}
        for name, (array, layout) in zip(op.inputs[1:], self.weights, strict=True):
            arrays[name], found[name] = array, layout
        cost = list(cost_of(op, arrays, found, gpu))[-1]
        return cost, work_of(cost, Graph(arrays, {}, frozenset(), (), (op,)), gpu)


def wide(array: Array, rows: int) -> Array:
    """Rows of the same length."""
    return Array((1, rows, array.shape[-1]), array.dtype)


@cache
def winner(product: Product, rows: int, clock: Clock) -> Kernel:
    """The kernel that the package runs for so many rows, as `multiply` in models/linear.py."""
    padding = product.padding(clock)
    if padding and padding.least <= rows < padding.width:
        padded = padded_of(product, padding, clock)
        rival = unpadded(product, padding.least, clock)
        if clock.of(padded) * MAX_TIME_RATIO <= clock.of(rival):
            return padded
    return unpadded(product, rows, clock)


def unpadded(product: Product, rows: int, clock: Clock) -> Kernel:
    """Ours where it won with the most rows of its bucket, or MLX's."""
    most = next(most for most in small_m_qmm.BUCKETS if rows <= most)
    ours, stock = product.ours(most, clock), product.stock(most, clock)
    if clock.of(ours) <= MAX_TIME_RATIO * clock.of(stock):
        return product.ours(rows, clock)
    return product.stock(rows, clock)


def padded_of(product: Product, padding: row_limits.Padding, clock: Clock) -> Kernel:
    """MLX's product with rows of zeros."""
    dispatches, work = product.stock(padding.width, clock)
    return dispatches + PAD_DISPATCHES, work


def attention_of(cost: Cost, graph: Graph) -> Work | None:
    """The work of an operation of attention, with the rows that it computes in vain; else None."""
    op, moved = cost.op, cost.read + cost.written
    if op.name in PRODUCTS and not cost.copied and not is_quantised(op):
        if is_linear(op, graph.arrays):
            return None
        rows, size = rows_of(op, graph.arrays), graph.arrays[op.outputs[0]].size
        inputs, _ = sides(op, graph.arrays)
        tiles = ceil(rows / QUERY_TILE) * QUERY_TILE if rows > 1 else rows
        return Work(KEYS_MATRIX, moved, 2 * size // rows * tiles * inputs)
    ours = op.name == "CustomKernel" and "attention" in op.arguments[0] and not combines(op)
    if op.name != "ScaledDotProductAttention" and not ours:
        return None
    (heads, rows, dim), (groups, keys, _) = (
        graph.arrays[name].shape[-3:] for name in op.inputs[:2]
    )
    if ours:
        packed = ceil(heads // groups * rows / TEAM_ROWS) * TEAM_ROWS
        return Work(KEYS_OURS, moved, 4 * groups * packed * keys * dim)
    if rows <= FEW_ROWS:
        return Work(KEYS_VECTOR, moved, 4 * heads * rows * keys * dim)
    tiles = ceil(rows / QUERY_TILE) * QUERY_TILE
    return Work(KEYS_MATRIX, moved, 4 * heads * tiles * keys * dim)


def combines(op: Operation) -> bool:
    """Whether a kernel of ours only joins parts of attention."""
    return "combine" in op.arguments[0]


def chosen(stock: Pass, ours: Pass, clock: Clock, depth: int) -> Pass:
    """The pass with the attention that won at the depth that the self-check times."""
    timed = CONTEXT if depth <= NEAR else FAR
    wins = ours.seconds(clock, timed) <= stock.seconds(clock, timed)
    return ours if wins else stock


def seconds_at(passes: Sequence[Pass], clock: Clock, depth: int) -> float:
    """Seconds of the winner of a pass with MLX's attention and one with ours."""
    return chosen(passes[0], passes[-1], clock, depth).seconds(clock, depth)
