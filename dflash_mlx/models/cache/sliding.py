"""The cache of a sliding layer whose rows lie in order in an array with free room behind them.

mlx-lm's `RotatingKVCache` copies a full window in every pass of several rows, and uses it as a ring
for single rows. Here a pass writes its own rows; the window moves to the front of a new array every
few hundred tokens. Attention sees the same rows under the same masks, always in order.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from .rows import RowsAdapter

ROOM = 256  # rows


class SlidingCache(RotatingKVCache):
    """Keys and values [1, Hkv, capacity, D]; the first `_idx` rows are the newest, in order.

    They include at least the `max_size` - 1 rows that the next token sees besides itself.
    """

    _first = 0  # of the rows that the last pass read

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add rows [1, Hkv, S, D]. Returns them after the earlier rows that the first one sees."""
        count = keys.shape[2]
        seen = min(self._idx, self.max_size - 1)
        if self.keys is None or self._idx + count > self.keys.shape[2]:
            self._make_room(keys, values, seen, count + (ROOM if count <= ROOM else 0))
        first = self._idx - seen
        end = self._idx + count
        arrays: tuple[Any, Any] = self.keys, self.values
        for held, new in zip(arrays, (keys, values), strict=True):
            held[..., self._idx : end, :] = new
        self._idx = end
        self._first = first
        self.offset += count
        return self.keys_and_values()

    def _make_room(self, keys: mx.array, values: mx.array, seen: int, free: int) -> None:
        """Make new arrays: the last `seen` rows, then `free` rows."""
        shapes = [((*new.shape[:2], free, new.shape[3]), new.dtype) for new in (keys, values)]
        arrays = [mx.zeros(shape, dtype) for shape, dtype in shapes]
        if self.keys is not None and self.values is not None:
            rows = slice(self._idx - seen, self._idx)
            held = self.keys[..., rows, :], self.values[..., rows, :]
            pairs = zip(held, arrays, strict=True)
            arrays = [mx.concatenate([old, new], axis=2) for old, new in pairs]
        self.keys, self.values = arrays
        self._idx = seen

    def keys_and_values(self) -> Any:
        """The rows that the last pass read; layers without a cache of their own read them, too."""
        rows = slice(self._first, self._idx)
        keys: Any = self.keys
        values: Any = self.values
        return keys[..., rows, :], values[..., rows, :]

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        """As mlx-lm's, except for one row in a smaller window: mlx-lm's mask is for a ring."""
        if N > 1 or window_size is None or window_size >= self.max_size:
            return super().make_mask(N, window_size=window_size, return_array=return_array)
        rows = min(self.offset, self.max_size - 1) + 1
        return mx.arange(rows) >= rows - window_size

    def _temporal_order(self, v: Any) -> Any:
        return v[..., : self._idx, :]


class SlidingAdapter(RowsAdapter):
    """`SlidingCache`: rewinds while the rows that the next token's window needs are still there."""

    goes_anywhere = False

    def can_rewind(self, cache: SlidingCache, length: int) -> bool:
        """A token sees `max_size` tokens, itself included."""
        return cache._idx - (cache.offset - length) >= min(length, cache.max_size - 1)

    def first_row(self, cache: SlidingCache, count: int) -> int:
        return cache._idx - count

    def save(self, cache: SlidingCache) -> tuple[mx.array, ...]:
        """Copies of the rows that the next token's window needs."""
        count = min(cache.offset, cache.max_size - 1)
        newest = mx.arange(cache._idx - count, cache._idx)
        arrays: tuple[Any, Any] = cache.keys, cache.values
        return tuple(mx.take(part, newest, axis=2) for part in arrays)

    def load(self, cache: SlidingCache, part: tuple[mx.array, ...], length: int) -> None:
        """Restore these rows, the newest of `length` tokens. Later writes do not change `part`."""
        cache.keys = part[0][...]
        cache.values = part[1][...]
        cache.offset = length
        cache._idx = part[0].shape[2]
        cache._first = 0

    def held(self, cache: SlidingCache, window: int | None) -> tuple[int, int | None]:
        return min(cache.offset, cache.max_size - 1), window or cache.max_size
