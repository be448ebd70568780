"""A DFlash drafter: its context caches, and the blocks of several sequences in one pass.

It binds a `DraftModel` to the embedding and the head of its target. Context rows belong to
committed tokens only, so a cache rewinds only when a conversation does.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from dflash_mlx.drafters.base import Drafter
from dflash_mlx.drafters.chain import ChainBlock, Chains
from dflash_mlx.models.cache.rows import Rows, append_rows, copy_rows, share_rows
from dflash_mlx.models.precision import cast as cast_rows
from dflash_mlx.models.precision import float_type
from dflash_mlx.speculation.drafts import DraftBlock, Independent
from dflash_mlx.speculation.sampling import Draw

from .config import DraftConfig
from .markov import Walks
from .model import (
    CachedRows,
    DraftModel,
    LayerMask,
    block_mask,
    context_mask,
    spread,
    target_ids,
)

WAITING = 128  # committed tokens without rows; the rows are computed when there are this many


class DFlashDrafter(Drafter):
    """A drafter bound to its target's embedding and head.

    Everything is computed in the dtype of the drafter's weights: arrays of the target are cast to
    it, and hidden states to `head_type`, the dtype of the target's head (None: any). Two different
    16-bit dtypes would make float32 copies of all weights in each draft.
    """

    def __init__(
        self,
        model: DraftModel,
        embed: Callable[[mx.array], mx.array],
        head: Callable[[mx.array], mx.array],
        head_type: mx.Dtype | None = None,
    ):
        self.model: DraftModel = model
        self.config: DraftConfig = model.config
        self.block_size = self.config.block_size
        self.taps = self.config.target_layer_ids
        self._embed = embed
        self._head = head
        self._head_type = head_type
        self._masks: dict[tuple[bool, bool], tuple[tuple[int, int], mx.array]] = {}

    def row_bytes(self, item: int) -> int:
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * item

    def embed(self, ids: mx.array) -> mx.array:
        """Token ids [..., T] -> block embeddings [..., T, H] in the drafter's dtype."""
        own = self.model.get("embed_tokens")
        x = self._enter(self._embed(ids) if own is None else own(ids))
        if own is not None and (factor := self.config.own_embedding_scale) != 1.0:
            x = x * factor
        if (row := self.model.get("mask_embedding")) is not None:
            x = mx.where((ids == self.config.mask_token_id)[..., None], row.astype(x.dtype), x)
        scale = self.config.input_embedding_scale
        return x if scale == 1.0 else x * scale

    def head(self, hidden: mx.array) -> mx.array:
        """Hidden states [..., H] -> logits [..., V]; -inf outside the drafter's vocabulary."""
        return self._spread(self.own_logits(hidden))

    def _spread(self, logits: mx.array) -> mx.array:
        """Logits of the drafter's own vocabulary [..., Vd] -> [..., V], -inf for others."""
        if (distances := self.model.get("d2t")) is None:
            return logits
        return spread(logits, target_ids(distances), self.config.vocab_size)

    def own_logits(self, hidden: mx.array) -> mx.array:
        """Hidden states [..., H] -> logits of the drafter's own vocabulary [..., Vd].

        Applies the head, then the factor and softcap of the config. Training needs the precision of
        its hidden states, so nothing is cast here.
        """
        own = self.model.get("lm_head")
        logits = self._head(hidden) if own is None else own(hidden)
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
            logits = self.own_logits(self._leave(hidden))
            walks = Walks(self.model, logits, hidden, self._spread)
            chains = Chains(walks, caches, anchors, width - 1, draws)
            return [ChainBlock(chains, number) for number in range(len(caches))]
        logits = self._logits(hidden)
        select = self.model.selector
        if select is None:
            return [Independent(rows) for rows in logits]
        return [select(*rows) for rows in zip(logits, hidden, anchors, strict=True)]

    def _logits(self, hidden: mx.array) -> mx.array:
        return self.head(self._leave(hidden))

    def _leave(self, hidden: mx.array) -> mx.array:
        """Hidden states in the dtype that the head computes in."""
        shared = self.model.get("lm_head") is None
        return cast_rows(hidden, self._head_type) if shared else hidden

    def _enter(self, rows: mx.array) -> mx.array:
        """Rows of the target in the dtype of the drafter's weights."""
        return cast_rows(rows, float_type(self.model.fc))

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
        """Compute the context rows of all waiting taps with one projection."""
        waiting = [cache for cache in caches if cache.waiting]
        if not waiting:
            return
        taps = [cache.take_waiting() for cache in waiting]
        layers = self.model.project_context(self._enter(mx.concatenate(taps, axis=1)))
        ends = list(accumulate(part.shape[1] for part in taps))[:-1]
        starts = [cache.computed for cache in waiting]
        for number, joined in enumerate(layers):
            new_rows = zip(*(mx.split(part, ends, axis=2) for part in joined), strict=True)
            for cache, start, (keys, values) in zip(waiting, starts, new_rows, strict=True):
                keys = self.model.rotate_context(keys, start)
                cache.rows[number].update_and_fetch(keys, values)

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
        return DraftCache(self)


class DraftCache:
    """One sequence's context rows, per layer.

    Row p of every layer belongs to token p. Sliding layers read only their window, but keep all
    rows, so that any rewind is exact.
    """

    def __init__(self, drafter: DFlashDrafter):
        self.drafter = drafter
        self.rows = [KVCache() for _ in range(drafter.config.num_layers)]
        self._waiting: list[mx.array] = []
        self._ahead = 0  # tokens whose rows are not computed yet

    @property
    def offset(self) -> int:
        """Number of committed context rows, which is the position of the next anchor."""
        return self.computed + self._ahead

    @property
    def computed(self) -> int:
        return self.rows[0].offset

    @property
    def waiting(self) -> int:
        """Number of tokens whose rows are not computed yet."""
        return self._ahead

    def take_waiting(self) -> mx.array:
        """Remove and return the taps [1, S, K * Ht] whose rows are not computed yet."""
        taps = mx.concatenate(self._waiting, axis=1)
        self._waiting = []
        self._ahead = 0
        return taps

    @property
    def state(self) -> list[mx.array]:
        self.drafter.commit_waiting([self])
        held = [part for rows in self.rows for part in (rows.keys, rows.values)]
        return [part for part in held if part is not None]

    def append(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        """Commit the rows of the next S tokens from their taps [1, S, K * Ht].

        Rows are computed when they are needed, or when many wait: computing them one at a time
        would slow down decode steps.
        """
        self._waiting.append(taps)
        self._ahead += taps.shape[1]
        if self._ahead >= WAITING:
            mx.async_eval(self.state)

    def rewind(self, length: int) -> None:
        """Keep the rows of the first `length` tokens; later ones that wait are never computed."""
        while self._waiting and self.offset > length:
            taps = self._waiting.pop()
            kept = max(0, taps.shape[1] - (self.offset - length))
            self._ahead -= taps.shape[1] - kept
            if kept:
                self._waiting.append(taps[:, :kept])
        count = self.offset - length
        for rows in self.rows:
            rows.trim(count)

    def fork(self) -> "DraftCache":
        twin = DraftCache(self.drafter)
        twin._waiting = list(self._waiting)
        twin._ahead = self._ahead
        for ours, theirs in zip(self.rows, twin.rows, strict=True):
            share_rows(ours, theirs)
        return twin

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        self.drafter.commit_waiting([self])
        return tuple(copy_rows(rows, start, end) for rows in self.rows)

    def extend(self, parts: Sequence[tuple[Rows, ...]], tokens: Sequence[int] = ()) -> None:
        self.drafter.commit_waiting([self])
        for rows, *more in zip(self.rows, *parts, strict=True):
            append_rows(rows, more)

    def block(self, anchor: int, width: int) -> DraftBlock:
        """`DFlashDrafter.draft` for this sequence alone."""
        return self.drafter.draft([self], [anchor], width)[0]

    def draft_logits(self, anchor: int, width: int) -> mx.array:
        """Each position's logits [width - 1, V], without the selector's scores of DFlash 2."""
        return self.drafter._logits(self.drafter._hidden([self], [anchor], width).squeeze(0))

    def visible(self, width: int) -> tuple[list[CachedRows], list[LayerMask]]:
        """Each layer's context rows and mask for a block of `width` rows."""
        config = self.drafter.config
        context = []
        masks = []
        for number, rows in enumerate(self.rows):
            first = 0
            if config.window and config.sliding[number]:
                first = max(0, self.offset - config.window + 1)
            context.append(CachedRows(rows, first))
            masks.append(self.drafter.mask(number, self.offset - first, width))
        return context, masks
