"""The cross-entropy of drafts at a frozen head, and the weights of positions in a block."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from dflash_mlx.cpu.modules import softmax
from dflash_mlx.kernels.dispatch import on_cpu

# The head of a drafter in training

MAX_LOGITS = 1 << 22  # computed at once, 16 MiB in float32: larger arrays are slow to allocate


@dataclass(frozen=True, slots=True)
class OutputHead:
    """What makes `size` logits [R, Vd] of a drafter's hidden states [R, H]; it is not trained."""

    logits: Callable[[mx.array], mx.array]
    size: int


def cross_entropy(head: OutputHead, hidden: mx.array, labels: mx.array) -> mx.array:
    """Cross-entropy in nats: hidden [R, H], labels [R] in the drafter's ids -> float32 [R]."""

    @mx.custom_function
    def losses_and_slopes(hidden: mx.array, labels: mx.array) -> tuple[mx.array, mx.array]:
        losses = []
        slopes = []
        for part, at in slices(head, hidden, labels):
            if slopes:  # one slice after another
                (part,) = mx.depends([part], [slopes[-1]])
            loss, slope, _ = loss_and_slope(head, part, at)
            losses.append(loss)
            slopes.append(slope)
        return mx.concatenate(losses), mx.concatenate(slopes)

    @losses_and_slopes.vjp
    def backward(
        primals: list[mx.array], cotangents: list[mx.array], outputs: list[mx.array]
    ) -> tuple[mx.array, mx.array]:
        slope = (cotangents[0][:, None] * outputs[1]).astype(primals[0].dtype)
        return slope, mx.zeros_like(primals[1])

    outputs: Any = losses_and_slopes(hidden, labels)
    return outputs[0]


def slices(head: OutputHead, hidden: mx.array, labels: mx.array) -> list[tuple[mx.array, mx.array]]:
    """Hidden states and labels in slices of rows, each with at most MAX_LOGITS logits."""
    step = max(1, MAX_LOGITS // head.size)
    starts = range(0, len(labels), step)
    return [(hidden[i : i + step], labels[i : i + step]) for i in starts]


def loss_and_slope(
    head: OutputHead, hidden: mx.array, labels: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Cross-entropies [R] of hidden states [R, H], their gradients [R, H], and logits [R, V]."""
    logits = logits_of(head, hidden)
    at = labels[:, None]
    probabilities = softmax(logits) if on_cpu() else mx.softmax(logits, axis=-1)
    right = mx.take_along_axis(probabilities, at, axis=-1)
    loss = -mx.log(mx.maximum(right[:, 0], 1e-30))
    # The gradient by the logits: the probabilities, less 1 at the label.
    slopes = mx.put_along_axis(probabilities, at, right - 1, axis=-1)
    return loss, through_head(head, hidden, slopes), logits


def logits_of(head: OutputHead, hidden: mx.array) -> mx.array:
    """The head in float32."""
    return head.logits(hidden).astype(mx.float32)


def through_head(head: OutputHead, hidden: mx.array, slopes: mx.array) -> mx.array:
    """The gradient by hidden states [R, H], from the gradient by their logits [R, V]."""
    _, (slope,) = mx.vjp(lambda x: logits_of(head, x), [hidden], [slopes])
    return slope


def loss_and_candidates(
    head: OutputHead, hidden: mx.array, labels: mx.array, count: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Cross-entropies [R], the `count` likeliest tokens of each row, and their logits [R, count].

    A label that is not among them takes the place of the last. The logits are float32.
    """

    @mx.custom_function
    def losses_and_candidates(hidden: mx.array, labels: mx.array) -> tuple[mx.array, ...]:
        columns: list[list[mx.array]] = [[], [], [], []]
        for part, at in slices(head, hidden, labels):
            if columns[0]:  # one slice after another
                (part,) = mx.depends([part], [columns[1][-1]])
            loss, slope, logits = loss_and_slope(head, part, at)
            arrays = (loss, slope, *candidates_of(logits, at, count))
            for column, array in zip(columns, arrays, strict=True):
                column.append(array)
        losses, slopes, ids, scores = map(mx.concatenate, columns)
        return losses, ids, scores, slopes

    @losses_and_candidates.vjp
    def backward(
        primals: list[mx.array], cotangents: list[mx.array], outputs: list[mx.array]
    ) -> tuple[mx.array, mx.array]:
        loss, _, scores, _ = cotangents
        slope = loss[:, None] * outputs[3]
        parts = []
        for part, at in slices(head, primals[0], mx.arange(len(primals[0]))):
            shape = (len(at), head.size)
            spread = mx.put_along_axis(mx.zeros(shape), outputs[1][at], scores[at], axis=-1)
            parts.append(through_head(head, part, spread))
        slope = slope + mx.concatenate(parts)
        return slope.astype(primals[0].dtype), mx.zeros_like(primals[1])

    outputs: Any = losses_and_candidates(hidden, labels)
    losses, ids, scores, _ = outputs
    return losses, mx.stop_gradient(ids), scores


def candidates_of(logits: mx.array, labels: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids [R, count] and logits of the likeliest tokens; a missing label replaces the last one."""
    ids = mx.argpartition(-logits, count - 1, axis=-1)[:, :count]
    order = mx.argsort(-mx.take_along_axis(logits, ids, axis=-1), axis=-1)
    ids = mx.take_along_axis(ids, order, axis=-1)
    there = (ids == labels[:, None]).any(axis=-1)
    last = mx.where(there, ids[:, -1], labels)
    ids = mx.concatenate([ids[:, :-1], last[:, None].astype(ids.dtype)], axis=-1)
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
