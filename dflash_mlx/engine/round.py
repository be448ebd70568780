"""A sequence's part in one round: what it drafts, verifies, accepts and commits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import mlx.core as mx

from dflash_mlx.constrained.constraint import Constraint
from dflash_mlx.errors import DFlashError
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.policy.policy import Choice, DraftState, StepResult
from dflash_mlx.speculation.drafts import Draft, DraftBlock, PendingRankings
from dflash_mlx.speculation.sampling import Draw, read_logprobs
from dflash_mlx.speculation.tree import best_first
from dflash_mlx.types import DECODE_STEP, Block, Plan

from .sequence import AnswerState, PrefillChunk
from .sequence import Sequence as TokenSequence


class StepKind(Enum):
    """What a sequence does in a round: read its prompt, decode one token, or verify drafts."""

    PREFILL = "prefill"
    DECODE = "decode"
    SPECULATE = "speculate"


@dataclass(slots=True, eq=False)
class ScheduledStep:
    """One sequence's part in a round. Each verb of the engine fills in some of its fields.

    schedule: `kind`, `chunk` (the tokens of a prefill), `choice` (a drafter and its block) and its
    `draft_state`, for the policy.
    propose: `proposal` (the drafter's block), `plan` (how much of it is verified), `draft` (the
    tokens that are verified; none in a decode step unless a grammar forces some).
    verify: `output`, the logits and hidden states of the target's pass, and `was_ahead`, whether
    the round before ran it.
    accept: `outcome`, the result of the acceptance rule, and `sampled_token` [1], the target's
    token after a row without drafts. The host has not waited for either.
    commit: `accepted`, how many drafts the rule accepted, in a tree along the rows of `path`, the
    `rejected` drafts, and `block`, the committed tokens; or the `error` that ends the answer.
    """

    sequence: TokenSequence
    kind: StepKind = StepKind.DECODE
    chunk: PrefillChunk | None = None
    choice: Choice | None = None
    draft_state: DraftState | None = None
    proposal: "DraftProposal | None" = None
    plan: Plan = DECODE_STEP
    draft: Draft = field(default_factory=Draft.none)
    output: SequencePass | None = None
    was_ahead: bool = False
    sampled_token: mx.array | None = None
    outcome: mx.array | None = None
    accepted: int = 0
    path: tuple[int, ...] | None = None
    rejected: tuple[int, ...] = ()
    block: Block | None = None
    error: DFlashError | None = None

    @property
    def answer(self) -> AnswerState:
        return self.sequence.answer

    @property
    def num_tokens(self) -> int:
        return self.draft.drafted + 1 if self.chunk is None else len(self.chunk.tokens)

    @property
    def result(self) -> Block | DFlashError:
        result = self.block if self.error is None else self.error
        assert result is not None
        return result

    @property
    def policy_result(self) -> StepResult:
        assert self.block is not None
        state = self.draft_state
        return StepResult(
            None if state is None else state.acceptance,
            self.plan,
            verified=self.draft.drafted,
            accepted=self.accepted,
            committed=len(self.block.tokens),
            choice=self.choice,
            free=state is not None and state.free,
            confidence=None if state is None else state.confidence,
            judged=self.draft.judged,
        )

    def query(self) -> SequenceRows:
        """The target's input: a chunk of the prompt, or the anchor and its drafts."""
        sequence = self.sequence
        if self.chunk is not None:
            tokens = mx.array(self.chunk.tokens)
            return SequenceRows(sequence.target_cache, tokens, tape=False, last=True)
        return sequence.rows(mx.array([sequence.anchor]), self.draft.tokens, self.draft.tree)

    def next_draw(self) -> Draw | None:
        """What the drafts are drawn with; None for the likeliest, and for trees."""
        if self.answer.request.mode == "ddtree":
            return None
        return self.answer.rule.draw(self.sequence.history)

    def propose(self, block: DraftBlock, draw: Draw | None) -> None:
        """Begin to compute the drafts from a drafter's block."""
        answer = self.answer
        tree = answer.request.mode == "ddtree"  # needs no chain
        chain = Draft.none() if tree else answer.rule.draft(block, draw)
        top = block.top_tokens(answer.request.tree_nodes) if tree else None
        stops = answer.request.stop_ids
        self.proposal = DraftProposal(block, chain, stops, answer.constraint, top)
        self.proposal.begin()

    def draft_forced_tokens(self) -> None:
        """In a decode step, draft the tokens that a grammar forces, if there are any."""
        answer = self.answer
        if self.kind is not StepKind.DECODE or answer.constraint is None:
            return
        if answer.rule.draws or answer.block_size == 1:
            return
        most = min(answer.block_size - 1, answer.remaining)
        self.draft = answer.constraint.filter_draft(Draft.none(), 0, most)

    def apply_rule(self) -> None:
        """Apply the acceptance rule to the target's logits; the host does not wait.

        Without drafts the rule samples one token. A chunk before the prompt's end has no outcome.
        """
        assert self.output is not None
        answer = self.answer
        rule = answer.rule
        if self.chunk is not None and not self.chunk.last:
            return
        logits = self._allowed(self.output.logits)
        if self.chunk is not None:
            history = [*self.sequence.tokens, *self.chunk.tokens]
        else:
            history = self.sequence.history
        if self.draft.drafted:
            self.outcome = rule.outcome(self.draft, logits, history, answer.position)
        else:
            self.sampled_token, self.outcome = rule.step(logits, history, answer.position)

    def _allowed(self, logits: mx.array) -> mx.array:
        """The logits, with -inf for tokens that the answer's grammar and rules do not allow."""
        constraint = self.answer.constraint
        rules = self.answer.token_rules
        if constraint is None and rules is None:
            return logits
        mx.async_eval(logits)  # meanwhile the host computes the masks
        if constraint is not None:
            logits = constraint.mask_logits(logits, self.draft)
        if rules is not None:
            position = self.answer.position
            tokens = self.sequence.answer_tokens(rules.longest)
            logits = rules.apply(logits, tokens, position, self.draft)
        return logits

    def read_accepted(self) -> tuple[int, ...]:
        """Wait for the outcome: the accepted drafts and the bonus token, up to the answer's end.

        Empty before the prompt's last chunk. Raises DFlashError if logits are NaN, or if the
        grammar allows no token.
        """
        if self.outcome is None:
            return ()
        answer = self.answer
        accepted = answer.rule.accept(self.draft, self.outcome)
        self.accepted = len(accepted.drafts)
        self.path = accepted.path
        self.rejected = accepted.rejected
        tokens = cut(accepted.tokens, answer.remaining, answer.request.stop_ids)
        if answer.constraint is not None:
            tokens = answer.constraint.accept_tokens(tokens)
        return tokens

    def commit(self, tokens: tuple[int, ...]) -> None:
        """Append the accepted tokens to the answer, and the tokens before them to the caches.

        The caches never hold the anchor. They get the old anchor and all `tokens` but the last,
        which is the new anchor. Rows of rejected drafts are dropped.
        """
        assert self.output is not None
        sequence = self.sequence
        answer = self.answer
        path = None if self.path is None else (0, *self.path)
        logprobs = ()
        if tokens and answer.request.logprobs is not None:  # a fault here leaves all as it was
            rows = range(len(tokens)) if path is None else path
            logprobs = read_logprobs(self.output.logits, rows, tokens, answer.request.logprobs)
        if self.chunk is not None:
            sequence.append(self.chunk.tokens, self.output.taps)
            if not self.chunk.last:
                mx.eval(sequence.state)
                mx.clear_cache()
            if len(sequence.tokens) in answer.snapshots_at:
                sequence.target_cache.snapshot()
        else:
            sequence.commit(
                (sequence.anchor, *tokens[:-1]),
                self.output.taps,
                None if path is None else path[: len(tokens)],
                all_kept=not self.draft.drafted,
            )
        if not tokens:
            self.block = Block(())
            return
        answer.advance(tokens)
        self.block = Block(
            tokens,
            self.draft.drafted,
            min(self.accepted, len(tokens)),
            finish_reason=answer.finish_reason,
            depth=self.draft.depth,
            logprobs=logprobs,
            rejected=self.rejected,
        )


@dataclass(slots=True)
class DraftProposal:
    """One sequence's drafted block.

    `chain`: the drafts of all positions. `top`: the likeliest tokens of each position, in the mode
    ddtree. In a tree no draft follows one of `stops`. Drafts that the `constraint` does not allow
    are not verified, but for the first one of a sampled chain.
    """

    block: DraftBlock
    chain: Draft
    stops: frozenset[int]
    constraint: Constraint | None = None
    top: PendingRankings | None = None

    def begin(self) -> None:
        """Begin to compute the drafts; the host does not wait."""
        if self.top is not None:
            self.top.begin()
        else:
            mx.async_eval(self.chain.tokens)

    def cut(self, plan: Plan, room: int) -> Draft:
        """The drafts that the plan verifies: at most `room` of the chain, or a tree.

        The tree is that of arXiv 2604.12989, algorithm 1. Tokens that a grammar forces replace
        other drafts. In a chain, they may also follow them, up to the chain's length.
        """
        nodes = plan.rows - 1
        if not plan.tree:
            if self.constraint is None:
                return self.chain.first(min(nodes, room))
            return self.constraint.filter_draft(self.chain, nodes, min(self.chain.drafted, room))
        top = self.block.top_tokens(nodes) if self.top is None else self.top
        tree = best_first(
            top.to_host(),
            nodes,
            chain_seed=plan.chain_seed,
            stops=self.stops,
            narrow=None if self.constraint is None else self.constraint.filter_candidates,
        )
        return Draft.of_tree(tree)


def cut(tokens: Sequence[int], left: int, stops: frozenset[int]) -> tuple[int, ...]:
    """At most `left` tokens, up to and including the first stop token."""
    for number, token in enumerate(tokens[:left], 1):
        if token in stops:
            return tuple(tokens[:number])
    return tuple(tokens[:left])
