"""The drafter's training forward pass and its loss (DFlash paper section 3.3).

Each block is one batch element; the blocks of a sequence share its context's keys and values. So
this is the computation of inference, for many anchors at once. The target gets no gradient.
"""

import math
from typing import Any

import mlx.core as mx

from dflash_mlx.cpu.modules import softmax
from dflash_mlx.drafters.dflash.config import DraftConfig
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.model import (
    CandidateSelector,
    KeysValues,
    SharedRows,
    block_mask,
    context_mask,
    draft_ids,
)
from dflash_mlx.kernels.dispatch import on_cpu

# The head of a drafter in training

MAX_LOGITS = 1 << 22  # computed at once, 16 MiB in float32: larger arrays are slow to allocate


def cross_entropy(drafter: DFlashDrafter, hidden: mx.array, labels: mx.array) -> mx.array:
    """Cross-entropy in nats: hidden [R, H], labels [R] in the drafter's ids -> float32 [R]."""

    @mx.custom_function
    def losses_and_slopes(hidden: mx.array, labels: mx.array) -> tuple[mx.array, mx.array]:
        losses = []
        slopes = []
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

    outputs: Any = losses_and_slopes(hidden, labels)
    return outputs[0]


def slices(
    drafter: DFlashDrafter, hidden: mx.array, labels: mx.array
) -> list[tuple[mx.array, mx.array]]:
    """Hidden states and labels in slices of rows, each with at most MAX_LOGITS logits."""
    step = max(1, MAX_LOGITS // drafter.config.drafted)
    starts = range(0, len(labels), step)
    return [(hidden[i : i + step], labels[i : i + step]) for i in starts]


def loss_and_slope(
    drafter: DFlashDrafter, hidden: mx.array, labels: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Cross-entropies [R] of hidden states [R, H], their gradients [R, H], and logits [R, V]."""
    logits = logits_of(drafter, hidden)
    at = labels[:, None]
    probabilities = softmax(logits) if on_cpu() else mx.softmax(logits, axis=-1)
    right = mx.take_along_axis(probabilities, at, axis=-1)
    loss = -mx.log(mx.maximum(right[:, 0], 1e-30))
    # The gradient by the logits: the probabilities, less 1 at the label.
    slopes = mx.put_along_axis(probabilities, at, right - 1, axis=-1)
    return loss, through_head(drafter, hidden, slopes), logits


def logits_of(drafter: DFlashDrafter, hidden: mx.array) -> mx.array:
    """The head in float32."""
    return drafter.own_logits(hidden).astype(mx.float32)


def through_head(drafter: DFlashDrafter, hidden: mx.array, slopes: mx.array) -> mx.array:
    """The gradient by hidden states [R, H], from the gradient by their logits [R, V]."""
    _, (slope,) = mx.vjp(lambda x: logits_of(drafter, x), [hidden], [slopes])
    return slope


def loss_and_candidates(
    drafter: DFlashDrafter, hidden: mx.array, labels: mx.array, count: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Cross-entropies [R], the `count` likeliest tokens of each row, and their logits [R, count].

    A label that is not among them takes the place of the last. The logits are float32.
    """

    @mx.custom_function
    def losses_and_candidates(hidden: mx.array, labels: mx.array) -> tuple[mx.array, ...]:
        columns: list[list[mx.array]] = [[], [], [], []]
        for part, at in slices(drafter, hidden, labels):
            if columns[0]:  # one slice after another
                (part,) = mx.depends([part], [columns[1][-1]])
            loss, slope, logits = loss_and_slope(drafter, part, at)
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
        for part, at in slices(drafter, primals[0], mx.arange(len(primals[0]))):
            shape = (len(at), drafter.config.vocab_size)
            spread = mx.put_along_axis(mx.zeros(shape), outputs[1][at], scores[at], axis=-1)
            parts.append(through_head(drafter, part, spread))
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


# The loss of DFlash 2's candidate selector


def selector_losses(
    selector: CandidateSelector,
    hidden: mx.array,
    candidates: mx.array,
    logits: mx.array,
    before: mx.array,
    labels: mx.array,
) -> mx.array:
    """Cross-entropy among the candidates in nats, float32 [R].

    hidden: [R, H]. candidates: ids [R, k], the label among them; logits: [R, k]. before: the token
    before each position, labels: the token there, both [R].
    """
    score = candidate_scores(selector, hidden, candidates, logits, before)
    right = mx.argmax(candidates == labels[:, None], axis=-1)[:, None]
    chosen = mx.take_along_axis(score, right, axis=-1)[:, 0]
    return mx.logsumexp(score, axis=-1) - chosen


def candidate_scores(
    selector: CandidateSelector,
    hidden: mx.array,
    candidates: mx.array,
    logits: mx.array,
    before: mx.array,
) -> mx.array:
    """S(before, b) of each candidate b, float32 [R, k]; arguments as of `selector_losses`."""
    left = selector.predecessor_codebook[before] * selector.hidden_projection(hidden)
    bonus = selector.successor_codebook[candidates] @ left[..., None]
    return logits + bonus[..., 0].astype(mx.float32)


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


def attention_masks(config: DraftConfig, anchors: mx.array, rows: int) -> list[mx.array | None]:
    """The mask of each layer, bool [n, 1, T, rows + T], for blocks at anchors [n].

    A block sees the context rows strictly before its anchor (the anchor has no target hidden state
    at inference) and its own positions; see the DFlash paper, section 3.3. `rows`: of context.
    """
    start = anchors[:, None, None]
    positions = start + mx.arange(config.block_size)[:, None]
    made: dict[tuple[bool, bool], mx.array] = {}
    for layer in range(config.num_layers):
        kind = config.sliding[layer], config.causal(layer)
        if kind not in made:
            before = context_mask(config, layer, positions, mx.arange(rows)[None, None], start)
            inside = block_mask(config, layer, positions, positions.swapaxes(1, 2))
            made[kind] = mx.concatenate([before, inside], axis=-1)[:, None]
    return [made[config.sliding[i], config.causal(i)] for i in range(config.num_layers)]


def block_hidden(
    drafter: DFlashDrafter, context: list[KeysValues], tokens: mx.array, anchors: mx.array
) -> mx.array:
    """Hidden states of the positions after the anchor: [n, m, B - 1, H].

    context: keys and values [n, nKV, S, d] of each layer, for positions 0 .. S-1; the m blocks of a
    sequence share them. tokens: the anchors' token ids [n, m]. anchors: their positions [n, m].
    """
    config = drafter.config
    n, m = anchors.shape
    flat = anchors.reshape(-1)
    masks = mx.full((n * m, config.block_size - 1), config.mask_token_id, dtype=tokens.dtype)
    ids = mx.concatenate([tokens.reshape(-1, 1), masks], axis=1)
    shared = [SharedRows(keys, values, m) for keys, values in context]
    rows = context[0][0].shape[2]
    hidden = drafter.model(drafter.embed(ids), shared, flat, attention_masks(config, flat, rows))
    return hidden[:, 1:].reshape(n, m, config.block_size - 1, -1)


def block_losses(
    drafter: DFlashDrafter,
    context: list[KeysValues],
    tokens: mx.array,
    lengths: mx.array,
    anchors: mx.array,
) -> tuple[mx.array, mx.array]:
    """Cross-entropies of all positions and 0/1 weights of valid ones, both float32 [n, m, B - 1].

    For a DFlash 2 drafter each is the sum of the backbone's and the selector's.

    context: keys and values [n, nKV, S, d] of each layer, at least up to the last anchor. tokens:
    [n, L], padded. lengths: [n], without padding. anchors: [n, m], -1 for padding. The label of
    position k is the token at anchor + k; positions after the end of the sequence are not valid,
    nor those whose label the drafter does not have.
    """
    positions = anchors[..., None] + mx.arange(1, drafter.config.block_size)
    counts = (anchors[..., None] >= 0) & (positions < lengths[:, None, None])
    at = mx.clip(positions, 0, tokens.shape[1] - 1)
    labels = mx.take_along_axis(tokens, at.reshape(len(at), -1), axis=1)
    wanted = labels.reshape(-1)
    if (distances := drafter.model.get("d2t")) is not None:
        wanted = draft_ids(distances, drafter.config.vocab_size)[wanted]
        counts = counts & (wanted >= 0).reshape(counts.shape)
        wanted = mx.maximum(wanted, 0)
    placed = mx.maximum(anchors, 0)
    first = mx.take_along_axis(tokens, placed, axis=1)
    hidden = block_hidden(drafter, context, first, placed)
    rows = hidden.reshape(-1, hidden.shape[-1])
    selector = drafter.model.selector
    extra = drafter.config.dflash2
    if selector is None or extra is None:
        losses = cross_entropy(drafter, rows, wanted)
    else:
        unary, ids, logits = loss_and_candidates(drafter, rows, wanted, extra.selector_top_k)
        tokens_at = labels.reshape(positions.shape)
        before = mx.concatenate([first[..., None], tokens_at[..., :-1]], axis=-1).reshape(-1)
        losses = unary + selector_losses(selector, rows, ids, logits, before, wanted)
    return losses.reshape(positions.shape), counts.astype(mx.float32)
