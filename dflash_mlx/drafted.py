"""From a drafted block to what a verify checks of it: confidence, chains and trees.

Knows drafts and plans; does not know how a policy decides.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from .policy.belief import Confidence
from .speculation.drafts import Draft, DraftBlock, PendingRankings
from .speculation.tree import best_first
from .structure.constraint import Constraint
from .types import Plan


@dataclass(slots=True)
class Drafted:
    """One sequence's drafted block, whose computation has begun.

    `chain` has the drafts of all its positions; `top` is set where a tree is wanted in any case.
    `confidence` gives how likely each draft is after those before it [γ], when it is called; None
    where nobody wants it. Nothing follows a draft that is one of `stops`, and nothing is verified
    that the `constraint` does not allow.
    """

    block: DraftBlock
    chain: Draft
    stops: frozenset[int]
    constraint: Constraint | None = None
    top: PendingRankings | None = None
    confidence: Callable[[], np.ndarray] | None = None

    def begin(self) -> None:
        """Compute what the round will read; the host does not wait."""
        if self.top is not None:
            self.top.begin()
        else:
            mx.async_eval(self.chain.tokens)

    def read_confidence(self) -> Confidence | None:
        """Wait for the drafter's confidence, if it is wanted."""
        if self.confidence is None:
            return None
        sure = np.nan_to_num(self.confidence(), nan=0.0)
        if self.chain.probabilities is not None:
            # Whether a draft that was drawn is verified must not depend on what it is, or the
            # output would not have the target's distribution.
            return sure.tolist()
        ends = np.isin(np.array(self.chain.tokens), list(self.stops))
        sure[1:][np.cumsum(ends[:-1]) > 0] = 0.0
        return sure.tolist()

    def cut(self, plan: Plan, room: int) -> Draft:
        """What the plan verifies: at most `room` drafts of the chain, or a tree of the likeliest.

        The tree is that of arXiv 2604.12989, algorithm 1. Tokens that a grammar forces may follow
        the chain, to the block's end.
        """
        nodes = plan.rows - 1
        if not plan.tree:
            if self.constraint is None:
                return self.chain.first(min(nodes, room))
            return self.constraint.steer(self.chain, nodes, min(self.chain.drafted, room))
        top = self.block.top_tokens(nodes) if self.top is None else self.top
        tree = best_first(
            top.to_host(),
            nodes,
            chain_seed=plan.chain_seed,
            stops=self.stops,
            narrow=None if self.constraint is None else self.constraint.narrow,
        )
        return Draft.of_tree(tree)
