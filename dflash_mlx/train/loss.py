"""The drafter's training forward pass and its loss (DFlash paper section 3.3).

Each block is one batch element; those of a sequence share its context's keys and values. So it is
the computation of inference, for many anchors at once. The target gets no gradient.
"""

import math

import mlx.core as mx

from dflash_mlx.drafter.config import DraftConfig
from dflash_mlx.drafter.drafter import Drafter
from dflash_mlx.drafter.model import KeysValues, block_mask, context_mask
from dflash_mlx.drafter.shared_rows import SharedRows
from dflash_mlx.drafter.vocabulary import draft_ids

from .head_loss import cross_entropy, loss_and_candidates
from .selector_loss import selector_losses

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
    drafter: Drafter, context: list[KeysValues], tokens: mx.array, anchors: mx.array
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
    drafter: Drafter,
    context: list[KeysValues],
    tokens: mx.array,
    lengths: mx.array,
    anchors: mx.array,
) -> tuple[mx.array, mx.array]:
    """Cross-entropies of all positions and 0/1 weights of valid ones, both float32 [n, m, B - 1].

    Those of a DFlash 2 drafter are sums of the backbone's and the selector's.

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
    selector, extra = drafter.model.selector, drafter.config.dflash2
    if selector is None or extra is None:
        losses = cross_entropy(drafter, rows, wanted)
    else:
        unary, ids, logits = loss_and_candidates(drafter, rows, wanted, extra.selector_top_k)
        each = labels.reshape(positions.shape)
        before = mx.concatenate([first[..., None], each[..., :-1]], axis=-1).reshape(-1)
        losses = unary + selector_losses(selector, rows, ids, logits, before, wanted)
    return losses.reshape(positions.shape), counts.astype(mx.float32)
