"""A DFlash drafter in training (DFlash paper section 3.3): its blocks, their losses and drafts.

Each block is one batch element; the blocks of a sequence share its context's keys and values. So
this is the computation of inference, for many anchors at once. The target gets no gradient.
"""

from dataclasses import dataclass

import mlx.core as mx

from dflash_mlx.drafters.dflash.config import DraftConfig
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.model import (
    CandidateSelector,
    KeysValues,
    SharedRows,
    block_mask,
    context_mask,
    draft_ids,
    target_ids,
)

from .data import Text
from .loss import cross_entropy


@dataclass(frozen=True, slots=True)
class DFlashStudent:
    """A drafter in training: it computes what it computes in decoding, for many blocks at once.

    anchors: positions [n, m] of m blocks in each sequence of a text, -1 for padding. A block drafts
    the B - 1 tokens after its anchor. The context is what the blocks of a sequence share.
    """

    drafter: DFlashDrafter

    def context(self, text: Text) -> list[KeysValues]:
        """The keys and values [n, nKV, S, d] of each layer, at all positions that have taps."""
        return self.drafter.model.context(text.taps, 0)

    def losses(
        self, context: list[KeysValues], text: Text, anchors: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Cross-entropies in nats, and 0/1 weights of valid positions: float32 [n, m, B - 1].

        For a DFlash 2 drafter each is the sum of the backbone's and the selector's. Positions whose
        label the drafter does not have are not valid.
        """
        drafter = self.drafter
        first = text.tokens_at(anchors)
        labels, counts = text.labels(anchors, drafter.config.block_size - 1)
        wanted = labels.reshape(-1)
        if (distances := drafter.model.get("d2t")) is not None:
            wanted = draft_ids(distances, drafter.config.vocab_size)[wanted]
            counts = counts & (wanted >= 0).reshape(counts.shape)
            wanted = mx.maximum(wanted, 0)
        hidden = block_hidden(drafter, context, first, mx.maximum(anchors, 0))
        rows = hidden.reshape(-1, hidden.shape[-1])
        selector = drafter.model.selector
        extra = drafter.config.dflash2
        count = 0 if extra is None else extra.selector_top_k
        losses, *candidates = cross_entropy(drafter.own_logits, rows, wanted, count)
        if selector is not None:  # its cross-entropy among the candidates
            ids, logits = candidates
            before = mx.concatenate([first[..., None], labels[..., :-1]], axis=-1).reshape(-1)
            scores = candidate_scores(selector, rows, ids, logits, before)
            right = mx.argmax(ids == wanted[:, None], axis=-1)[:, None]
            chosen = mx.take_along_axis(scores, right, axis=-1)[:, 0]
            losses = losses + (mx.logsumexp(scores, axis=-1) - chosen)
        return losses.reshape(counts.shape), counts.astype(mx.float32)

    def drafts(self, context: list[KeysValues], text: Text, anchors: mx.array) -> mx.array:
        """The likeliest drafts [n, m, B - 1]; a draft after a wrong one may be any token."""
        first = text.tokens_at(anchors)
        hidden = block_hidden(self.drafter, context, first, anchors)
        drafts = greedy_drafts(self.drafter, hidden.flatten(0, 1), first.reshape(-1))
        return drafts.reshape(*anchors.shape, -1)


def attention_masks(config: DraftConfig, anchors: mx.array, rows: int) -> list[mx.array | None]:
    """The mask of each layer, bool [n, 1, T, rows + T], for blocks at anchors [n].

    A block sees the context rows strictly before its anchor (the anchor has no target hidden state
    at inference) and its own positions; see the DFlash paper, section 3.3. `rows`: of context.
    """
    start = anchors[:, None, None]
    positions = start + mx.arange(config.block_size)[:, None]
    made: dict[tuple[bool, bool], mx.array] = {}
    masks = list[mx.array | None]()
    for layer in range(config.num_layers):
        kind = config.sliding[layer], config.causal(layer)
        if kind not in made:
            before = context_mask(config, layer, positions, mx.arange(rows)[None, None], start)
            inside = block_mask(config, layer, positions, positions.swapaxes(1, 2))
            made[kind] = mx.concatenate([before, inside], axis=-1)[:, None]
        masks.append(made[kind])
    return masks


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


def greedy_drafts(drafter: DFlashDrafter, hidden: mx.array, anchors: mx.array) -> mx.array:
    """The drafts [n, B - 1] of hidden states [n, B - 1, H] after anchors [n] at temperature 0."""
    logits = drafter.own_logits(hidden)
    selector = drafter.model.selector
    extra = drafter.config.dflash2
    distances = drafter.model.get("d2t")
    if selector is None or extra is None:
        drafts = mx.argmax(logits, axis=-1)
        return drafts if distances is None else target_ids(distances)[drafts]
    # Sorted by id, as in decoding: of equal scores the smallest id wins.
    k = extra.selector_top_k
    candidates = mx.sort(mx.argpartition(-logits, k - 1, axis=-1)[..., :k], axis=-1)
    scores = mx.take_along_axis(logits, candidates, axis=-1).astype(mx.float32)
    before = anchors
    chosen = []
    for t in range(hidden.shape[1]):
        total = candidate_scores(selector, hidden[:, t], candidates[:, t], scores[:, t], before)
        best = mx.argmax(total, axis=-1)[:, None]
        before = mx.take_along_axis(candidates[:, t], best, axis=-1)[:, 0]
        chosen.append(before)
    return mx.stack(chosen, axis=1)


def candidate_scores(
    selector: CandidateSelector,
    hidden: mx.array,
    candidates: mx.array,
    logits: mx.array,
    before: mx.array,
) -> mx.array:
    """S(before, b) of each candidate b of DFlash 2's selector, float32 [R, k].

    hidden: [R, H]. candidates: ids [R, k], and their logits [R, k]. before: the token before each
    position [R].
    """
    left = selector.predecessor_codebook[before] * selector.hidden_projection(hidden)
    bonus = selector.successor_codebook[candidates] @ left[..., None]
    return logits + bonus[..., 0].astype(mx.float32)
