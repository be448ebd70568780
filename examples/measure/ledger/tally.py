"""What a pass is to a chip: how many kernels do each work.

By MLX's own kernels, or with those of this package that win the race which its self-check runs: a
product of few rows is MLX's, ours, or one with rows of zeros, whichever wins at the rows that the
self-check times. The race also counts the arithmetic of attention.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from dflash_mlx import device
from dflash_mlx.kernels import row_limits, small_m_qmm
from dflash_mlx.kernels.verify_attention import FEW_ROWS, TEAM_ROWS
from dflash_mlx.selfcheck.trials import MAX_RATIO

from .chips import KEYS_MATRIX, KEYS_OURS, KEYS_VECTOR, MOVE, OURS, VECTOR, Chip, Work
from .layout import layouts
from .products import NAMES, Product
from .trace import Graph
from .traffic import Cost, cost_of, costs

EXPERTS = ("GatherQMM", "GatherMM")
QUERY_TILE = 32  # rows of queries that MLX's attention in tiles computes at once
PAD_DISPATCHES = 2  # of zeros below some rows
Kernel = tuple[int, Work]  # dispatches, and the work of one operation


@dataclass(frozen=True, slots=True)
class Tally:
    """The dispatches of a pass, and how many kernels do each work; `moved` by those without a
    product.
    """

    dispatches: int
    moved: int
    works: Counter[Work]

    def seconds(self, chip: Chip) -> float:
        """Seconds of the pass on the GPU."""
        products = sum(count * chip.seconds(0, work) for work, count in self.works.items())
        return chip.seconds(self.dispatches, Work(MOVE, self.moved)) + products

    def stretched(self, longer: "Tally", repeats: float) -> "Tally":
        """The tally of a pass with `repeats` more of what `longer` has more."""

        def more(one: int, two: int) -> int:
            return round(one + repeats * (two - one))

        works = {
            work: more(self.works[work], longer.works[work]) for work in self.works | longer.works
        }
        return Tally(
            more(self.dispatches, longer.dispatches), more(self.moved, longer.moved), Counter(works)
        )


def tally(graph: Graph, chip: Chip) -> Tally:
    """Count a pass with the kernels that its graph has, and MLX's own products."""
    gpu = chip.gpu
    return summed((cost.dispatches, work_of(cost, graph, gpu)) for cost in costs(graph, gpu))


def raced(graph: Graph, chip: Chip, columns: int = 0) -> Tally:
    """Count a pass with the products that win the race, and with the arithmetic of attention.

    `columns`: of the only products that are raced, as a drafter runs those of its target's head; 0
    for all.
    """
    return summed(raced_kernels(graph, chip, columns))


def summed(kernels: Iterable[Kernel]) -> Tally:
    """The tally of these kernels."""
    dispatches, moved = 0, 0
    works: Counter[Work] = Counter()
    for count, work in kernels:
        dispatches += count
        if work.kind == MOVE:
            moved += work.moved
        else:
            works[work] += 1
    return Tally(dispatches, moved, works)


def work_of(cost: Cost, graph: Graph, gpu: device.Chip) -> Work:
    """The work of one operation. Rows that share no read of a matrix or of an expert find it in the
    chip's cache, so it counts once.
    """
    op, arrays = cost.op, graph.arrays
    if cost.copied or not op.inputs or op.name not in (*NAMES, *EXPERTS):
        return Work(MOVE, cost.read + cost.written)
    once, size = cost.read - cost.again + cost.written, arrays[op.outputs[0]].size
    if op.name in EXPERTS:
        return Work(VECTOR, once, 2 * size * arrays[op.inputs[0]].shape[-1])
    product = Product.of(op, arrays)
    return product.work(once, gpu, size // (product.rows * product.outputs))


def raced_kernels(graph: Graph, chip: Chip, columns: int) -> Iterator[Kernel]:
    """The kernels of a graph, in its order."""
    found = layouts(graph)
    for op in graph.operations:
        parts = list(cost_of(op, graph.arrays, found, chip.gpu))
        if parts and op.name in NAMES:
            product = Product.of(op, graph.arrays)
            if is_few_rows(product) and columns in (0, product.outputs):
                for cost in parts[:-1]:
                    yield cost.dispatches, work_of(cost, graph, chip.gpu)
                yield winner(product, chip)
                continue
        for cost in parts:
            yield cost.dispatches, attention_of(cost, graph) or work_of(cost, graph, chip.gpu)


def is_few_rows(product: Product) -> bool:
    """Whether the self-check times products like this one: few rows, not too narrow a matrix."""
    wide = product.weighted and product.outputs >= small_m_qmm.LEAST_COLUMNS
    return wide and 1 < product.rows <= small_m_qmm.BUCKETS[-1]


@cache
def winner(product: Product, chip: Chip) -> Kernel:
    """The kernel that the package runs for so many rows, as `multiply` in models/linear.py."""
    outputs, inputs, mode = product.outputs, product.inputs, product.mode
    padding = row_limits.padding(chip.gpu, outputs, inputs, mode)
    if padding and padding.least <= product.rows < padding.width:
        dispatches, work = replace(product, rows=padding.width).alone(chip.gpu)
        padded = dispatches + PAD_DISPATCHES, work
        rival = unpadded(replace(product, rows=padding.least), chip)
        if chip.seconds(*padded) * MAX_RATIO <= chip.seconds(*rival):
            return padded
    return unpadded(product, chip)


def unpadded(product: Product, chip: Chip) -> Kernel:
    """Ours where it won with the most rows of its bucket, or MLX's."""
    most = next(most for most in small_m_qmm.BUCKETS if product.rows <= most)
    timed = replace(product, rows=most)
    if chip.seconds(*ours(timed)) <= MAX_RATIO * chip.seconds(*timed.alone(chip.gpu)):
        return ours(product)
    return product.alone(chip.gpu)


def ours(product: Product) -> Kernel:
    """Our product, which computes 2, 4, 8 or 16 rows and has no parts."""
    vectors = product.rows <= small_m_qmm.VECTORS.rows[-1]
    body = small_m_qmm.VECTORS if vectors else small_m_qmm.MATRICES
    count = next(count for count in body.rows if count >= product.rows)
    moved = product.rows * product.row + product.matrix
    return 1, Work(VECTOR if vectors else OURS, moved, 2 * count * product.inputs * product.outputs)


def attention_of(cost: Cost, graph: Graph) -> Work | None:
    """The work of an operation of attention, with the rows that it computes in vain; else None."""
    op, moved = cost.op, cost.read + cost.written
    if op.name in NAMES and not cost.copied:
        product = Product.of(op, graph.arrays)
        if product.weighted:
            return None
        rows, size = product.rows, graph.arrays[op.outputs[0]].size
        tiles = ceil(rows / QUERY_TILE) * QUERY_TILE if rows > 1 else rows
        return Work(KEYS_MATRIX, moved, 2 * size // rows * tiles * product.inputs)
    mine = op.name == "CustomKernel" and "attention" in op.arguments[0]
    mine = mine and "combine" not in op.arguments[0]  # which only joins parts
    if op.name != "ScaledDotProductAttention" and not mine:
        return None
    (heads, rows, dim), (groups, keys, _) = (
        graph.arrays[name].shape[-3:] for name in op.inputs[:2]
    )
    if mine:
        packed = ceil(heads // groups * rows / TEAM_ROWS) * TEAM_ROWS
        return Work(KEYS_OURS, moved, 4 * groups * packed * keys * dim)
    if rows <= FEW_ROWS:
        return Work(KEYS_VECTOR, moved, 4 * heads * rows * keys * dim)
    tiles = ceil(rows / QUERY_TILE) * QUERY_TILE
    return Work(KEYS_MATRIX, moved, 4 * heads * tiles * keys * dim)
