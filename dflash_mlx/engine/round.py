"""What each sequence does in one round: the steps of a batch, and what they verify and commit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import mlx.core as mx
import numpy as np

from dflash_mlx.constrained.constraint import Constraint
from dflash_mlx.errors import DFlashError
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.policy.acceptance import Confidence
from dflash_mlx.policy.latency import DECODE_STEP
from dflash_mlx.policy.policy import DraftState, StepResult
from dflash_mlx.speculation.drafts import Draft, DraftBlock, PendingRankings
from dflash_mlx.speculation.sampling import read_logprobs
from dflash_mlx.speculation.tree import best_first
from dflash_mlx.types import Block, Plan

from .sequence import AnswerState, PrefillChunk
from .sequence import Sequence as TokenSequence


class StepKind(Enum):
    """What a sequence does in a round: reads its prompt, decodes one token, or checks drafts."""

    PREFILL = "prefill"
    DECODE = "decode"
    SPECULATE = "speculate"


@dataclass(slots=True, eq=False)
class ScheduledStep:
    """One sequence's part in a round. Each verb of the engine fills in some of its fields.

    schedule: `kind`, `chunk` (the tokens of a prefill), `drafter` (which one drafts) and its
    `draft_state`, for the policy.
    propose: `proposal` (the drafter's block), `plan` (how much of it is verified), `draft` (the
    tokens that are verified; none in a decode step unless a grammar forces some).
    verify: `output`, the logits and hidden states of the target's pass. accept: `outcome`, what
    the acceptance rule gives, and `choice` [1], the target's token after a row without drafts; both
    are not evaluated yet. commit: `block`, or the `error` that ends the answer, and `accepted`,
    the accepted drafts before the answer's end cut them.
    """

    sequence: TokenSequence
    kind: StepKind = StepKind.DECODE
    chunk: PrefillChunk | None = None
    drafter: int | None = None
    draft_state: DraftState | None = None
    proposal: "DraftProposal | None" = None
    plan: Plan = DECODE_STEP
    draft: Draft = field(default_factory=Draft.none)
    output: SequencePass | None = None
    choice: mx.array | None = None
    outcome: mx.array | None = None
    block: Block | None = None
    accepted: int = 0
    error: DFlashError | None = None

    @property
    def answer(self) -> AnswerState:
        """The answer that the sequence is generating."""
        return self.sequence.answer

    @property
    def query_tokens(self) -> int:
        """Tokens that the target reads in this step."""
        return self.draft.drafted + 1 if self.chunk is None else len(self.chunk.tokens)

    @property
    def result(self) -> Block | DFlashError:
        """What the step committed, or why the answer cannot go on."""
        result = self.block if self.error is None else self.error
        assert result is not None
        return result

    @property
    def policy_result(self) -> StepResult:
        """What came of the step, for the policy."""
        assert self.block is not None
        state = self.draft_state
        return StepResult(
            None if state is None else state.acceptance,
            self.plan,
            verified=self.draft.drafted,
            accepted=self.accepted,
            committed=len(self.block.tokens),
            drafter=self.drafter,
            free=state is not None and state.free,
            confidence=None if state is None else state.confidence,
            judged=self.draft.judged,
        )

    def read_confidence(self) -> None:
        """Wait for the drafter's confidence, if it is wanted; the policy then sees it."""
        assert self.proposal is not None
        assert self.draft_state is not None
        confidence = self.proposal.read_confidence()
        self.draft_state = replace(self.draft_state, confidence=confidence)

    def query(self) -> SequenceRows:
        """What the target reads: a chunk of the prompt, or the anchor and its drafts."""
        sequence = self.sequence
        if self.chunk is not None:
            tokens = mx.array(self.chunk.tokens)
            return SequenceRows(sequence.target_cache, tokens, tape=False, last=True)
        return sequence.rows(mx.array([sequence.anchor]), self.draft.tokens, self.draft.tree)

    def draft_forced(self) -> None:
        """In a decode step the draft is what a grammar forces, if it forces anything."""
        answer = self.answer
        if self.kind is not StepKind.DECODE or answer.constraint is None:
            return
        if answer.rule.draws or answer.block_size == 1:
            return
        most = min(answer.block_size - 1, answer.remaining)
        self.draft = answer.constraint.filter_draft(Draft.none(), 0, most)

    def choose_tokens(self) -> None:
        """Apply the acceptance rule to the target's logits; the host does not wait.

        After a chunk that does not end the prompt there is nothing to choose.
        """
        assert self.output is not None
        answer = self.answer
        rule = answer.rule
        if self.chunk is None:
            logits = self._allowed(self.output.logits)
            if self.draft.drafted:
                history = self.sequence.history
                self.outcome = rule.outcome(self.draft, logits, history, answer.position)
                return
            history = self.sequence.history
        elif self.chunk.last:
            logits = self._allowed(self.output.logits)
            history = [*self.sequence.tokens, *self.chunk.tokens]
        else:
            return
        self.choice, self.outcome = rule.step(logits, history, answer.position)

    def _allowed(self, logits: mx.array) -> mx.array:
        """The logits, with -inf for what the sequence's grammar does not allow."""
        constraint = self.answer.constraint
        if constraint is None:
            return logits
        mx.async_eval(logits)  # meanwhile the host computes the masks
        return constraint.mask_logits(logits, self.draft)

    def commit(self) -> None:
        """Make what the pass gave part of the sequence; DFlashError when logits are not numbers."""
        assert self.output is not None
        sequence = self.sequence
        answer = self.answer
        if self.outcome is None:
            self._commit_chunk()
            self.block = Block(())
            return
        accepted = answer.rule.accept(self.draft, self.outcome)
        tokens = cut(accepted.tokens, answer.remaining, answer.request.stop_ids)
        if answer.constraint is not None:
            tokens = answer.constraint.accept_tokens(tokens)
        if self.chunk is not None:
            self._commit_chunk()
        else:
            path = None if accepted.path is None else (0, *accepted.path)[: len(tokens)]
            sequence.commit(
                (sequence.anchor, *tokens[:-1]),
                self.output.taps,
                path,
                all_kept=not self.draft.drafted,
            )
        answer.advance(tokens)
        self.accepted = len(accepted.drafts)
        logprobs = ()
        if answer.request.logprobs is not None:
            rows = range(len(tokens)) if accepted.path is None else (0, *accepted.path)
            logprobs = read_logprobs(self.output.logits, rows, tokens, answer.request.logprobs)
        self.block = Block(
            tokens,
            self.draft.drafted,
            min(self.accepted, len(tokens)),
            finish_reason=answer.finish_reason,
            depth=self.draft.depth,
            logprobs=logprobs,
        )

    def _commit_chunk(self) -> None:
        """Count a chunk of the prompt as read; the drafter reads the last one's states later."""
        assert self.chunk is not None
        assert self.output is not None
        sequence = self.sequence
        sequence.append(self.chunk.tokens, self.output.taps)
        if not self.chunk.last:
            mx.eval(sequence.state)
            mx.clear_cache()
        if len(sequence.tokens) in self.answer.snapshots_at:
            sequence.target_cache.snapshot()


@dataclass(slots=True)
class DraftProposal:
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


def propose(sequence: TokenSequence, block: DraftBlock, *, confidence: bool) -> DraftProposal:
    """Begin what a sequence verifies of a drafted block; `confidence`: the policy wants it."""
    answer = sequence.answer
    tree = answer.request.mode == "ddtree"  # no chain is wanted then, which may be another draft
    chain = Draft.none() if tree else answer.rule.draft(block, sequence.history)
    proposal = DraftProposal(block, chain, answer.request.stop_ids, answer.constraint)
    if tree:
        proposal.top = block.top_tokens(answer.request.tree_nodes)
    elif confidence:
        proposal.confidence = block.confidence()
    proposal.begin()
    return proposal


def cut(tokens: Sequence[int], left: int, stops: frozenset[int]) -> tuple[int, ...]:
    """The tokens up to the first stop token, that one included, and at most `left`."""
    for number, token in enumerate(tokens[:left], 1):
        if token in stops:
            return tuple(tokens[:number])
    return tuple(tokens[:left])
