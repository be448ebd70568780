"""The drafter's training forward pass and its loss (DFlash paper section 3.3).

Every block is one batch element at its own position, with the context of its sequence; this is the
inference computation, many anchors at a time. Knows no optimiser, and gives the target no gradient.
"""

import math

import mlx.core as mx

from dflash_mlx.drafter.config import DraftConfig
from dflash_mlx.drafter.drafter import Drafter
from dflash_mlx.drafter.model import KeysValues, block_mask, context_mask

# Decay of the slot weights that the paper gives for three block sizes (section 4.1).
GAMMAS = ((8, 4.0), (10, 5.0), (16, 7.0))
LOGITS = 1 << 26  # logits computed at once, 256 MiB in float32


def default_gamma(block_size: int) -> float:
    """The paper's decay for 8, 10 and 16; straight lines between and beyond, 1 at least."""
    (b0, g0), (b1, g1) = GAMMAS[:2] if block_size <= GAMMAS[1][0] else GAMMAS[1:]
    return max(1.0, g0 + (block_size - b0) * (g1 - g0) / (b1 - b0))


def decay_weights(block_size: int, gamma: float) -> mx.array:
    """w_k = exp(-(k - 1) / gamma) of slots k = 1 .. B-1: float32 [B - 1]."""
    return mx.array([math.exp(-(k - 1) / gamma) for k in range(1, block_size)])


def dpace_weights(entropies: mx.array, valid: mx.array, alpha: float = 0.5) -> mx.array:
    """D-PACE (arXiv 2605.18810): the weight of a slot is what its acceptance can still bring.

    entropies, valid: [..., B - 1] cross-entropies and 0/1 weights. With q the probability of the
    right token, smoothed to (1 - alpha) q + alpha, the weight of slot j is the sum over m >= j of
    the product of the first m probabilities. No gradient flows through it.
    """
    smooth = ((1 - alpha) * mx.exp(-mx.stop_gradient(entropies)) + alpha) * valid
    return mx.cumsum(mx.cumprod(smooth, axis=-1), axis=-1, reverse=True) * valid


def visible(config: DraftConfig, anchors: mx.array, rows: int) -> list[mx.array | None]:
    """Each layer's mask [n, 1, T, rows + T] for blocks at anchors [n] before `rows` context rows.

    Context strictly before the anchor, whose own taps do not exist yet at inference; then the
    block's own slots (spec sections 1.5 and 6.2).
    """
    start = anchors[:, None, None]
    slots = start + mx.arange(config.block_size)[:, None]
    made: dict[tuple[bool, bool], mx.array] = {}
    for layer in range(config.num_layers):
        kind = config.sliding[layer], config.causal(layer)
        if kind not in made:
            before = context_mask(config, layer, slots, mx.arange(rows)[None, None], start)
            inside = block_mask(config, layer, slots, slots.swapaxes(1, 2))
            made[kind] = mx.concatenate([before, inside], axis=-1)[:, None]
    return [made[config.sliding[i], config.causal(i)] for i in range(config.num_layers)]


def block_hidden(
    drafter: Drafter, context: list[KeysValues], tokens: mx.array, anchors: mx.array
) -> mx.array:
    """Hidden states of the slots after the anchor: [n, m, B - 1, H].

    context: of each layer, keys and values [n, nKV, S, d] of rows 0 .. S-1. tokens: [n, m] anchor
    tokens. anchors: [n, m] their positions.
    """
    config = drafter.config
    n, m = anchors.shape
    flat = anchors.reshape(-1)
    masks = mx.full((n * m, config.block_size - 1), config.mask_token_id, dtype=tokens.dtype)
    ids = mx.concatenate([tokens.reshape(-1, 1), masks], axis=1)
    shared = [(mx.repeat(k, m, axis=0), mx.repeat(v, m, axis=0)) for k, v in context]
    rows = context[0][0].shape[2]
    hidden = drafter.model(drafter.embed(ids), shared, flat, visible(config, flat, rows))
    return hidden[:, 1:].reshape(n, m, config.block_size - 1, -1)


def cross_entropy(drafter: Drafter, hidden: mx.array, labels: mx.array) -> mx.array:
    """Cross-entropy in nats of each row: hidden [R, H], labels [R] -> float32 [R].

    A big vocabulary's logits are made a slice of rows at a time, and again for the gradient.
    """

    def rows(hidden: mx.array, labels: mx.array) -> mx.array:
        # The gradient of log(softmax) costs no second exponential, that of logsumexp does.
        chances = mx.softmax(drafter.head(hidden).astype(mx.float32), axis=-1)
        at = mx.stop_gradient(labels)[:, None]
        right = mx.take_along_axis(chances, at, axis=-1)[:, 0]
        return -mx.log(mx.maximum(right, 1e-30))

    step = max(1, LOGITS // drafter.config.vocab_size)
    if len(labels) <= step:
        return rows(hidden, labels)
    again = mx.checkpoint(rows)
    parts = range(0, len(labels), step)
    return mx.concatenate([again(hidden[i : i + step], labels[i : i + step]) for i in parts])


def block_losses(
    drafter: Drafter, taps: mx.array, tokens: mx.array, lengths: mx.array, anchors: mx.array
) -> tuple[mx.array, mx.array]:
    """Cross-entropies of all slots and whether they count, both float32 [n, m, B - 1].

    taps: [n, S, K * Ht] of at least the rows before the last anchor. tokens: [n, L] padded.
    lengths: [n] without padding. anchors: [n, m], -1 for none. Slot k's label is the token at
    anchor + k; slots after the sequence's end do not count.
    """
    slots = anchors[..., None] + mx.arange(1, drafter.config.block_size)
    counts = (anchors[..., None] >= 0) & (slots < lengths[:, None, None])
    at = mx.clip(slots, 0, tokens.shape[1] - 1)
    labels = mx.take_along_axis(tokens, at.reshape(len(at), -1), axis=1)
    placed = mx.maximum(anchors, 0)
    context = drafter.model.context(taps, 0)
    first = mx.take_along_axis(tokens, placed, axis=1)
    hidden = block_hidden(drafter, context, first, placed)
    losses = cross_entropy(drafter, hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1))
    return losses.reshape(slots.shape), counts.astype(mx.float32)
