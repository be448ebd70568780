"""The scheduler: what each sequence does in a round, and which policy decides for a request."""

from collections.abc import Container, Iterable
from dataclasses import replace

from dflash_mlx.drafters.base import Drafter
from dflash_mlx.errors import UsageError
from dflash_mlx.kernels.dispatch import EXACT_ROWS
from dflash_mlx.models.target import Target
from dflash_mlx.options import MAX_BLOCK_SIZE
from dflash_mlx.policy.adaptive import AdaptivePolicy
from dflash_mlx.policy.costs import Batch
from dflash_mlx.policy.policy import DraftState, FixedPolicy, Policy
from dflash_mlx.types import DECODE_STEP, Plan

from .pair_costs import PairCosts
from .prompt_chunks import PREFILL_STEP_SIZE, PromptChunks
from .request import Request
from .round import ScheduledStep, StepKind
from .sequence import Sequence
from .stats import DraftRecord


class Scheduler:
    """Decides what each sequence of one target does in a round, and how much drafting pays.

    Policies of the mode auto are kept from answer to answer, one for each block size.
    """

    def __init__(self, target: Target, drafters: tuple[Drafter, ...]):
        self._target = target
        self._drafters = drafters
        self.prompt_chunks = PromptChunks(target)
        self.token_budget = TokenBudget()
        self.draft_record = DraftRecord()  # of the drafter that is a model
        self.forget_costs()

    def forget_costs(self) -> None:
        """Drop what the policies of the mode auto learned: passes take other times now."""
        self._costs = PairCosts(self._target, self._drafters)
        self._adaptive: dict[int, AdaptivePolicy] = {}  # by block size

    def schedule(
        self, sequences: Iterable[Sequence], *, ahead: Container[Sequence]
    ) -> list[ScheduledStep]:
        """A step for each sequence: a chunk of its prompt, one token, or drafts to verify.

        Sequences whose pass was run `ahead` do not draft. Computes nothing on the device.
        """
        batch = [ScheduledStep(sequence) for sequence in sequences]
        prefilling = [step for step in batch if step.sequence.unread]
        if prefilling:
            answers_wait = len(prefilling) < len(batch)
            limit = self.prompt_chunks.after(len(step.sequence.tokens) for step in prefilling)
            self._share_pass(prefilling, limit, answers_wait)
        decoding = [step for step in batch if step.kind is StepKind.DECODE]
        may_draft = [s for s in decoding if s.answer.block_size > 1 and s.sequence not in ahead]
        caches = sum(self._costs.of_caches(len(step.sequence.tokens)) for step in batch)
        for policy, group in by_policy(may_draft):
            drafts = [self._draft_states(step.sequence) for step in group]
            choices = policy.choose_drafters(drafts, Batch(len(batch), caches))
            for step, states, choice in zip(group, drafts, choices, strict=True):
                if choice is not None:
                    state = states[choice.drafter]
                    assert state is not None
                    step.kind = StepKind.SPECULATE
                    step.choice = choice
                    step.draft_state = replace(state, choice=choice)
        return batch

    def _share_pass(self, prefilling: list[ScheduledStep], limit: int, answers_wait: bool) -> None:
        """Give each prompt an equal share of a pass of `limit` tokens.

        If answers wait for their next token, or prompts that end in this pass for their first one,
        the other prompts get no more than their share of the token budget.
        """
        share = -(-limit // len(prefilling))
        lower = min(share, -(-self.token_budget.tokens // len(prefilling)))
        ending = [step for step in prefilling if step.sequence.unread <= share]
        for step in prefilling:
            step.kind = StepKind.PREFILL
            delays = answers_wait or (ending and step not in ending)
            step.chunk = step.sequence.next_chunk(lower if delays else share)

    def _draft_states(self, sequence: Sequence) -> list[DraftState | None]:
        answer = sequence.answer
        block = answer.block_size
        states = list[DraftState | None]()
        for drafter, cache, acceptance in zip(
            sequence.drafters, sequence.draft_caches, answer.acceptance, strict=True
        ):
            free = drafter.model is None
            anchor = answer.anchor
            confidence = None if anchor is None else drafter.preview(cache, anchor, block)
            able = not free if confidence is None else len(confidence) > 0
            state = DraftState(acceptance, answer.remaining, confidence, free, block)
            states.append(state if able else None)
        return states

    def choose_num_drafts(self, batch: list[ScheduledStep]) -> None:
        proposed = [step for step in batch if step.proposal is not None]
        for policy, group in by_policy(proposed):
            others = sum(step.num_tokens for step in batch if step not in group)
            states = [step.draft_state for step in group if step.draft_state is not None]
            plans = policy.choose_plans(states, others)
            for step, plan in zip(group, plans, strict=True):
                assert step.proposal is not None
                step.plan = plan
                step.draft = step.proposal.cut(plan, room=step.answer.remaining)

    def may_run_ahead(self, sequence: Sequence) -> bool:
        """Whether the next step is a decode step that can start before the host reads a token."""
        answer = sequence.answer
        # All these need the sampled token, which the host has not read yet.
        if answer.constraint is not None or answer.token_rules is not None:
            return False
        if answer.request.sampling.penalised:
            return False
        if answer.remaining <= 1:
            return False
        if answer.block_size == 1:
            return True
        return not answer.policy.may_draft(self._draft_states(sequence))

    def update(
        self, batch: list[ScheduledStep], seconds: float, *, ahead: Container[Sequence]
    ) -> None:
        """Let the policies learn from the round.

        Its time tells only if one policy decided for all steps, none was a prefill or failed, and
        each took one pass: not its own and the next one that runs `ahead`, nor neither.
        """
        read = sum(step.num_tokens for step in batch if step.kind is StepKind.PREFILL)
        generating = [step for step in batch if step.kind is not StepKind.PREFILL]
        for step in generating:
            # Of the model that drafts. Hot samples do not count: no drafter can guess them.
            if step.error is None and step.answer.request.sampling.temperature <= 1:
                result = step.policy_result
                if result.choice is not None and not result.free:
                    self.draft_record.count(result.own, result.kept)
        if generating:
            self.token_budget.update(read, seconds)
        elif batch:
            longest = max(len(step.sequence.tokens) for step in batch)
            self.prompt_chunks.update(longest - read // len(batch), read, seconds)
        for policy, group in by_policy(generating):
            results = [step.policy_result for step in group if step.error is None]
            alone = len(results) == len(batch)
            once = all(step.was_ahead == (step.sequence in ahead) for step in batch)
            policy.update(results, seconds if alone and once else None)

    def block_size(self, request: Request) -> int:
        """Rows of a drafted block, the anchor's included; 1 without drafts.

        Raises UsageError for a block or tree that cannot be verified, or if there is no drafter.
        """
        if request.mode == "baseline":
            return 1
        ability = self._target.ability
        if not ability.drafts:
            raise UsageError(
                f"this target takes no drafts: {ability.reason}.",
                hint="use the mode baseline (--no-draft)",
            )
        if not self._drafters:
            raise UsageError(
                "this pair was loaded without a drafter.", hint="use the mode baseline (--no-draft)"
            )
        if request.mode == "ddtree" and ability.in_order:
            raise UsageError(
                f"this target cannot read draft trees: {ability.in_order}.",
                hint="use the mode auto or dflash",
            )
        exact = self._target.kernels.exact
        most = EXACT_ROWS if exact else MAX_BLOCK_SIZE
        if exact and request.mode == "ddtree" and request.tree_nodes >= EXACT_ROWS:
            raise UsageError(
                f"tree_budget cannot be {request.tree_nodes} in exact mode.",
                hint=f"give a value from 1 to {EXACT_ROWS - 1}",
            )
        if request.block_size is None:
            return min(self._drafters[0].block_size, most)
        if not 2 <= request.block_size <= most:
            raise UsageError(
                f"block_size cannot be {request.block_size}{' in exact mode' * exact}.",
                hint=f"give 2 to {most}, or use the mode baseline (--no-draft)",
            )
        return request.block_size

    def policy_for(self, request: Request, width: int) -> Policy:
        """width: the request's `block_size`."""
        if width == 1:
            return FixedPolicy(DECODE_STEP)
        if request.mode == "ddtree":
            nodes = request.tree_nodes
            return FixedPolicy(Plan(nodes + 1, tree=True, chain_seed=request.chain_seed))
        if request.mode != "auto":
            return FixedPolicy(Plan(width))
        if width not in self._adaptive:
            self._adaptive[width] = AdaptivePolicy(self._costs.learned, width)
        return self._adaptive[width]


STALL = 0.1  # seconds that answers may wait for a round that reads prompts
MIN_TOKENS = 8  # per round, so that a slow target also reaches the prompt's end


class TokenBudget:
    """How many prompt `tokens` a round reads while other answers wait for their next tokens.

    This is the number that fits into STALL seconds, as learned from the rounds so far.
    """

    def __init__(self) -> None:
        self.tokens = 256  # the first rounds correct it

    def update(self, read: int, seconds: float) -> None:
        if read:
            fits = int(read * STALL / seconds)
            self.tokens = min(PREFILL_STEP_SIZE, max(MIN_TOKENS, (self.tokens + fits) // 2))


def by_policy(steps: Iterable[ScheduledStep]) -> list[tuple[Policy, list[ScheduledStep]]]:
    groups: dict[Policy, list[ScheduledStep]] = {}
    for step in steps:
        groups.setdefault(step.answer.policy, []).append(step)
    return list(groups.items())
