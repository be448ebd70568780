"""The policy of the mode auto for one pair: costs of this machine at the depth of the context.

Brings together what is measured (measure.py, ruler.py) and what decides (auto.py).
"""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import mlx.core as mx
import numpy as np

from dflash_mlx.kernels.dispatch import EXACT_ROWS
from dflash_mlx.pair import Pair
from dflash_mlx.policy.auto import Auto
from dflash_mlx.policy.calibration import Confidence
from dflash_mlx.policy.costs import Costs
from dflash_mlx.speculation.drafts import Independent
from dflash_mlx.speculation.tree import Candidates, Tree, best_first

from .measure import measure
from .ruler import Ruler

TREES = (9, 17, 33, 65)  # rows of the trees that are measured and chosen from


class Adaptive(Auto):
    """`Auto` with the costs of the depth it is at, measured when that is reached first."""

    def __init__(self, pair: Pair, block_size: int, depth: Callable[[], int], *, trees: bool):
        """`depth` tells the tokens read; without `trees` it chooses among chains."""
        self._ruler, self._depth = ruler(pair, block_size, trees=trees), depth
        self._ruler.begin(depth())
        super().__init__(self._ruler.at(depth()), block_size)

    def drafts(self, room: int) -> bool:
        """As `Auto`; looks first whether the context has outgrown the costs."""
        costs = self._ruler.at(self._depth())
        if costs is not self._given:
            self.refresh(costs)
        return super().drafts(room)

    def refresh(self, costs: Costs) -> None:
        """As `Auto`; trees that there was no time to measure cost as chains of their rows."""
        self._given = costs
        super().refresh(costs if costs.tree else replace(costs, tree=costs.chain))


def ruler(pair: Pair, block_size: int, *, trees: bool) -> Ruler:
    """What measures a pair's costs, and keeps them."""
    slots, kernels = block_size - 1, pair.target.kernels
    widths = [rows for rows in TREES if trees and (rows <= EXACT_ROWS or not kernels.exact)]

    def costs(depth: int) -> Costs:
        grow = growing(slots, pair.target.vocab_size, widths[-1] - 1) if widths else 0.0
        return measure(
            pair,
            depth,
            block_size=block_size,
            trees=widths,
            tree_of=lambda nodes: usual_tree(nodes, slots),
            grow=grow,
            ponder=pondering(block_size),
        )

    return Ruler(pair, costs, kind=f"{block_size}-{'trees' if trees else 'chains'}")


def usual_tree(nodes: int, slots: int) -> Tree:
    """A tree as drafters make them, a long path with short branches; to time a verify of it."""
    width = nodes if slots == 1 else min(nodes, 8)
    scores = np.tile(-1.5 * np.arange(width, dtype=np.float32), (slots, 1, 1))
    totals = np.full((slots, 1), 0.1, dtype=np.float32)
    return best_first(Candidates(np.tile(np.arange(width), (slots, 1)), scores, totals), nodes)


def pondering(block_size: int) -> float:
    """Seconds that the host takes to decide by a look and to learn from the round."""
    policy = Auto(Costs(1.0, 0.1, ((1, 1.0), (block_size, 1.5))), block_size)
    confidence = Confidence((0.9,) * (block_size - 1))
    took = []
    for _ in range(5):
        began = perf_counter()
        policy.drafts(block_size)
        plan = policy.plan(confidence, block_size)
        policy.learn(plan, plan.rows - 1, plan.rows, 1.0)
        took.append(perf_counter() - began)
    return min(took)


def growing(slots: int, vocab_size: int, nodes: int) -> float:
    """Seconds that the host takes to find and build a draft tree of so many nodes."""
    took = []
    for seed in range(3):
        logits = 3 * mx.random.normal((slots, vocab_size), key=mx.random.key(seed))
        mx.eval(logits)
        began = perf_counter()
        best_first(Independent(logits).top(nodes).to_host(), nodes)
        took.append(perf_counter() - began)
    return min(took)
