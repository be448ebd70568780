"""A DFlash drafter: its context caches, and the blocks of several sequences in one pass.

Context rows belong to committed tokens only, so a cache rewinds only when a conversation does.
"""

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx

from dflash_mlx.drafters.bound import BoundDrafter, Map, TapCache
from dflash_mlx.drafters.chain import ChainBlock, Chains
from dflash_mlx.speculation.drafts import DraftBlock, Independent
from dflash_mlx.speculation.sampling import Draw

from .config import DraftConfig
from .markov import Walks
from .model import CachedRows, DraftModel, LayerMask, block_mask, context_mask


class DFlashDrafter(BoundDrafter):
    model: DraftModel
    config: DraftConfig

    def __init__(self, model: DraftModel, embed: Map, head: Map, head_type: mx.Dtype | None = None):
        super().__init__(model, embed, head, head_type, model.config.target_layer_ids)
        self.kind = "dflash" if self.config.dspark is None else "dspark"
        self.block_size = self.config.block_size
        self._masks: dict[tuple[bool, bool], tuple[tuple[int, int], mx.array]] = {}

    def row_bytes(self, item: int) -> int:
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * item

    def embed(self, ids: mx.array) -> mx.array:
        x = super().embed(ids)
        if "embed_tokens" in self.model and (factor := self.config.own_embedding_scale) != 1.0:
            x = x * factor
        if (row := self.model.get("mask_embedding")) is not None:
            x = mx.where((ids == self.config.mask_token_id)[..., None], row.astype(x.dtype), x)
        scale = self.config.input_embedding_scale
        return x if scale == 1.0 else x * scale

    def head(self, hidden: mx.array) -> mx.array:
        """Hidden states [..., H] -> logits [..., V]; -inf outside the drafter's vocabulary."""
        return self.model.spread(self.own_logits(hidden))

    def own_logits(self, hidden: mx.array) -> mx.array:
        logits = super().own_logits(hidden)
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * mx.tanh(logits / cap)

    def draft(
        self,
        caches: Sequence["DraftCache"],
        anchors: Sequence[int],
        width: int,
        draws: Sequence[Draw | None] = (),
    ) -> list[DraftBlock]:
        """A lazy pass over [anchor, mask, ...] of each sequence, width - 1 drafts (paper, 3.2)."""
        hidden = self._hidden(caches, anchors, width)
        if self.config.dspark is not None:
            walks = Walks(self.model, self.own_logits(self.leave(hidden)), hidden)
            chains = Chains(walks, caches, anchors, width - 1, draws)
            return [ChainBlock(chains, number) for number in range(len(caches))]
        logits = self.head(self.leave(hidden))
        select = self.model.selector
        if select is None:
            return [Independent(rows) for rows in logits]
        return [select(*rows) for rows in zip(logits, hidden, anchors, strict=True)]

    def _hidden(
        self, caches: Sequence["DraftCache"], anchors: Sequence[int], width: int
    ) -> mx.array:
        """Hidden states [B, width - 1, H] of the positions that draft."""
        self.commit_waiting(caches)
        first = 0 if self.config.from_anchor else 1
        rows = width - 1 + first
        fill = [self.config.mask_token_id] * (rows - 1)
        x = self.embed(mx.array([[anchor, *fill] for anchor in anchors]))
        visible = [cache.visible(rows) for cache in caches]
        if len(caches) == 1:
            context, masks = visible[0]
            offset = caches[0].offset
            return self.model(x, context, offset, masks)[:, first:]
        context = [list(layer) for layer in zip(*(rows for rows, _ in visible), strict=True)]
        masks = [list(layer) for layer in zip(*(seen for _, seen in visible), strict=True)]
        offsets = mx.array([cache.offset for cache in caches])
        return self.model(x, context, offsets, masks)[:, first:]

    def commit_waiting(self, caches: Sequence["DraftCache"]) -> None:
        waiting = [cache for cache in caches if cache.waiting]
        if not waiting:
            return
        taps = [cache.take_taps() for cache in waiting]
        layers = self.model.project_context(self.enter(mx.concatenate(taps, axis=1)))
        ends = list(accumulate(part.shape[1] for part in taps))[:-1]
        starts = [cache.computed for cache in waiting]
        for number, joined in enumerate(layers):
            new_rows = zip(*(mx.split(part, ends, axis=2) for part in joined), strict=True)
            for cache, start, (keys, values) in zip(waiting, starts, new_rows, strict=True):
                keys = self.model.rotate_context(keys, start)
                cache.layers[number].update_and_fetch(keys, values)

    def mask(self, layer: int, held: int, width: int) -> LayerMask:
        """What the rows of a block see of `held` context rows and of the block.

        An array [width, held + width] is kept for the next blocks: it depends on distances only,
        so it is the same for all contexts that are longer than the window.
        """
        config = self.config
        kind = config.sliding[layer], config.causal(layer)
        if not (config.window and config.sliding[layer] and held + width > config.window):
            return "causal" if config.causal(layer) else None
        sizes, mask = self._masks.get(kind, (None, None))
        if sizes != (held, width):
            queries = mx.arange(held, held + width)[:, None]
            before = context_mask(config, layer, queries, mx.arange(held)[None], held)
            inside = block_mask(config, layer, queries, queries.T)
            mask = mx.concatenate([before, inside], axis=1)
            self._masks[kind] = (held, width), mask
        return mask

    def make_cache(self) -> "DraftCache":
        return DraftCache(self, self.config.num_layers)


class DraftCache(TapCache):
    """One sequence's context rows, per layer.

    Sliding layers read only their window, but keep all rows, so that any rewind is exact.
    """

    source: DFlashDrafter

    def block(self, anchor: int, width: int) -> DraftBlock:
        return self.source.draft([self], [anchor], width)[0]

    def draft_logits(self, anchor: int, width: int) -> mx.array:
        """Each position's logits [width - 1, V], without the selector's scores of DFlash 2."""
        hidden = self.source._hidden([self], [anchor], width).squeeze(0)
        return self.source.head(self.source.leave(hidden))

    def visible(self, width: int) -> tuple[list[CachedRows], list[LayerMask]]:
        """Each layer's context rows and mask for a block of `width` rows."""
        config = self.source.config
        context = []
        masks = []
        for number, rows in enumerate(self.layers):
            first = 0
            if config.window and config.sliding[number]:
                first = max(0, self.offset - config.window + 1)
            context.append(CachedRows(rows, first))
            masks.append(self.source.mask(number, self.offset - first, width))
        return context, masks
