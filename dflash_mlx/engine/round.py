"""What one sequence does in a round: the rows it brings to a pass, and what it commits after it.

Knows a sequence and its draft; does not know the other sequences of the round.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from dflash_mlx.constrained.constraint import Constraint
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.policy.belief import Confidence
from dflash_mlx.policy.policy import Text
from dflash_mlx.speculation.drafts import Draft, DraftBlock, PendingRankings
from dflash_mlx.speculation.sampling import read_logprobs
from dflash_mlx.speculation.tree import best_first
from dflash_mlx.types import Block, Plan

from .sequence import Piece, Sequence

# From a drafted block to what a verify checks of it


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


@dataclass(frozen=True, slots=True)
class Committed:
    """A round's block of one sequence, and the drafts that were accepted before it was cut."""

    block: Block
    accepted: int = 0


def text_of(sequence: Sequence) -> Text:
    """What a policy sees of a sequence."""
    now = sequence.now
    return Text(now.copied if now.copying else now.belief, now.left, now.copying)


def copies(sequence: Sequence) -> bool:
    """Whether copies of earlier text are worth verifying in place of a block of the drafter's."""
    now = sequence.now
    if now.lookup is None or now.anchor is None:
        return False
    if not now.lookup.look(sequence.tokens, now.anchor):
        return False
    said = now.lookup.block(now.block_size).confidence()().tolist()
    drafted = None if sequence.drafter is None else Text(now.belief, now.left)
    return now.policy.copies(Text(now.copied, now.left, copied=True), said, drafted)


def count_rows(draft: Piece | Draft) -> int:
    """Rows of the target that it takes."""
    return len(draft.tokens) if isinstance(draft, Piece) else draft.drafted + 1


def rows_of(sequence: Sequence, draft: Piece | Draft) -> SequenceRows:
    """What a sequence reads in a pass: a piece of its prompt, or the anchor and its drafts."""
    if isinstance(draft, Piece):
        tokens = mx.array(draft.tokens)
        return SequenceRows(sequence.target_cache, tokens, tape=False, last=True)
    return sequence.rows(mx.array([sequence.anchor]), draft.tokens, draft.tree)


def drafted_of(sequence: Sequence, block: DraftBlock, *, reads: bool) -> Drafted:
    """What a sequence's rule takes from a block; `reads`: the policy wants its confidence."""
    now = sequence.now
    tree = now.request.mode == "ddtree"  # no chain is wanted then, which may be another draft
    chain = Draft.none() if tree else now.rule.draft(block, sequence.history)
    found = Drafted(block, chain, now.request.stop_ids, now.constraint)
    if tree:
        found.top = block.top_tokens(now.request.nodes)
    elif reads:
        found.confidence = block.confidence()
    found.begin()
    return found


def undrafted(sequence: Sequence, plan: Piece | Plan) -> Piece | Draft:
    """What a sequence reads without a drafter: its piece, or the tokens that a grammar forces."""
    if isinstance(plan, Piece):
        return plan
    now = sequence.now
    if now.constraint is None or now.rule.draws or plan.rows > 1 or now.block_size == 1:
        return Draft.none()
    return now.constraint.steer(Draft.none(), 0, min(now.block_size - 1, now.left))


def allowed(sequence: Sequence, draft: Piece | Draft, logits: mx.array) -> mx.array:
    """The logits of a pass, with -inf for what the sequence's grammar does not allow."""
    constraint = sequence.now.constraint
    if constraint is None or (isinstance(draft, Piece) and not draft.last):
        return logits
    mx.async_eval(logits)  # meanwhile the host finds the masks
    return constraint.mask(logits, Draft.none() if isinstance(draft, Piece) else draft)


def may_run_ahead(sequence: Sequence) -> bool:
    """Whether the next round takes a plain step whatever token this one gives."""
    now = sequence.now
    # Penalties and grammars look at tokens that the host has not read yet.
    rests = sequence.drafter is None or now.policy.rests([text_of(sequence)])
    plain = now.block_size == 1 or (rests and not copies(sequence))
    known = not now.request.sampling.penalised and now.constraint is None
    return plain and now.left > 1 and known


def commit(
    sequence: Sequence, draft: Piece | Draft, read: SequencePass, outcome: mx.array | None
) -> Committed:
    """Make what a pass gave part of the sequence; DFlashError when its logits are not numbers."""
    now = sequence.now
    if outcome is None:
        assert isinstance(draft, Piece)
        commit_piece(sequence, draft, read)
        return Committed(Block(()))
    plain = Draft.none() if isinstance(draft, Piece) else draft
    accepted = now.rule.accept(plain, outcome)
    tokens = cut(accepted.tokens, now.left, now.request.stop_ids)
    tokens = tokens if now.constraint is None else now.constraint.take(tokens)
    if isinstance(draft, Piece):
        commit_piece(sequence, draft, read)
    else:
        rows = (0, *accepted.path)[: len(tokens)] if accepted.path is not None else None
        sequence.commit(
            (sequence.anchor, *tokens[:-1]), read.taps, rows, all_kept=not draft.drafted
        )
    now.anchor, now.left, now.place = tokens[-1], now.left - len(tokens), now.place + len(tokens)
    whole = now.constraint is not None and now.constraint.ended
    now.finish_reason = "stop" if whole else finish(tokens, now.left, now.request.stop_ids)
    count = len(accepted.drafts)
    logprobs = ()
    if now.request.logprobs is not None:
        rows = (0, *accepted.path) if accepted.path is not None else range(len(tokens))
        logprobs = read_logprobs(read.logits, rows, tokens, now.request.logprobs)
    block = Block(
        tokens,
        plain.drafted,
        min(count, len(tokens)),
        finish_reason=now.finish_reason,
        depth=plain.depth,
        logprobs=logprobs,
    )
    return Committed(block, count)


def commit_piece(sequence: Sequence, piece: Piece, read: SequencePass) -> None:
    """Count a piece of the prompt as read; the drafter's rows of the last are computed later."""
    sequence.absorb(piece.tokens, read.taps)
    if not piece.last:
        mx.eval(sequence.state)
        mx.clear_cache()
    if len(sequence.tokens) in sequence.now.snapshots_at:
        sequence.target_cache.snapshot()


def cut(tokens: tuple[int, ...], left: int, stops: frozenset[int]) -> tuple[int, ...]:
    """The tokens up to the first stop token, that one included, and at most `left`."""
    for number, token in enumerate(tokens[:left], 1):
        if token in stops:
            return tokens[:number]
    return tokens[:left]


def finish(tokens: tuple[int, ...], left: int, stops: frozenset[int]) -> str | None:
    """Why the answer ends with these tokens, if it does."""
    if tokens[-1] in stops:
        return "stop"
    return "length" if left <= 0 else None
