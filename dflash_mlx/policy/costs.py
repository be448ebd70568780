"""What a round costs on this machine, by what is done in it, and how that drifts.

Plain numbers; does not know models, how the costs were measured, or how likely drafts are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log, log2
from typing import Any

from dflash_mlx.types import Plan

Knots = tuple[tuple[int, float], ...]  # (rows, seconds), rows rising


def kind_of(plan: Plan) -> str:
    """plain, chain or tree."""
    return "plain" if plan.rows == 1 else "tree" if plan.tree else "chain"


def words(plan: Plan) -> str:
    """A plan as one says it."""
    return "a plain step" if plan.rows == 1 else f"a {kind_of(plan)} of {plan.rows} rows"


PLAIN = Plan(1)
PARTS = ("plain", "draft", "host", "look", "grow")


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the parts of a round, at a context of `depth` tokens.

    `plain` is the target's step of one row, `draft` a whole block's draft, `chain` and `tree` the
    verifies by rows (no `tree`: trees are not used). `host` is what every round adds, `look` what
    it adds to read the drafter's confidence before the verify, `grow` to build a tree from it.
    `runs`: how often all this was measured.
    """

    plain: float
    draft: float
    chain: Knots
    tree: Knots = ()
    host: float = 0.0
    look: float = 0.0
    grow: float = 0.0
    depth: int = 0
    runs: int = 1

    def verify(self, rows: int, *, tree: bool = False) -> float:
        """Seconds of a verify. Widths that were not measured cost as the dearer neighbour that was.

        Quantised products step up at certain widths, and a step may hide between two measurements.
        Beyond the widest as many of the widest as it takes.
        """
        knots = self.tree if tree else self.chain
        if rows > knots[-1][0]:
            return knots[-1][1] * -(-rows // knots[-1][0])
        if rows <= knots[0][0]:
            return knots[0][1]
        for (low, less), (high, more) in pairwise(knots):
            if rows == high:
                return more
            if low < rows < high:
                return max(less, more)
        raise AssertionError("knots rise")

    def seconds(self, plan: Plan) -> float:
        """Seconds of a round with its draft, without looks and trees built for nothing."""
        step = self.plain if plan.rows == 1 else self.verify(plan.rows, tree=plan.tree)
        return self.host + step + (self.draft if plan.rows > 1 else 0.0)


def least(one: Costs, other: Costs) -> Costs:
    """The shorter time of each part: other work on the machine only adds."""

    def knots(name: str) -> Knots:
        found = sorted(getattr(one, name) + getattr(other, name), reverse=True)
        return tuple(sorted(dict(found).items()))

    parts: dict[str, Any] = {p: min(getattr(one, p), getattr(other, p)) for p in PARTS}
    return replace(
        one,
        **parts,
        chain=knots("chain"),
        tree=knots("tree"),
        runs=one.runs + other.runs,
    )


def between(less: Costs, more: Costs, depth: float) -> Costs:
    """The costs at a depth between two others': every part grows by proportion."""
    if less.depth >= more.depth:
        return less
    share = min(1.0, max(0.0, (depth - less.depth) / (more.depth - less.depth)))

    def mix(one: float, other: float) -> float:
        return one + share * (other - one)

    def knots(name: str) -> Knots:
        ends = [replace(end, chain=getattr(end, name) or end.chain) for end in (less, more)]
        widths = sorted({rows for rows, _ in getattr(less, name) + getattr(more, name)})
        return tuple((rows, mix(*(end.verify(rows) for end in ends))) for rows in widths)

    parts: dict[str, Any] = {p: mix(getattr(less, p), getattr(more, p)) for p in PARTS}
    return Costs(
        **parts,
        chain=knots("chain"),
        tree=knots("tree"),
        depth=round(depth),
    )


class Drift:
    """How rounds compare with their measured costs, learned slowly from the clock.

    A factor for every round (other work on the machine, heat), one for each kind of round and one
    for each width; only the last two change what is best, and they take little of what all rounds
    have in common: where one width alone is used, nothing is known of the others. Widths that are
    all but the same learn from each other. One late round moves none of them far.
    """

    COMMON, RATE = 0.2, 0.04
    CLIP = 0.25
    ALIKE = 0.15  # octaves
    LATE = 2.0  # times as long as expected a round counts at most

    def __init__(self, plans: Sequence[Plan]):
        self._places = {plan: place for place, plan in enumerate(plans)}
        self._kinds = [("plain", "chain", "tree").index(kind_of(plan)) for plan in plans]
        self._common, self._own = 0.0, [0.0] * len(plans)
        self._shared = [0.0] * 3
        self._near = [
            [(at, near) for at, other in enumerate(plans) if (near := self._alike(plan, other))]
            for plan in plans
        ]

    def _alike(self, plan: Plan, other: Plan) -> float:
        """How much of what is learned of one plan alone holds for the other."""
        if plan.rows == 1 or kind_of(plan) != kind_of(other):
            return 0.0
        near = exp(-((log2(plan.rows / other.rows) / self.ALIKE) ** 2))
        return near if near > 0.01 else 0.0

    @property
    def factors(self) -> list[float]:
        """What to multiply the plans' seconds by, to hold them against each other."""
        pairs = zip(self._kinds, self._own, strict=True)
        return [exp(self._shared[kind] + own) for kind, own in pairs]

    def factor(self, plan: Plan) -> float:
        """One plan's of them."""
        place = self._places[plan]
        return exp(self._shared[self._kinds[place]] + self._own[place])

    def usual(self, expected: float, seconds: float) -> float:
        """What a round took, less what all rounds have in common."""
        return min(seconds / exp(self._common), self.LATE * expected)

    def learn(self, plan: Plan, expected: float, seconds: float) -> None:
        """A round that should have taken `expected` seconds, factors included, took `seconds`."""
        place = self._places[plan]
        wrong = log(seconds / expected) - self._common
        wrong = max(-self.CLIP, min(self.CLIP, wrong))
        step = self.RATE * wrong
        self._common += self.COMMON * wrong
        self._shared[self._kinds[place]] += step
        for at, near in self._near[place]:
            self._own[at] += near * step
