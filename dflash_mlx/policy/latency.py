"""How long the parts of a round take on this machine, by the rows of its pass."""

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from dflash_mlx.types import Plan

Knots = tuple[tuple[int, float], ...]  # (rows, seconds), rows rising
DECODE_STEP = Plan(1)


def describe_plan(plan: Plan) -> str:
    if plan.rows == 1:
        return "plain decoding"
    drafts = "1 draft" if plan.rows == 2 else f"{plan.rows - 1} drafts"
    return f"a tree of {drafts}" if plan.tree else drafts


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds of the parts of a round, at a context of `depth` tokens.

    `plain` is a decode step of one sequence, `draft` the draft of one block, and `chain` has the
    verify passes by their rows. `read` is added by reading the drafter's confidence before the
    verify pass, `sequence` by each further sequence in a pass of as many rows, and `block` by each
    further block of a draft. `disturbed`: other work was running when they were measured. Raises
    ValueError for numbers that cannot be latencies.
    """

    plain: float
    draft: float
    chain: Knots
    read: float = 0.0
    sequence: float = 0.0
    block: float = 0.0
    depth: int = 0
    disturbed: bool = False

    def __post_init__(self) -> None:
        rows, passes = zip(*self.chain, strict=True)
        passes = (self.plain, *passes)
        parts = (self.draft, self.read, self.sequence, self.block, self.depth)
        finite = all(map(isfinite, (*passes, *parts)))
        if not finite or min(passes) <= 0 or min(parts) < 0 or [*rows] != sorted({*rows}):
            raise ValueError("these are no latencies")

    def verify(self, rows: int) -> float:
        """Seconds of a pass; between two measured widths, those of the slower one.

        Quantised products step up at certain widths, and a step may hide between two measurements.
        A pass beyond the widest counts as several of the widest.
        """
        if rows == 1:
            return self.plain
        for (low, less), (high, more) in pairwise(((1, 0.0), *self.chain)):
            if low < rows <= high:
                return more if rows == high else max(less, more)
        widest, seconds = self.chain[-1]
        return seconds * -(-rows // widest)


def interpolate(shallow: Latencies, deep: Latencies, share: float) -> Latencies:
    """Latencies between two depths, `share` of the way from the shallow to the deep one."""

    def between(less: float, more: float) -> float:
        return less + share * (more - less)

    widths = sorted({rows for rows, _ in (*shallow.chain, *deep.chain)})
    return Latencies(
        plain=between(shallow.plain, deep.plain),
        draft=between(shallow.draft, deep.draft),
        chain=tuple((rows, between(shallow.verify(rows), deep.verify(rows))) for rows in widths),
        read=between(shallow.read, deep.read),
        sequence=between(shallow.sequence, deep.sequence),
        block=between(shallow.block, deep.block),
        depth=round(between(shallow.depth, deep.depth)),
    )
