"""Which policy decides for a request; those of the mode auto go on from answer to answer.

Knows requests and measured costs; does not know sequences or rounds.
"""

from dflash_mlx.drafters.base import DraftSource
from dflash_mlx.drafters.ngram import BLOCK
from dflash_mlx.errors import UsageError
from dflash_mlx.kernels.dispatch import EXACT_ROWS
from dflash_mlx.models.target import Target
from dflash_mlx.policy.auto import Auto
from dflash_mlx.policy.costs import Costs
from dflash_mlx.policy.policy import Fixed, Policy
from dflash_mlx.types import Plan

from .cost_table import CostTable, cost_table
from .request import MAX_BLOCK_SIZE, Request


class Policies:
    """The policies of one target and drafter; with `lookup` drafts may be copied, too."""

    def __init__(self, target: Target, drafter: DraftSource | None, *, lookup: bool = False):
        self._target, self._drafter, self._lookup = target, drafter, lookup
        self._auto: dict[int, Auto] = {}
        self._tables: dict[Auto, CostTable] = {}
        self._costs: dict[Auto, Costs] = {}

    def block_size(self, request: Request) -> int:
        """Rows of a drafted block, the anchor's included; 1 where nothing is drafted.

        UsageError for a block size or a tree that cannot be verified, or without a drafter.
        """
        if request.mode == "baseline":
            return 1
        if self._drafter is None and not self._lookup:
            raise UsageError(
                "this pair was loaded without a drafter.", hint="use the mode baseline (--no-draft)"
            )
        exact = self._target.kernels.exact
        most = EXACT_ROWS if exact else MAX_BLOCK_SIZE
        if exact and request.mode == "ddtree" and request.nodes >= EXACT_ROWS:
            raise UsageError(
                f"tree_budget cannot be {request.nodes} in exact mode.",
                hint=f"give a value from 1 to {EXACT_ROWS - 1}",
            )
        if request.block_size is None:
            drafter = self._drafter
            return min(BLOCK if drafter is None else drafter.block_size, most)
        if not 2 <= request.block_size <= most:
            raise UsageError(
                f"block_size cannot be {request.block_size}{' in exact mode' * exact}.",
                hint=f"give 2 to {most}, or use the mode baseline (--no-draft)",
            )
        return request.block_size

    def of(self, request: Request, depth: int) -> Policy:
        """The policy for a request whose context has `depth` tokens.

        In the mode auto the costs at that depth are measured now, if they are not known.
        """
        width = self.block_size(request)
        if request.mode == "ddtree":
            return Fixed(Plan(request.nodes + 1, tree=True, chain_seed=request.chain_seed))
        if request.mode != "auto":
            return Fixed(Plan(width))
        if width not in self._auto:
            table = cost_table(self._target, self._drafter, width)
            self._auto[width] = Auto(table.at(depth), width)
            self._tables[self._auto[width]] = table
        policy = self._auto[width]
        self.refresh(policy, depth)
        return policy

    def measure(self, depth: int) -> None:
        """Measure what contexts of up to `depth` tokens need, so that no answer waits for it later.

        For the policies of the mode auto that have decided for a request.
        """
        for table in self._tables.values():
            for each in table.between(1, depth):
                table.at(each)

    def refresh(self, policy: Policy, depth: int) -> None:
        """Let a policy of the mode auto have the costs at a depth, measured if nothing is known."""
        if isinstance(policy, Auto):
            costs = self._tables[policy].at(depth)
            if costs is not self._costs.get(policy):
                self._costs[policy] = costs
                policy.refresh(costs)


# How many prompt tokens a round reads while others wait for their next tokens.

STALL = 0.1  # seconds that others may wait for a round that reads
LEAST, MOST = 8, 2048  # tokens a round
FIRST = 256  # before anything was measured


class Pace:
    """`tokens` are what a round of STALL seconds has read, by the rounds so far."""

    def __init__(self) -> None:
        self.tokens = FIRST

    def learn(self, read: int, seconds: float) -> None:
        """Count a round that read so many prompt tokens beside others, in so many seconds."""
        if read:
            fits = int(read * STALL / seconds)
            self.tokens = min(MOST, max(LEAST, (self.tokens + fits) // 2))
