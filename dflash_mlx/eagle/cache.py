"""What an EAGLE-3 head keeps of one sequence: rows of its layer, and the target's features.

Knows committed tokens; does not know drafts, which leave nothing behind.
"""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from dflash_mlx.kv_rows import Rows, append_rows, copy_rows, fill_rows, share_rows

from .head import BoundHead

WAITING = 128  # committed tokens whose rows are computed at the latest


class EagleCache:
    """One sequence's committed rows, and the features that go on from each of them.

    Row t of `rows` is of token t and the feature before it, so it depends on no later token; row 0
    has no feature before it and is never attended to. `features` holds each position's feature in
    two halves, because a cache's rows are two arrays.
    """

    def __init__(self, head: BoundHead):
        self.head = head
        self.rows, self._features = KVCache(), KVCache()
        self._taps: list[mx.array] = []
        self._tokens: list[int] = []  # those whose rows wait

    @property
    def offset(self) -> int:
        """Tokens that were committed."""
        return self.rows.offset + len(self._tokens)

    @property
    def state(self) -> list[mx.array]:
        """The arrays to evaluate after `absorb`."""
        self.commit_waiting()
        held = [part for each in self._all for part in (each.keys, each.values)]
        return [part for part in held if part is not None]

    @property
    def _all(self) -> tuple[KVCache, KVCache]:
        return self.rows, self._features

    def absorb(self, taps: mx.array, tokens: Sequence[int] = ()) -> None:
        """Commit the next S tokens, with their taps [1, S, K * Ht]."""
        assert taps.shape[1] == len(tokens)
        self._taps.append(taps)
        self._tokens += tokens
        if len(self._tokens) >= WAITING:
            mx.async_eval(self.state)

    def commit_waiting(self) -> None:
        """Compute the rows of all tokens that wait."""
        if not self._tokens:
            return
        head, tokens = self.head, mx.array(self._tokens)
        features = head.model.features(head.enter(mx.concatenate(self._taps, axis=1)))
        before = self.last_feature() if self.rows.offset else mx.zeros_like(features[:, :1])
        shifted = mx.concatenate([before, features[:, :-1]], axis=1)
        head.model.midlayer.write(head.embed(tokens), shifted, self.rows)
        low, high = mx.split(features[:, None], 2, axis=-1)
        self._features.update_and_fetch(low, high)
        self._taps, self._tokens = [], []

    def last_feature(self) -> mx.array:
        """The feature [1, 1, H] of the last token that does not wait."""
        held, last = self._features, self._features.offset - 1
        assert held.keys is not None
        assert held.values is not None
        parts = [part[:, 0, last : last + 1] for part in (held.keys, held.values)]
        return mx.concatenate(parts, axis=-1)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; what waits behind is never computed."""
        kept = max(0, length - self.rows.offset)
        if kept < len(self._tokens):
            taps = mx.concatenate(self._taps, axis=1)[:, :kept]
            self._taps, self._tokens = [taps] if kept else [], self._tokens[:kept]
        for each in self._all:
            each.trim(max(0, each.offset - length))

    def fork(self) -> "EagleCache":
        """A copy that goes on by itself."""
        twin = EagleCache(self.head)
        twin._taps, twin._tokens = [*self._taps], [*self._tokens]
        for ours, theirs in zip(self._all, twin._all, strict=True):
            share_rows(ours, theirs)
        return twin

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        """The rows and features of the tokens from `start` to before `end`, in arrays of their own.

        As if they were two layers.
        """
        self.commit_waiting()
        return tuple(copy_rows(each, start, end) for each in self._all)

    def extend(self, parts: Sequence[tuple[Rows, ...]]) -> None:
        """Go on as if the tokens of these rows had been committed, which `copy_rows` gave."""
        self.commit_waiting()
        for each, *more in zip(self._all, *parts, strict=True):
            append_rows(each, more)

    def fill(self, depth: int) -> None:
        """Look as if `depth` tokens had been committed, for timing; a few must have been."""
        self.commit_waiting()
        for each in self._all:
            fill_rows(each, depth)
        mx.eval(self.state)
