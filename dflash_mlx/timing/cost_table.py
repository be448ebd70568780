"""The costs of one pair at any depth: measured when they are first wanted, then kept in a file."""

import logging
from collections.abc import Callable
from math import log2

from dflash_mlx.policy.costs import Costs
from dflash_mlx.speculation.source import DraftSource
from dflash_mlx.target.target import Target

from .cost_file import cost_file, fingerprint, read_costs, write_costs
from .scratch import measure

log = logging.getLogger(__name__)

DEPTHS = (64, 256, 1024, 4096, 8192)  # tokens of context at which costs are measured
AGAIN = 2  # times to measure again what other work was in the way of


def depth_for(depth: int, most: int = DEPTHS[-1]) -> int:
    """The depth at which to measure for a context of `depth` tokens: the nearest by proportion."""
    nearest = min(DEPTHS, key=lambda at: abs(log2(at / max(depth, 1))))
    return min(nearest, most)


class CostTable:
    """Gives the costs of one pair at a depth; asking again near that depth costs nothing."""

    def __init__(
        self,
        target: Target,
        drafter: DraftSource | None,
        block_size: int,
        measure: Callable[[int], Costs],
    ):
        """`measure(depth)` times the pair with blocks of `block_size` rows."""
        self._measure, self._most = measure, target.context_length
        self._key = f"{fingerprint(target, drafter)}-{block_size}"
        kept = read_costs(cost_file()).items()
        mine = [(key.removeprefix(f"{self._key}-"), costs) for key, costs in kept]
        self._known = {int(at): c for at, c in mine if at.isdecimal() and not c.disturbed}

    def at(self, depth: int) -> Costs:
        """The costs at about `depth` tokens, as they were kept, or measured now."""
        near = depth_for(depth, self._most)
        if near not in self._known:
            found = self._measure(near)
            for _ in range(AGAIN):
                found = self._measure(near) if found.disturbed else found
            self._known[near] = found
            if found.disturbed or found.depth < near:
                what = "amid other work" if found.disturbed else "with little memory left"
                log.info("the costs at %d tokens were measured %s: not kept", near, what)
            else:
                write_costs(cost_file(), f"{self._key}-{near}", found)
        return self._known[near]

    def between(self, least: int, most: int) -> list[int]:
        """The depths that contexts from `least` to `most` tokens are measured at."""
        ends = depth_for(least, self._most), depth_for(most, self._most)
        return sorted({*ends, *(depth for depth in DEPTHS if ends[0] < depth < ends[1])})


def cost_table(target: Target, drafter: DraftSource | None, block_size: int) -> CostTable:
    """The table of a pair's costs with blocks of so many rows, measured in the calling thread."""
    return CostTable(
        target, drafter, block_size, lambda depth: measure(target, drafter, depth, block_size)
    )
