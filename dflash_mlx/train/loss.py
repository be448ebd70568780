"""The cross-entropy of drafts at a frozen head, and the weights of positions in a block."""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from dflash_mlx.cpu.modules import softmax
from dflash_mlx.kernels.dispatch import on_cpu

MAX_LOGITS = 1 << 22  # computed at once, 16 MiB in float32: larger arrays are slow to allocate
Head = Callable[[mx.array], mx.array]  # hidden states [R, H] -> logits [R, Vd]; not trained


def cross_entropy(
    head: Head, hidden: mx.array, labels: mx.array, count: int = 0
) -> tuple[mx.array, ...]:
    """Cross-entropies in nats: hidden [R, H], labels [R] in the drafter's ids -> float32 [R].

    Then, unless `count` is 0, the `count` likeliest tokens of each row and their logits, float32
    [R, count]. A label that is not among them takes the place of the last. The gradient is computed
    along with the losses, of at most MAX_LOGITS logits at once.
    """
    size = head(hidden[:1]).shape[-1]
    step = max(1, MAX_LOGITS // size)
    starts = range(0, len(labels), step)

    @mx.custom_function
    def forward(hidden: mx.array, labels: mx.array) -> tuple[mx.array, ...]:
        parts = list[tuple[mx.array, ...]]()
        for i in starts:
            part = hidden[i : i + step]
            if parts:  # one slice after another
                (part,) = mx.depends([part], [parts[-1][1]])
            at = labels[i : i + step, None]
            loss, slope, logits = loss_and_slope(head, part, at)
            candidates = candidates_of(logits, at, count) if count else ()
            parts.append((loss, slope, *candidates))
        return tuple(mx.concatenate(list(column)) for column in zip(*parts, strict=True))

    @forward.vjp
    def backward(
        primals: list[mx.array], cotangents: list[mx.array], outputs: list[mx.array]
    ) -> tuple[mx.array, mx.array]:
        hidden, labels = primals
        slope = cotangents[0][:, None] * outputs[1]
        if count:
            parts = []
            for i in starts:
                ids = outputs[2][i : i + step]
                spread = mx.zeros((len(ids), size))
                spread = mx.put_along_axis(spread, ids, cotangents[3][i : i + step], axis=-1)
                parts.append(through_head(head, hidden[i : i + step], spread))
            slope = slope + mx.concatenate(parts)
        return slope.astype(hidden.dtype), mx.zeros_like(labels)

    outputs: Any = forward(hidden, labels)
    losses, _, *candidates = outputs
    if not candidates:
        return (losses,)
    ids, logits = candidates
    return losses, mx.stop_gradient(ids), logits


def loss_and_slope(
    head: Head, hidden: mx.array, labels: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Cross-entropies [R] of hidden states [R, H], their gradients [R, H], and logits [R, V].

    labels: [R, 1].
    """
    logits = head(hidden).astype(mx.float32)
    probabilities = softmax(logits) if on_cpu() else mx.softmax(logits, axis=-1)
    right = mx.take_along_axis(probabilities, labels, axis=-1)
    loss = -mx.log(mx.maximum(right[:, 0], 1e-30))
    # The gradient by the logits: the probabilities, less 1 at the label.
    slopes = mx.put_along_axis(probabilities, labels, right - 1, axis=-1)
    return loss, through_head(head, hidden, slopes), logits


def through_head(head: Head, hidden: mx.array, slopes: mx.array) -> mx.array:
    """The gradient by hidden states [R, H], from the gradient by their logits [R, V]."""
    _, (slope,) = mx.vjp(lambda x: head(x).astype(mx.float32), [hidden], [slopes])
    return slope


def candidates_of(logits: mx.array, labels: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids [R, count] and logits of the likeliest tokens; a missing label replaces the last one."""
    ids = mx.argpartition(-logits, count - 1, axis=-1)[:, :count]
    order = mx.argsort(-mx.take_along_axis(logits, ids, axis=-1), axis=-1)
    ids = mx.take_along_axis(ids, order, axis=-1)
    there = (ids == labels).any(axis=-1, keepdims=True)
    last = mx.where(there, ids[:, -1:], labels).astype(ids.dtype)
    ids = mx.concatenate([ids[:, :-1], last], axis=-1)
    return ids, mx.take_along_axis(logits, ids, axis=-1)


# Block size and decay of the position weights (DFlash paper, section 4.1).
GAMMAS = ((8, 4.0), (10, 5.0), (16, 7.0))


def default_gamma(block_size: int) -> float:
    """The paper's decay for block size 8, 10 and 16; linear otherwise, at least 1."""
    (b0, g0), (b1, g1) = GAMMAS[:2] if block_size <= GAMMAS[1][0] else GAMMAS[1:]
    return max(1.0, g0 + (block_size - b0) * (g1 - g0) / (b1 - b0))


def decay_weights(block_size: int, gamma: float) -> mx.array:
    """w_k = exp(-(k - 1) / gamma) of positions k = 1 .. B-1: float32 [B - 1]."""
    return mx.array([math.exp(-(k - 1) / gamma) for k in range(1, block_size)])


def dpace_weights(entropies: mx.array, valid: mx.array, alpha: float = 0.5) -> mx.array:
    """Slot weights of D-PACE (arXiv 2605.18810), float32 [..., B - 1].

    entropies, valid: [..., B - 1] cross-entropies and 0/1 weights. With q the probability of the
    right token, smoothed to (1 - alpha) q + alpha, the weight of position j is the sum over m >= j
    of the product of the first m probabilities. The weights have no gradient.
    """
    smooth = ((1 - alpha) * mx.exp(-mx.stop_gradient(entropies)) + alpha) * valid
    return mx.cumsum(mx.cumprod(smooth, axis=-1), axis=-1, reverse=True) * valid
