"""The drafter at work: keeps its context cache and proposes the slots of one block at a time.

Binds a `DraftModel` to the embedding and the head of its target. Context rows are committed, never
rejected, so the cache only grows, or is cut back when a conversation is. Does not know how drafts
are chosen, or what becomes of them.
"""

from collections.abc import Callable
from typing import cast

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from dflash_mlx.speculation.drafts import Independent, Slots

from .config import DraftConfig
from .model import DraftModel, KeysValues, block_mask, context_mask

WAITING = 128  # committed tokens whose rows are computed at the latest


class Drafter:
    """A drafter bound to its target's embedding and head."""

    def __init__(
        self,
        model: DraftModel,
        embed: Callable[[mx.array], mx.array],
        head: Callable[[mx.array], mx.array],
    ):
        self.model = model
        self.config: DraftConfig = model.config
        self._embed = embed
        self._head = head

    def embed(self, ids: mx.array) -> mx.array:
        """Token ids [..., T] -> block embeddings [..., T, H]."""
        own = self.model.get("embed_tokens")
        x = self._embed(ids) if own is None else own(ids)
        if (row := self.model.get("mask_embedding")) is not None:
            x = mx.where((ids == self.config.mask_token_id)[..., None], row.astype(x.dtype), x)
        scale = self.config.input_embedding_scale
        return x if scale == 1.0 else x * scale

    def head(self, hidden: mx.array) -> mx.array:
        """Hidden states [..., H] -> logits [..., V]: the head, scale, one softcap.

        Tokens that are not in the drafter's own vocabulary get -inf.
        """
        own = self.model.get("lm_head")
        logits = self._head(hidden) if own is None else own(hidden)
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        logits = logits if cap is None else cap * mx.tanh(logits / cap)
        if (distances := self.model.get("d2t")) is None:
            return logits
        shape = (*logits.shape[:-1], self.config.vocab_size)
        places = mx.broadcast_to(mx.arange(distances.size) + distances, logits.shape)
        everywhere = mx.full(shape, -mx.inf, dtype=logits.dtype)
        return mx.put_along_axis(everywhere, places, logits, axis=-1)

    def slots(self, hidden: mx.array, anchor: int) -> Slots:
        """What is said of the slots after the anchor, from their hidden states [γ, H]."""
        logits, select = self.head(hidden), self.model.selector
        return Independent(logits) if select is None else select(logits, hidden, anchor)

    def make_cache(self) -> "DraftCache":
        """An empty context cache."""
        return DraftCache(self)


class DraftCache:
    """One conversation's context rows, per layer, and the drafting against them.

    Row p of every layer belongs to token p. All rows are kept, also of sliding layers, which read
    only their window: so any cut back is exact.
    """

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
        self.rows = KVCache()  # the heads of all layers, one after another
        self._waiting: list[mx.array] = []
        self._ahead = 0  # tokens that wait

    @property
    def offset(self) -> int:
        """Number of committed context rows, which is the position of the next anchor."""
        return self.rows.offset + self._ahead

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate after `absorb`."""
        self._settle()
        keys, values = self.rows.keys, self.rows.values
        return [] if keys is None or values is None else [keys, values]

    def absorb(self, taps: mx.array) -> None:
        """Commit the rows of the next S tokens from their taps [1, S, K * Ht].

        They are computed when they are needed, or a hundred at once: plain steps between drafts
        would spend a good part of their time on it.
        """
        self._waiting.append(taps)
        self._ahead += taps.shape[1]
        if self._ahead >= WAITING:
            mx.async_eval(self.state)

    def rewind(self, length: int) -> None:
        """Keep the rows of the first `length` tokens; what waits behind is never computed."""
        while self._waiting and self.offset > length:
            taps = self._waiting.pop()
            kept = max(0, taps.shape[1] - (self.offset - length))
            self._ahead -= taps.shape[1] - kept
            if kept:
                self._waiting.append(taps[:, :kept])
        self.rows.trim(self.offset - length)

    def _settle(self) -> None:
        if self._waiting:
            taps, self._waiting, self._ahead = mx.concatenate(self._waiting, axis=1), [], 0
            self.rows.update_and_fetch(*self.drafter.model.context_rows(taps, self.rows.offset))

    def slots(self, anchor: int, width: int) -> Slots:
        """The width - 1 slots after the anchor, at positions offset + 1, ...; evaluates nothing."""
        return self.drafter.slots(self.hidden(anchor, width), anchor)

    def draft_logits(self, anchor: int, width: int) -> mx.array:
        """The slots' own logits [width - 1, V]; a DFlash 2 drafter's drafts need more than them."""
        return self.drafter.head(self.hidden(anchor, width))

    def hidden(self, anchor: int, width: int) -> mx.array:
        """Hidden states [width - 1, H] of the slots after the anchor.

        One forward pass over [anchor, mask, ...] (paper section 3.2).
        """
        self._settle()
        config, start = self.drafter.config, self.offset
        ids = mx.array([[anchor] + [config.mask_token_id] * (width - 1)])
        context, masks = self._visible(start, width)
        return self.drafter.model(self.drafter.embed(ids), context, start, masks)[0, 1:]

    def _visible(self, start: int, width: int) -> tuple[list[KeysValues], list[mx.array | None]]:
        """Each layer's context rows and mask; no mask where every row sees everything."""
        config = self.drafter.config
        context, masks = [], []
        queries = mx.arange(start, start + width)[:, None]
        rows = self.drafter.model.by_layer(cast(KeysValues, self.rows.keys_and_values()))
        for number, (keys, values) in enumerate(rows):
            first = 0
            if config.window and config.sliding[number]:
                first = max(0, start - config.window + 1)
            context.append((keys[:, :, first:], values[:, :, first:]))
            if not config.sliding[number] and not config.causal(number):
                masks.append(None)
                continue
            before = context_mask(config, number, queries, mx.arange(first, start)[None], start)
            inside = block_mask(config, number, queries, queries.T)
            masks.append(mx.concatenate([before, inside], axis=1))
        return context, masks
