"""Sliding-window caches that can go back: which rows they hold, and how the newest are dropped.

mlx-lm's own `trim` will not do: it refuses once the window is full, and after a trim a one-token
step reads rows that were dropped.
"""

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

Rows = tuple[mx.array, mx.array]


def held_rows(cache: RotatingKVCache) -> int:
    """How many tokens' rows a rotating cache holds, the newest ones; not a filler's."""
    if cache.keys is None:
        return 0
    return min(cache.keys.shape[2], cache.offset) - (cache._idx == 0)


def can_rewind(cache: RotatingKVCache, length: int) -> bool:
    """Whether the rows before token `length` that its window needs are all still there.

    A token sees `max_size` tokens, itself included, so the next one needs `max_size` - 1 of them.
    """
    oldest = cache.offset - held_rows(cache)
    if length == cache.offset or oldest == 0:
        return True
    return cache.keep == 0 and length - oldest >= min(length, cache.max_size - 1)


def rewind(cache: RotatingKVCache, length: int) -> None:
    """Drop the newest rows of a rotating cache for good: temporal order first, then cut."""
    drop = cache.offset - length
    if drop == 0:
        return
    if length == 0:
        cache.keys = cache.values = None
        cache.offset = cache._idx = 0
        return
    keys, values = cache._temporal_order(cache.keys), cache._temporal_order(cache.values)
    load(cache, (keys[..., :-drop, :], values[..., :-drop, :]), length)


def can_pick(cache: RotatingKVCache) -> bool:
    """Whether the rows before the newest are in one piece: no first rows kept apart from them."""
    return cache.keep == 0 or cache.offset == held_rows(cache)


def pick(cache: RotatingKVCache, rows: mx.array, count: int) -> None:
    """Of the newest `count` rows, one pass's, keep these [k], in their order."""
    assert cache.keys is not None
    assert cache.values is not None
    held = cache.keys.shape[2] - count
    kept = mx.concatenate([mx.arange(held), held + rows])
    keys, values = mx.take(cache.keys, kept, axis=2), mx.take(cache.values, kept, axis=2)
    load(cache, (keys, values), cache.offset - count + rows.size)


def save(cache: RotatingKVCache) -> Rows:
    """Copies of the rows that the next token's window needs, in temporal order."""
    keys, values = cache._temporal_order(cache.keys), cache._temporal_order(cache.values)
    count = min(cache.offset, cache.max_size - 1)
    newest = mx.arange(keys.shape[2] - count, keys.shape[2])
    return mx.take(keys, newest, axis=2), mx.take(values, newest, axis=2)


def load(cache: RotatingKVCache, rows: Rows, length: int) -> None:
    """Hold these rows, in temporal order, as those before token `length`."""
    keys, values = rows
    cache.offset = length
    cache._idx = keys.shape[2]
    if keys.shape[2] < min(length, cache.max_size):
        # A ring one row short would be grown instead of turned: fill the row that goes next. Only
        # with a filler is that row 0; mlx-lm leaves `_idx` behind the row it wrote.
        keys = mx.concatenate([keys[..., :1, :], keys], axis=2)
        values = mx.concatenate([values[..., :1, :], values], axis=2)
        cache._idx = 0
    cache.keys, cache.values = keys, values
