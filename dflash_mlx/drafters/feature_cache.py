"""What a head with one layer keeps of a sequence: its rows, and the target's features.

The row of a token is computed from it and from the feature of the token before, so it depends on no
later token.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from dflash_mlx.models.cache.rows import Rows, append_rows, copy_rows, fill_rows, share_rows

WAITING = 128  # committed tokens without rows; the rows are computed when there are this many


class FeatureCache(ABC):
    """One sequence's committed rows, and the feature after each of them; a `DraftCache`.

    Row 0 has no feature before it and is never attended to. `_features` holds each position's
    feature in two halves, because a `KVCache` has two arrays.
    """

    def __init__(self) -> None:
        self.rows = KVCache()
        self._features = KVCache()
        self._taps: list[mx.array] = []
        self._tokens: list[int] = []  # whose rows are not computed yet

    @abstractmethod
    def features(self, taps: mx.array) -> mx.array:
        """Taps [1, S, K * Ht] of the target -> features [1, S, H]."""

    @abstractmethod
    def write(self, tokens: list[int], features: mx.array) -> None:
        """Compute the rows of S tokens, with the features [1, S, H] before them."""

    @abstractmethod
    def empty(self) -> Self:
        """A cache of the same head that holds nothing."""

    @property
    def offset(self) -> int:
        return self.rows.offset + len(self._tokens)

    @property
    def state(self) -> list[mx.array]:
        self.commit_waiting()
        arrays = [array for cache in self._caches for array in (cache.keys, cache.values)]
        return [array for array in arrays if array is not None]

    @property
    def _caches(self) -> tuple[KVCache, KVCache]:
        return self.rows, self._features

    def append(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        """Commit the next S tokens, with their taps [1, S, K * Ht]."""
        assert taps.shape[1] == len(tokens)
        self._taps.append(taps)
        self._tokens += tokens
        if len(self._tokens) >= WAITING:
            mx.async_eval(self.state)

    def commit_waiting(self) -> None:
        """Compute the rows of all waiting tokens."""
        if self._tokens:
            self.write(*self.take_waiting())

    def take_waiting(self) -> tuple[list[int], mx.array]:
        """The waiting tokens, at least one, and the features [1, S, H] before them.

        They no longer wait: the caller computes their rows. Their own features are kept here.
        """
        tokens = self._tokens
        features = self.features(mx.concatenate(self._taps, axis=1))
        before = self.last_feature() if self.rows.offset else mx.zeros_like(features[:, :1])
        low, high = mx.split(features[:, None], 2, axis=-1)
        self._features.update_and_fetch(low, high)
        self._taps = []
        self._tokens = []
        return tokens, mx.concatenate([before, features[:, :-1]], axis=1)

    def last_feature(self) -> mx.array:
        """The feature [1, 1, H] of the last token that does not wait."""
        held = self._features
        last = held.offset - 1
        assert held.keys is not None
        assert held.values is not None
        parts = [part[:, 0, last : last + 1] for part in (held.keys, held.values)]
        return mx.concatenate(parts, axis=-1)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; later ones that wait are never computed."""
        kept = max(0, length - self.rows.offset)
        if kept < len(self._tokens):
            taps = mx.concatenate(self._taps, axis=1)[:, :kept]
            self._taps = [taps] if kept else []
            self._tokens = self._tokens[:kept]
        for cache in self._caches:
            cache.trim(max(0, cache.offset - length))

    def fork(self) -> Self:
        twin = self.empty()
        twin._taps = [*self._taps]
        twin._tokens = [*self._tokens]
        for ours, theirs in zip(self._caches, twin._caches, strict=True):
            share_rows(ours, theirs)
        return twin

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        """The rows and the features of the tokens [start, end), as if they were two layers."""
        self.commit_waiting()
        return tuple(copy_rows(cache, start, end) for cache in self._caches)

    def extend(self, parts: Sequence[tuple[Rows, ...]], tokens: Sequence[int] = ()) -> None:
        self.commit_waiting()
        for cache, *rows in zip(self._caches, *parts, strict=True):
            append_rows(cache, rows)

    def fill(self, depth: int) -> None:
        self.commit_waiting()
        for cache in self._caches:
            fill_rows(cache, depth)
        mx.eval(self.state)
