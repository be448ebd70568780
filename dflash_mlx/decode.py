"""The loop of the DFlash paper: draft -> verify -> accept -> commit, one block a turn.

Tokens in, blocks out. Does not know text, templates or clocks.
"""

from collections.abc import Generator

import mlx.core as mx

from .acceptance import Match
from .context import Context
from .slots import Draft
from .types import Block


def decode(
    context: Context,
    logits: mx.array,
    rule: Match,
    *,
    block_size: int,
    max_tokens: int,
    stops: frozenset[int],
) -> Generator[Block]:
    """Answer a prompt that `context` has read, from the logits [1, V] after it.

    The first block is the token that the prefill gives; each other block is one verify. After every
    block the caches hold all tokens but the last, which is the next anchor.
    """
    left, kept, drafted, accepted = max_tokens, (rule.first(logits, context.tokens),), 0, 0
    while True:
        anchor, left = kept[-1], left - len(kept)
        reason = finish(kept, left, stops)
        # The next draft is computed while this block is shown.
        draft = None if reason else propose(context, rule, anchor, min(block_size, left + 1))
        yield Block(kept, drafted, accepted, finish_reason=reason)
        if draft is None:
            return
        logits, taps = context.verify(anchor, draft.tokens)
        verdict = rule.judge(draft, logits, context.history(anchor))
        kept = cut(verdict.tokens, left, stops)
        context.commit(anchor, kept, taps)
        drafted, accepted = draft.tokens.size, min(len(verdict.accepted), len(kept))


def propose(context: Context, rule: Match, anchor: int, width: int) -> Draft:
    """Start computing the drafts of a block of `width` tokens, anchor included."""
    assert context.draft_cache is not None
    draft = rule.propose(context.draft_cache.slots(anchor, width), context.history(anchor))
    mx.async_eval(draft.tokens)
    return draft


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
