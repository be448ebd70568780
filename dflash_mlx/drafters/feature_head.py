"""Heads of one layer that draft from the target's features, and what they keep of a sequence.

The row of a token is computed from it and from the feature of the token before, so it depends on no
later token. Committed tokens get rows from the target's features, drafts from the head's own hidden
states; the rows of drafts are always dropped.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from dflash_mlx.models.cache.rows import Rows, append_rows, copy_rows, share_rows

from .chain import ChainDrafter, Choose

WAITING = 128  # committed tokens without rows; the rows are computed when there are this many


class FeatureDrafter(ChainDrafter):
    """A head that drafts one token after another, for all sequences at once.

    `head`, bound to its target's embedding, has `features` (taps [1, S, K * Ht] -> [1, S, H]),
    `logits` ([1, S, H] -> [1, S, Vd]), and takes tokens [R] with the features [1, R, H] before
    them, the caches and the number of tokens of each sequence. It returns hidden states [1, R, H],
    which take the place of the same tokens' features, and adds the rows to the caches.
    """

    head: Any

    def chains(
        self,
        caches: Sequence["FeatureCache"],
        anchors: Sequence[int],
        count: int,
        choose: Choose,
    ) -> tuple[mx.array, mx.array]:
        """The rows of waiting tokens are computed in the first pass, with the anchors'."""
        read = [cache.waits for cache in caches]
        waiting = iter(take_waiting([cache for cache in caches if cache.waits]))
        tokens = [[anchor] for anchor in anchors]
        before = list[mx.array]()
        for number, cache in enumerate(caches):
            features = list[mx.array]()
            if read[number]:
                text, known = next(waiting)
                tokens[number] = [*text, anchors[number]]
                features.append(known)
            before.append(mx.concatenate([*features, cache.last_feature()], axis=1))
        rows = [cache.rows for cache in caches]
        committed = [held.offset + len(text) - 1 for held, text in zip(rows, tokens, strict=True)]
        drafts = list[mx.array]()
        logits = list[mx.array]()
        try:
            hidden = self.read(caches, tokens, before)
            for number in range(count):
                if number:
                    hidden = self.head(drafts[-1], hidden, rows, [1] * len(rows))
                logits.append(self.head.logits(hidden))
                drafts.append(choose(logits[-1]))
        finally:
            for held, length in zip(rows, committed, strict=True):
                held.trim(max(0, held.offset - length))
        return mx.stack(drafts), mx.stack(logits)

    def read(
        self,
        caches: Sequence["FeatureCache"],
        tokens: Sequence[list[int]],
        before: Sequence[mx.array],
    ) -> mx.array:
        """Add rows of tokens to each cache, with the features [1, S, H] before them.

        Returns the hidden states [1, B, H] after the last ones.
        """
        counts = [len(part) for part in tokens]
        ids = mx.array([token for part in tokens for token in part])
        hidden = self.head(
            ids, mx.concatenate([*before], axis=1), [cache.rows for cache in caches], counts
        )
        last = mx.array([end - 1 for end in accumulate(counts)])
        return hidden[:, last]


def take_waiting(caches: Sequence["FeatureCache"]) -> list[tuple[list[int], mx.array]]:
    """The waiting tokens of each cache, at least one, and the features [1, S, H] before them.

    They no longer wait: the caller computes their rows. One projection makes their own features,
    which the caches keep.
    """
    if not caches:
        return []
    taps = [cache.take_taps() for cache in caches]
    features = caches[0].source.head.features(mx.concatenate(taps, axis=1))
    ends = list(accumulate(part.shape[1] for part in taps))[:-1]
    parts = mx.split(features, ends, axis=1)
    return [cache.take_waiting(part) for cache, part in zip(caches, parts, strict=True)]


class FeatureCache:
    """One sequence's committed rows, and the feature after each of them; a `DraftCache`.

    Row 0 has no feature before it and is never attended to. `_features` holds each position's
    feature in two halves, because a `KVCache` has two arrays.
    """

    def __init__(self, source: FeatureDrafter):
        self.source = source
        self.rows = KVCache()
        self._features = KVCache()
        self._taps: list[mx.array] = []
        self._tokens: list[int] = []  # whose rows are not computed yet

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
        assert taps.shape[1] == len(tokens)
        self._taps.append(taps)
        self._tokens += tokens
        if len(self._tokens) >= WAITING:
            mx.async_eval(self.state)

    @property
    def waits(self) -> bool:
        return bool(self._tokens)

    def commit_waiting(self) -> None:
        if self.waits:
            ((tokens, before),) = take_waiting([self])
            self.source.read([self], [tokens], [before])

    def take_taps(self) -> mx.array:
        """The taps [1, S, K * Ht] of the waiting tokens."""
        taps = mx.concatenate(self._taps, axis=1)
        self._taps = []
        return taps

    def take_waiting(self, features: mx.array) -> tuple[list[int], mx.array]:
        """Keep the features [1, S, H] of the waiting tokens, as `take_waiting` above says."""
        tokens = self._tokens
        self._tokens = []
        before = self.last_feature() if self.rows.offset else mx.zeros_like(features[:, :1])
        low, high = mx.split(features[:, None], 2, axis=-1)
        self._features.update_and_fetch(low, high)
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
        twin = type(self)(self.source)
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
