"""The loop of the DFlash paper: plan -> propose -> verify -> judge -> commit, one block a turn.

Tokens in, blocks out. Does not know text or templates, or how a policy decides.
"""

from collections.abc import Generator
from time import perf_counter

import mlx.core as mx

from .context import Context
from .policy.policy import Fixed, Policy
from .proposal import Proposal, Step, propose
from .speculation.acceptance import Match
from .types import Block, Plan


def decode(
    context: Context,
    logits: mx.array,
    rule: Match,
    *,
    block_size: int,
    max_tokens: int,
    stops: frozenset[int],
    policy: Policy | None = None,
) -> Generator[Block]:
    """Answer a prompt that `context` has read, from the logits [1, V] after it.

    The first block is the token that the prefill gives; each other block is one verify. After every
    block the caches hold all tokens but the last, which is the next anchor; where plain steps run
    one ahead, that one too. A block of `block_size` tokens is drafted every round, and the policy
    says how much of it is verified, and how: all of it as a chain, if there is none.
    """
    policy = policy or Fixed(Plan(block_size))

    def offered(anchor: int, left: int) -> Proposal:
        width = min(block_size, left + 1)
        return propose(context, rule, anchor, width, policy, left, stops)

    kept, left = (rule.first(logits, context.tokens),), max_tokens - 1
    reason, began = finish(kept, left, stops), perf_counter()
    offer = None if reason else offered(kept[-1], left)
    if isinstance(offer, Step):  # so does stock mlx-lm; drafts are begun when the clock runs
        offer.begin()
    shown = perf_counter()
    yield Block(kept, 0, 0, finish_reason=reason)
    began += perf_counter() - shown  # what showing took is not the round's
    if offer is not None:
        offer.begin()
    while offer is not None:
        anchor = kept[-1]
        logits, taps = offer.verify(context, anchor)
        verdict = offer.judge(rule, logits, context.history(anchor))
        kept = cut(verdict.tokens, left, stops)
        left -= len(kept)
        context.commit(anchor, kept, taps, verdict.path)
        accepted = len(verdict.accepted)
        policy.learn(offer.plan, accepted, len(kept), perf_counter() - began)
        reason = finish(kept, left, stops)
        counts = offer.drafted, min(accepted, len(kept))
        block = Block(kept, *counts, finish_reason=reason, depth=offer.depth)
        began = perf_counter()
        if offer := None if reason else offered(kept[-1], left):
            offer.begin()  # it is computed while the block is shown
        shown = perf_counter()
        yield block
        began += perf_counter() - shown


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
