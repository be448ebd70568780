"""What a pass is to a chip, without the chip's speed: bytes and products of alike kernels.

A traced graph takes seconds to count and its tally nothing, so that factors can be fitted to many
measurements.
"""

from collections import Counter
from dataclasses import dataclass
from math import ceil

from count.chips import Chip

from dflash_mlx.kernels.row_limits import MATRIX_TILE

from .products import as_vectors, rows_of, sides
from .trace import Graph
from .traffic import Cost, costs

PRODUCTS = ("QuantizedMatmul", "Matmul", "AddMM")
EXPERTS = ("GatherQMM", "GatherMM")
MOVE, VECTOR, MATRIX = "move", "vector", "matrix"


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel of this kind: bytes it moves, and FLOPs of its product with whole tiles."""

    kind: str
    moved: int
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """The dispatches of a pass, and how many kernels do each work."""

    dispatches: int
    works: tuple[tuple[Work, int], ...]


def tally(graph: Graph, chip: Chip) -> Tally:
    """Count a pass on a chip. Bytes of kernels without a product are one sum."""
    dispatches, moved = 0, 0
    works: Counter[Work] = Counter()
    for cost in costs(graph, chip):
        dispatches += cost.dispatches
        work = work_of(cost, graph, chip)
        if work.kind == MOVE:
            moved += work.moved
        else:
            works[work] += 1
    return Tally(dispatches, ((Work(MOVE, moved), 1), *works.items()))


def stretched(one: Tally, two: Tally, repeats: float) -> Tally:
    """The tally of a pass with `repeats` more of what makes the difference of these two."""
    counts, more = (dict(each.works[1:]) for each in (one, two))  # behind the moved bytes
    works = {
        work: round(counts.get(work, 0) + repeats * (more.get(work, 0) - counts.get(work, 0)))
        for work in counts | more
    }
    moved, after = (each.works[0][0].moved for each in (one, two))
    moves = Work(MOVE, round(moved + repeats * (after - moved)))
    dispatches = round(one.dispatches + repeats * (two.dispatches - one.dispatches))
    return Tally(dispatches, ((moves, 1), *works.items()))


def work_of(cost: Cost, graph: Graph, chip: Chip) -> Work:
    """The work of one operation. Rows that share no read of a matrix or of an expert find it in the
    chip's cache, so it counts once.
    """
    op, arrays = cost.op, graph.arrays
    if cost.copied or not op.inputs or op.name not in (*PRODUCTS, *EXPERTS):
        return Work(MOVE, cost.read + cost.written)
    (inputs, _), size = sides(op, arrays), arrays[op.outputs[0]].size
    once = cost.read - cost.again + cost.written
    if op.name in EXPERTS or as_vectors(op, arrays, chip):
        return Work(VECTOR, once, 2 * size * inputs)
    rows = rows_of(op, arrays)
    return Work(MATRIX, once, 2 * size // rows * ceil(rows / MATRIX_TILE) * MATRIX_TILE * inputs)
