"""What each mode verifies, round by round, where that is the same every time.

Knows the modes and their bounds; does not know what a round costs or brings.
"""

from typing import Literal

from dflash_mlx.errors import UsageError
from dflash_mlx.types import Plan

from .policy import Fixed

Mode = Literal["auto", "dflash", "ddtree", "baseline"]
TREE_BUDGET, MOST_NODES = 32, 1024
MOST_ROWS = 256  # of a block


def fixed_policy(
    mode: Mode, block_size: int, tree_budget: int | None, chain_seed: bool, accept: str
) -> Fixed | None:
    """The policy of a mode, or None for the mode auto, which decides anew every round.

    UsageError for what the mode does not know, or a budget outside 1 to 1024.
    """
    if mode != "ddtree":
        if tree_budget is not None or chain_seed:
            name = "chain_seed" if tree_budget is None else "tree_budget"
            raise UsageError(f"{name} says nothing to the mode {mode}.", hint="use the mode ddtree")
        return None if mode == "auto" else Fixed(Plan(block_size))
    if accept != "match":
        raise UsageError(
            f"the acceptance rule '{accept}' judges chains, not trees.",
            hint="leave it at match, or use the mode dflash",
        )
    budget = TREE_BUDGET if tree_budget is None else tree_budget
    if not 1 <= budget <= MOST_NODES:
        raise UsageError(
            f"tree_budget cannot be {budget}.", hint=f"give a value from 1 to {MOST_NODES}"
        )
    return Fixed(Plan(budget + 1, tree=True, chain_seed=chain_seed))
