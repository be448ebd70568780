"""Heads of one layer that draft from the target's features, and what they keep of a sequence.

The row of a token is computed from it and from the feature of the token before, so it depends on no
later token. Committed tokens get rows from the target's features, drafts from the head's own hidden
states; the rows of drafts are always dropped.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Self

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from .bound import BoundDrafter, TapCache
from .chain import ChainDrafter, Choose


class FeatureDrafter(BoundDrafter, ChainDrafter):
    """A head that drafts one token after another, for all sequences at once."""

    def features(self, taps: mx.array) -> mx.array:
        """Taps [1, S, K * Ht] -> features [1, S, H]."""
        return self.enter(taps)

    def run(
        self, tokens: mx.array, before: mx.array, caches: Sequence[KVCache], counts: Sequence[int]
    ) -> mx.array:
        """Tokens [R] with the features [1, R, H] before them -> hidden states [1, R, H].

        Adds their rows to the caches of the sequences, each of which has `counts` of the tokens.
        Hidden states take the place of the same tokens' features.
        """
        raise NotImplementedError

    def logits(self, hidden: mx.array) -> mx.array:
        """Hidden states [1, S, H] -> logits [S, Vd]."""
        return self.own_logits(self.leave(hidden))[0]

    def make_cache(self) -> "FeatureCache":
        return FeatureCache(self)

    def commit_waiting(self, caches: Sequence["FeatureCache"]) -> None:
        for cache in caches:
            for tokens, before in self.take_waiting([cache]):
                if tokens:
                    self.read([cache], [tokens], before)

    def take_waiting(
        self, caches: Sequence["FeatureCache"]
    ) -> list[tuple[list[int], list[mx.array]]]:
        """The waiting tokens of each cache, and the features [1, S, H] before any of them.

        They no longer wait: the caller computes their rows. One projection makes their own
        features, which the caches keep.
        """
        waiting = [cache for cache in caches if cache.waiting]
        if not waiting:
            return [([], []) for _ in caches]
        taps = [cache.take_taps() for cache in waiting]
        features = self.features(mx.concatenate(taps, axis=1))
        ends = list(accumulate(part.shape[1] for part in taps))[:-1]
        parts = iter(mx.split(features, ends, axis=1))
        return [cache.keep(next(parts)) if cache.tokens else ([], []) for cache in caches]

    def chains(
        self,
        caches: Sequence["FeatureCache"],
        anchors: Sequence[int],
        count: int,
        choose: Choose,
    ) -> tuple[mx.array, mx.array]:
        """The rows of waiting tokens are computed in the first pass, with the anchors'."""
        waiting = self.take_waiting(caches)
        tokens = [[*text, anchor] for (text, _), anchor in zip(waiting, anchors, strict=True)]
        before = [
            mx.concatenate([*known, cache.last_feature()], axis=1)
            for (_, known), cache in zip(waiting, caches, strict=True)
        ]
        rows = [cache.rows for cache in caches]
        committed = [held.offset + len(text) - 1 for held, text in zip(rows, tokens, strict=True)]
        drafts = list[mx.array]()
        logits = list[mx.array]()
        try:
            hidden = self.read(caches, tokens, before)
            for number in range(count):
                if number:
                    hidden = self.run(drafts[-1], hidden, rows, [1] * len(rows))
                logits.append(self.logits(hidden))
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
        rows = [cache.rows for cache in caches]
        hidden = self.run(ids, mx.concatenate([*before], axis=1), rows, counts)
        last = mx.array([end - 1 for end in accumulate(counts)])
        return hidden[:, last]


class FeatureCache(TapCache):
    """One sequence's committed rows, and the feature after each of them, as if of two layers.

    Row 0 has no feature before it and is never attended to. The second layer holds each position's
    feature in two halves, because a `KVCache` has two arrays.
    """

    source: FeatureDrafter

    def __init__(self, source: FeatureDrafter):
        super().__init__(source, layers=2)
        self.tokens: list[int] = []  # whose rows are not computed yet

    @property
    def rows(self) -> KVCache:
        return self.layers[0]

    def append(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        assert taps.shape[1] == len(tokens)
        self.tokens += tokens
        super().append(taps)

    def keep(self, features: mx.array) -> tuple[list[int], list[mx.array]]:
        """Keep the features [1, S, H] of the waiting tokens; see `take_waiting`."""
        tokens = self.tokens
        self.tokens = []
        before = self.last_feature() if self.rows.offset else mx.zeros_like(features[:, :1])
        low, high = mx.split(features[:, None], 2, axis=-1)
        self.layers[1].update_and_fetch(low, high)
        return tokens, [mx.concatenate([before, features[:, :-1]], axis=1)]

    def last_feature(self) -> mx.array:
        """The feature [1, 1, H] of the last token that does not wait."""
        held = self.layers[1]
        last = held.offset - 1
        assert held.keys is not None
        assert held.values is not None
        parts = [part[:, 0, last : last + 1] for part in (held.keys, held.values)]
        return mx.concatenate(parts, axis=-1)

    def rewind(self, length: int) -> None:
        del self.tokens[max(0, length - self.computed) :]
        super().rewind(length)

    def fork(self) -> Self:
        twin = super().fork()
        twin.tokens = [*self.tokens]
        return twin
