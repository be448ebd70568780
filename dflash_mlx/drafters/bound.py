"""Drafters that read the target's hidden states and share its embedding and head."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from dflash_mlx.models.cache.rows import Rows, append_rows, copy_rows, share_rows
from dflash_mlx.models.precision import cast, float_type

from .base import Drafter

WAITING = 128  # committed tokens that wait at most; then they are read or get their rows
Map = Callable[[mx.array], mx.array]


class BoundDrafter(Drafter):
    """A model bound to its target's embedding and head.

    Everything is computed in the dtype of the drafter's weights: arrays of the target are cast to
    it, and hidden states to `head_type`, the dtype of the target's head (None: any). Two different
    16-bit dtypes would make float32 copies of all weights in each draft.
    """

    def __init__(
        self,
        model: Any,
        embed: Map,
        head: Map,
        head_type: mx.Dtype | None = None,
        taps: tuple[int, ...] = (),
    ):
        self.model = model
        self.config = model.config
        self.taps = taps
        self._embed = embed
        self._head = head
        self._head_type = head_type

    def enter(self, rows: mx.array) -> mx.array:
        """Rows of the target in the dtype of the drafter's weights."""
        return cast(rows, float_type(self.model.fc))

    def leave(self, hidden: mx.array) -> mx.array:
        """Hidden states in the dtype that the head computes in."""
        return cast(hidden, self._head_type) if self.model.get("lm_head") is None else hidden

    def embed(self, ids: mx.array) -> mx.array:
        """Token ids [...] -> their embeddings [..., H], in the dtype of the drafter's weights."""
        own = self.model.get("embed_tokens")
        return self.enter(self._embed(ids) if own is None else own(ids))

    def own_logits(self, hidden: mx.array) -> mx.array:
        """Normed hidden states [..., H] -> logits of the drafter's own vocabulary [..., Vd].

        Training needs the precision of its hidden states, so nothing is cast here.
        """
        own = self.model.get("lm_head")
        return self._head(hidden) if own is None else own(hidden)

    def commit_waiting(self, caches: Sequence[Any]) -> None:
        raise NotImplementedError


class TapCache:
    """A `DraftCache`: one sequence's rows in `layers`, and the taps of tokens without rows yet.

    Row p of every layer belongs to token p. Rows are computed when they are needed, or when many
    wait: computing them one at a time would slow down decode steps.
    """

    def __init__(self, source: Any, layers: int):
        self.source = source
        self.layers = [KVCache() for _ in range(layers)]
        self._taps: list[mx.array] = []
        self.waiting = 0  # tokens whose taps these are

    @property
    def computed(self) -> int:
        return self.layers[0].offset

    @property
    def offset(self) -> int:
        """Number of committed tokens, which is the position of the next anchor."""
        return self.computed + self.waiting

    @property
    def state(self) -> list[mx.array]:
        self.source.commit_waiting([self])
        held = [part for layer in self.layers for part in (layer.keys, layer.values)]
        return [part for part in held if part is not None]

    def append(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        self._taps.append(taps)
        self.waiting += taps.shape[1]
        if self.waiting >= WAITING:
            mx.async_eval(self.state)

    def take_taps(self) -> mx.array:
        """Remove and return the taps [1, S, K * Ht] whose rows are not computed yet."""
        taps = mx.concatenate(self._taps, axis=1)
        self._taps = []
        self.waiting = 0
        return taps

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; later ones that wait are never computed."""
        kept = max(0, length - self.computed)
        if kept < self.waiting:
            taps = self.take_taps()[:, :kept]
            self._taps = [taps] if kept else []
            self.waiting = kept
        for layer in self.layers:
            layer.trim(max(0, layer.offset - length))

    def fork(self) -> Self:
        twin = self.source.make_cache()
        twin._taps = [*self._taps]
        twin.waiting = self.waiting
        for ours, theirs in zip(self.layers, twin.layers, strict=True):
            share_rows(ours, theirs)
        return twin

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        self.source.commit_waiting([self])
        return tuple(copy_rows(layer, start, end) for layer in self.layers)

    def extend(self, parts: Sequence[tuple[Rows, ...]], tokens: Sequence[int]) -> None:
        self.source.commit_waiting([self])
        for layer, *more in zip(self.layers, *parts, strict=True):
            append_rows(layer, more)
