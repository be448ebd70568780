"""What a round costs on this machine, by what is done in it, and how that drifts.

Plain numbers; does not know models, how the costs were measured, or how likely drafts are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log

import numpy as np

from .types import Plan

Knots = tuple[tuple[int, float], ...]  # (rows, seconds), rows rising


def kind_of(plan: Plan) -> str:
    """plain, chain or tree."""
    return "plain" if plan.rows == 1 else "tree" if plan.tree else "chain"


def words(plan: Plan) -> str:
    """A plan as one says it."""
    return "a plain step" if plan.rows == 1 else f"a {kind_of(plan)} of {plan.rows} rows"


PLAIN = Plan(1)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the parts of a round, at a context of `depth` tokens.

    `plain` is the target's step of one row, `draft` a whole block's draft, `chain` and `tree` the
    verifies by rows (no `tree`: trees are not used). `host` is what every round adds, `look` what
    it adds to read the drafter's confidence before the verify, `grow` to build a tree from it.
    """

    plain: float
    draft: float
    chain: Knots
    tree: Knots = ()
    host: float = 0.0
    look: float = 0.0
    grow: float = 0.0
    depth: int = 0

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


class Drift:
    """How rounds compare with their measured costs, learned slowly from the clock.

    A factor for every round (other work on the machine, heat), one for each kind of round and one
    for each width; only the last two change what is best. One late round moves none of them far.
    """

    RATE = 0.04
    CLIP = 0.25

    def __init__(self, plans: Sequence[Plan]):
        self._places = {plan: place for place, plan in enumerate(plans)}
        self._kinds = [("plain", "chain", "tree").index(kind_of(plan)) for plan in plans]
        self._common, self._own = 0.0, [0.0] * len(plans)
        self._shared = [0.0] * 3

    @property
    def factors(self) -> np.ndarray:
        """What to multiply the plans' seconds by, to hold them against each other."""
        return np.exp(
            [self._shared[k] + own for k, own in zip(self._kinds, self._own, strict=True)]
        )

    def factor(self, plan: Plan) -> float:
        """One plan's of them."""
        place = self._places[plan]
        return exp(self._shared[self._kinds[place]] + self._own[place])

    def learn(self, plan: Plan, expected: float, seconds: float) -> None:
        """A round that should have taken `expected` seconds, factors included, took `seconds`."""
        place = self._places[plan]
        wrong = log(seconds / expected) - self._common
        step = self.RATE * max(-self.CLIP, min(self.CLIP, wrong))
        self._common += 2 * step
        self._shared[self._kinds[place]] += step
        if plan.rows > 1:
            self._own[place] += step
