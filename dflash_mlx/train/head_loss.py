"""The head of a drafter in training: cross-entropies, and candidates, without keeping any logits.

The head is frozen, so all that the backward pass needs of the logits is each row's slope [R, H]. It
is computed with the loss, a slice of rows after another.
"""

from typing import Any

import mlx.core as mx

from dflash_mlx.cpu.exponential import softmax
from dflash_mlx.cpu.modules import on_cpu
from dflash_mlx.drafter.drafter import Drafter

MAX_LOGITS = 1 << 22  # computed at once, 16 MiB in float32: larger arrays are slow to allocate


def cross_entropy(drafter: Drafter, hidden: mx.array, labels: mx.array) -> mx.array:
    """Cross-entropy in nats: hidden [R, H], labels [R] in the drafter's ids -> float32 [R]."""

    @mx.custom_function
    def losses_and_slopes(hidden: mx.array, labels: mx.array) -> tuple[mx.array, mx.array]:
        losses, slopes = [], []
        for part, at in slices(drafter, hidden, labels):
            if slopes:  # one slice after another
                (part,) = mx.depends([part], [slopes[-1]])
            loss, slope, _ = loss_and_slope(drafter, part, at)
            losses.append(loss)
            slopes.append(slope)
        return mx.concatenate(losses), mx.concatenate(slopes)

    @losses_and_slopes.vjp
    def backward(
        primals: list[mx.array], cotangents: list[mx.array], outputs: list[mx.array]
    ) -> tuple[mx.array, mx.array]:
        slope = (cotangents[0][:, None] * outputs[1]).astype(primals[0].dtype)
        return slope, mx.zeros_like(primals[1])

    found: Any = losses_and_slopes(hidden, labels)
    return found[0]


def slices(drafter: Drafter, hidden: mx.array, labels: mx.array) -> list[tuple[mx.array, mx.array]]:
    """Hidden states and labels of so many rows as may have logits at once."""
    step = max(1, MAX_LOGITS // drafter.config.drafted)
    starts = range(0, len(labels), step)
    return [(hidden[i : i + step], labels[i : i + step]) for i in starts]


def loss_and_slope(
    drafter: Drafter, hidden: mx.array, labels: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Cross-entropies [R] of hidden states [R, H], their gradients [R, H], and logits [R, V]."""
    logits, at = logits_of(drafter, hidden), labels[:, None]
    chances = softmax(logits) if on_cpu() else mx.softmax(logits, axis=-1)
    right = mx.take_along_axis(chances, at, axis=-1)
    wrong = mx.put_along_axis(chances, at, right - 1, axis=-1)
    return -mx.log(mx.maximum(right[:, 0], 1e-30)), through_head(drafter, hidden, wrong), logits


def logits_of(drafter: Drafter, hidden: mx.array) -> mx.array:
    """The head in float32."""
    return drafter.own_logits(hidden).astype(mx.float32)


def through_head(drafter: Drafter, hidden: mx.array, slopes: mx.array) -> mx.array:
    """Slopes of logits [R, V] as those of the hidden states [R, H] that they are made of."""
    _, (found,) = mx.vjp(lambda x: logits_of(drafter, x), [hidden], [slopes])
    return found


def loss_and_candidates(
    drafter: Drafter, hidden: mx.array, labels: mx.array, count: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Cross-entropies [R], the `count` likeliest tokens of each row, and their logits [R, count].

    A label that is not among them takes the place of the last. The logits are float32.
    """

    @mx.custom_function
    def found(hidden: mx.array, labels: mx.array) -> tuple[mx.array, ...]:
        columns: list[list[mx.array]] = [[], [], [], []]
        for part, at in slices(drafter, hidden, labels):
            if columns[0]:  # one slice after another
                (part,) = mx.depends([part], [columns[1][-1]])
            loss, slope, logits = loss_and_slope(drafter, part, at)
            each = (loss, slope, *candidates_of(logits, at, count))
            for column, array in zip(columns, each, strict=True):
                column.append(array)
        losses, slopes, ids, scores = map(mx.concatenate, columns)
        return losses, ids, scores, slopes

    @found.vjp
    def backward(
        primals: list[mx.array], cotangents: list[mx.array], outputs: list[mx.array]
    ) -> tuple[mx.array, mx.array]:
        loss, _, scores, _ = cotangents
        slope, parts = loss[:, None] * outputs[3], []
        for part, at in slices(drafter, primals[0], mx.arange(len(primals[0]))):
            shape = (len(at), drafter.config.vocab_size)
            spread = mx.put_along_axis(mx.zeros(shape), outputs[1][at], scores[at], axis=-1)
            parts.append(through_head(drafter, part, spread))
        slope = slope + mx.concatenate(parts)
        return slope.astype(primals[0].dtype), mx.zeros_like(primals[1])

    made: Any = found(hidden, labels)
    losses, ids, scores, _ = made
    return losses, mx.stop_gradient(ids), scores


def candidates_of(logits: mx.array, labels: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids [R, count] and logits of the likeliest tokens; a label that is none in the last."""
    ids = mx.argpartition(-logits, count - 1, axis=-1)[:, :count]
    order = mx.argsort(-mx.take_along_axis(logits, ids, axis=-1), axis=-1)
    ids = mx.take_along_axis(ids, order, axis=-1)
    there = (ids == labels[:, None]).any(axis=-1)
    last = mx.where(there, ids[:, -1], labels)
    ids = mx.concatenate([ids[:, :-1], last[:, None].astype(ids.dtype)], axis=-1)
    return ids, mx.take_along_axis(logits, ids, axis=-1)
