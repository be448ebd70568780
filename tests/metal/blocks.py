"""Cases of the accept operations: logits, drafts, their distributions, and random bits."""

from dataclasses import replace
from typing import Any

import mlx.core as mx

from dflash_mlx.kernels import verify_accept_sample
from dflash_mlx.kernels.dispatch import Op
from dflash_mlx.speculation.acceptance import random_bits


def near_drafts(logits: mx.array, wrong: int | None = None) -> mx.array:
    """The target's own choices [γ] of logits [γ + 1, V], but for one slot."""
    drafts = mx.argmax(logits[:-1], axis=-1)
    if wrong is not None:
        drafts[wrong] = (drafts[wrong] + 1) % logits.shape[-1]
    return drafts


def sampled(
    seed: int, rows: int, vocab: int, k: int = 0, apart: float = 0.4, hot: float = 3.0
) -> tuple[mx.array, ...]:
    """Scores, drafts, q, candidates (absent if k is 0) and random bits of the operation.

    `apart`: how far the drafter is off; `hot`: how far apart the tokens are.
    """
    keys = mx.random.split(mx.random.key(seed), 4)
    scores = hot * mx.random.normal((rows, vocab), key=keys[0])
    logits = scores[:-1] + apart * mx.random.normal((rows - 1, vocab), key=keys[1])
    bits = random_bits(keys[3], rows)
    if not k:
        return scores, mx.random.categorical(logits, key=keys[2]), mx.softmax(logits, axis=-1), bits
    candidates = mx.sort(mx.argpartition(-logits, k - 1, axis=-1)[:, :k], axis=-1)
    logits = mx.take_along_axis(logits, candidates, axis=-1)
    places = mx.random.categorical(logits, key=keys[2])[:, None]
    drafts = mx.take_along_axis(candidates, places, axis=-1)[:, 0]
    return scores, drafts, mx.softmax(logits, axis=-1), candidates, bits


def full(case: tuple[mx.array, ...], block: bool) -> tuple[Any, ...]:
    """The operation's arguments: None where a case of `sampled` has no candidates, and the rule."""
    *first, bits = case
    candidates = first.pop() if len(first) == 4 else None
    return (*first, candidates, bits, block)


def bits_of(*shares: float) -> mx.array:
    """Random bits that stand for these shares of 2^32."""
    return mx.array([round(share * 2**32) for share in shares], dtype=mx.uint32)


def level() -> list[tuple[mx.array, ...]]:
    """Blocks with random bits exactly at a threshold: all probabilities are powers of 2."""
    scores, drafts = mx.zeros((3, 8)), mx.array([0, 5], dtype=mx.int32)
    q = mx.array([[0.25, 0.25, 0.5, 0, 0, 0, 0, 0], [0.125] * 8])
    # An eighth against a quarter: the first draft stays below a half. Then all are level.
    shares = [(0.5, 0.0, 0.5), (0.5 - 2**-24, 0.0, 0.75), (0.5, 0.0, 0.0), (0.0, 0.5, 0.125)]
    shares += [(0.0, 0.5 - 2**-24, 1 - 2**-32), (0.75, 0.75, 0.2 + 2**-32)]
    cases = [(scores, drafts, q, bits_of(*row)) for row in shares]
    # Equal but for less than a unit, which the largest bits see: nothing is left to draw from.
    high, scores, q = 1 - 2**-32, mx.zeros((3, 1024)), mx.full((2, 1024), 2.0**-10)
    q[1, 9] *= 1 + 2**-22
    cases.append((scores, mx.array([3, 9]), q, bits_of(0.0, high, 0.7)))
    cases.append((scores[:2], mx.array([9]), q[1:], bits_of(high, 0.3)))
    return cases


def on_borders(case: tuple[mx.array, ...], tokens: tuple[int, ...]) -> list[tuple[mx.array, ...]]:
    """A case for token rejection, its bonus token drawn from just where these tokens end."""
    scores, drafts, q, bits = case
    kept = int(verify_accept_sample.reference(scores, drafts, q, None, bits, False)[1])
    p = mx.softmax(scores, axis=-1)[kept]
    chances = q[kept] if kept < drafts.size else mx.zeros_like(p)
    ends: Any = mx.cumsum(verify_accept_sample.residual(p, chances, mx.array(1.0))).tolist()
    lasts = [-(-ends[token] * 2**32 // ends[-1]) for token in tokens]
    lasts = [mx.array([last], dtype=mx.uint32) for last in lasts]
    return [(scores, drafts, q, mx.concatenate([bits[:-1], last])) for last in lasts]


def masked(op: Op) -> Op:
    """The operation with the undefined part of an outcome (after a NaN flag) masked."""

    def mask(outcome: mx.array) -> mx.array:
        return mx.where((outcome[0] == 1) & (mx.arange(outcome.size) > 0), -1, outcome)

    return replace(
        op,
        reference=lambda *args, **options: mask(op.reference(*args, **options)),
        launch=lambda launcher, *args, **options: mask(op.launch(launcher, *args, **options)),
    )
