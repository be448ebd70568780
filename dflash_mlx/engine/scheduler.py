"""The scheduler: what each sequence does in a round, and which policy decides for a request."""

from collections.abc import Container, Iterable

from dflash_mlx.drafters.base import DraftSource
from dflash_mlx.drafters.ngram import BLOCK
from dflash_mlx.errors import UsageError
from dflash_mlx.kernels.dispatch import EXACT_ROWS
from dflash_mlx.models.target import Target
from dflash_mlx.options import MAX_BLOCK_SIZE
from dflash_mlx.policy.auto import Auto
from dflash_mlx.policy.costs import Costs
from dflash_mlx.policy.policy import Fixed, Policy, Text
from dflash_mlx.types import Plan

from .cost_table import CostTable, cost_table
from .request import Request
from .round import ScheduledStep, StepKind
from .sequence import Sequence


class Scheduler:
    """Decides what each sequence of one target does in a round, and how much drafting pays.

    With `lookup` drafts may be copied from earlier text, also without a drafter. Policies of the
    mode auto are kept from answer to answer, one for each block size.
    """

    def __init__(self, target: Target, drafter: DraftSource | None, *, lookup: bool = False):
        self._target = target
        self._drafter = drafter
        self._lookup = lookup
        self.token_budget = TokenBudget()
        self._auto: dict[int, Auto] = {}
        self._tables: dict[Auto, CostTable] = {}
        self._costs: dict[Auto, Costs] = {}

    def schedule(
        self, sequences: Iterable[Sequence], *, ahead: Container[Sequence], chunk: int
    ) -> list[ScheduledStep]:
        """A step for each sequence: a chunk of its prompt, one token, or drafts that are verified.

        `chunk`: the most prompt tokens of a pass. Sequences of which a pass was run `ahead` do not
        draft. Computes nothing on the device, and measures nothing.
        """
        batch = [ScheduledStep(sequence) for sequence in sequences]
        reading = [step for step in batch if step.sequence.unread]
        shared = chunk if len(reading) == len(batch) else min(chunk, self.token_budget.tokens)
        for step in reading:
            step.kind = StepKind.PREFILL
            step.chunk = step.sequence.next_chunk(-(-shared // len(reading)))
        decoding = [step for step in batch if step.kind is StepKind.DECODE]
        able = [s for s in decoding if s.answer.block_size > 1 and s.sequence not in ahead]
        for policy, group in by_policy(able):
            self.refresh(policy, max(len(step.sequence.tokens) for step in group))
            for step in group:
                step.copied = self._copies_pay(step.sequence)
            others = [s for s in group if not s.copied and self._drafter is not None]
            inputs = [step.policy_input for step in others]
            wishes = policy.drafts(inputs, len(batch) - len(others))
            wanted = {step for step, wish in zip(others, wishes, strict=True) if wish}
            for step in group:
                if step.copied or step in wanted:
                    step.kind = StepKind.SPECULATE
        return batch

    def reads_confidence(self, group: Iterable[ScheduledStep]) -> dict[Policy, bool]:
        """Which policies want the drafter's confidence in these blocks."""
        return {policy: policy.reads(len(steps)) for policy, steps in by_policy(group)}

    def choose(self, batch: list[ScheduledStep]) -> None:
        """How much of each proposal is verified. Waits for the confidence that policies want."""
        proposed = [step for step in batch if step.proposal is not None]
        for policy, group in by_policy(proposed):
            inputs = [step.policy_input for step in group]
            confidences = []
            for step in group:
                assert step.proposal is not None
                confidences.append(step.proposal.read_confidence())
            others = sum(step.query_tokens for step in batch if step not in group)
            plans = policy.choose(inputs, confidences, others)
            for step, plan in zip(group, plans, strict=True):
                assert step.proposal is not None
                step.plan = plan
                step.draft = step.proposal.cut(plan, room=step.answer.left)

    def may_run_ahead(self, sequence: Sequence) -> bool:
        """Whether the next step decodes one token, whatever token this one gives."""
        answer = sequence.now
        # Penalties and grammars look at tokens that the host has not read yet.
        known = not answer.request.sampling.penalised and answer.constraint is None
        if answer.left <= 1 or not known:
            return False
        if answer.block_size == 1:
            return True
        drafted = Text(answer.belief, answer.left)
        rests = sequence.drafter is None or answer.policy.rests([drafted])
        return rests and not self._copies_pay(sequence)

    def update(self, batch: list[ScheduledStep], seconds: float) -> None:
        """Tell the policies what came of the round, and its time where it was theirs alone."""
        read = sum(step.query_tokens for step in batch if step.kind is StepKind.PREFILL)
        generating = [step for step in batch if step.kind is not StepKind.PREFILL]
        if generating:
            self.token_budget.update(read, seconds)
        for policy, group in by_policy(generating):
            done = [step.policy_outcome for step in group if step.error is None]
            policy.learn(done, seconds if len(done) == len(batch) else None)

    def _copies_pay(self, sequence: Sequence) -> bool:
        """Whether copies of earlier text are worth verifying in place of the drafter's block."""
        answer = sequence.now
        if answer.lookup is None or answer.anchor is None:
            return False
        if not answer.lookup.look(sequence.tokens, answer.anchor):
            return False
        confidence = answer.lookup.block(answer.block_size).confidence()().tolist()
        drafted = None if sequence.drafter is None else Text(answer.belief, answer.left)
        copied = Text(answer.copied, answer.left, copied=True)
        return answer.policy.copies(copied, confidence, drafted)

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
        if exact and request.mode == "ddtree" and request.tree_nodes >= EXACT_ROWS:
            raise UsageError(
                f"tree_budget cannot be {request.tree_nodes} in exact mode.",
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

    def policy_for(self, request: Request, depth: int, *, idle: bool = True) -> Policy:
        """The policy for a request whose context has `depth` tokens.

        In the mode auto the costs at that depth are measured now, if they are not known. Where the
        engine is not `idle`, nothing is measured, as other answers would wait: the costs come from
        other depths, and where there are none blocks are drafted as in the mode dflash.
        """
        width = self.block_size(request)
        if request.mode == "ddtree":
            return Fixed(Plan(request.tree_nodes + 1, tree=True, chain_seed=request.chain_seed))
        if request.mode != "auto":
            return Fixed(Plan(width))
        if width not in self._auto:
            table = cost_table(self._target, self._drafter, width)
            costs = table.at(depth) if idle else table.estimate(depth)
            if costs is None:
                return Fixed(Plan(width), "auto measures costs when no other answer is running")
            self._auto[width] = Auto(costs, width)
            self._tables[self._auto[width]] = table
        policy = self._auto[width]
        if idle:
            self._tables[policy].at(depth)
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
        """Let a policy of the mode auto have the costs at a depth, as far as they are known."""
        if isinstance(policy, Auto):
            costs = self._tables[policy].estimate(depth)
            if costs is not None and costs is not self._costs.get(policy):
                self._costs[policy] = costs
                policy.refresh(costs)


STALL = 0.1  # seconds that others may wait for a round that reads prompts
LEAST = 8  # tokens a round
MOST = 2048
FIRST = 256  # before anything was measured


class TokenBudget:
    """How many prompt `tokens` a round reads while others wait for their next tokens.

    As many as rounds of STALL seconds have read so far.
    """

    def __init__(self) -> None:
        self.tokens = FIRST

    def update(self, read: int, seconds: float) -> None:
        """Count a round that read so many prompt tokens beside others, in so many seconds."""
        if read:
            fits = int(read * STALL / seconds)
            self.tokens = min(MOST, max(LEAST, (self.tokens + fits) // 2))


def by_policy(steps: Iterable[ScheduledStep]) -> list[tuple[Policy, list[ScheduledStep]]]:
    """Steps with their policies, each of which decides for all of its own at once."""
    groups: dict[Policy, list[ScheduledStep]] = {}
    for step in steps:
        groups.setdefault(step.answer.policy, []).append(step)
    return list(groups.items())
