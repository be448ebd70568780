"""What one sequence does in a round: the rows it brings to a pass, and what it commits after it.

Knows a sequence and its draft; does not know the other sequences of the round.
"""

from dataclasses import dataclass

import mlx.core as mx

from .drafted import Drafted
from .policy.policy import Text
from .sequence import Piece, Sequence
from .speculation.drafts import Draft, DraftBlock
from .speculation.logprobs import read_logprobs
from .target.packed import SequencePass, SequenceRows
from .types import Block, Plan


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
