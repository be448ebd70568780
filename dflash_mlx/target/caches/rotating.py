"""`RotatingKVCache`: the keys and values of a sliding window, which can go back.

mlx-lm's own `trim` will not do: it refuses once the window is full, and after a trim a one-token
step reads rows that were dropped.
"""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from dflash_mlx.target.tree_pass import TreePass, tree_mask

from .rows import zero_rows

KeysValues = tuple[mx.array, mx.array]


class Window:
    """Goes back while the rows that the next token's window needs are still there."""

    goes_anywhere = False

    def can_rewind(self, cache: RotatingKVCache, length: int) -> bool:
        """As the function of that name."""
        return can_rewind(cache, length)

    def rewind(self, caches: Sequence[RotatingKVCache], length: int) -> None:
        """Drop the newest rows for good."""
        for cache in caches:
            rewind(cache, length)

    def can_keep_path(self, cache: RotatingKVCache) -> bool:
        """Whether no first rows are kept apart from the newest."""
        return cache.keep == 0 or cache.offset == held_rows(cache)

    def keep_path(
        self, caches: Sequence[RotatingKVCache], rows: tuple[int, ...], count: int
    ) -> None:
        """Keep the path's rows behind those that were there before."""
        for cache in caches:
            if rows == tuple(range(len(rows))):
                rewind(cache, cache.offset - count + len(rows))
            else:
                keep_rows(cache, rows, count)

    def save(self, cache: RotatingKVCache) -> tuple[mx.array, ...]:
        """The rows that the next token's window needs."""
        return save(cache)

    def load(self, cache: RotatingKVCache, part: tuple[mx.array, ...], length: int) -> None:
        """Hold these rows."""
        load(cache, (part[0], part[1]), length)

    def fill(self, cache: RotatingKVCache, depth: int) -> None:
        """A window of zeros."""
        load(cache, zero_rows(cache, min(depth, cache.max_size - 1)), depth)

    def begin_tree(self, cache: RotatingKVCache, tree: TreePass) -> None:
        """This cache, not its class, makes the tree's mask."""

        def held(window: int | None) -> tuple[int, int | None]:
            return min(cache.offset, cache.max_size - 1), window or cache.max_size

        cache.make_mask = tree_mask(tree, held)  # pyright: ignore[reportAttributeAccessIssue]

    def end_tree(self, cache: RotatingKVCache) -> None:
        """The class makes the masks again."""
        vars(cache).pop("make_mask", None)


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


def keep_rows(cache: RotatingKVCache, rows: tuple[int, ...], count: int) -> None:
    """Of the newest `count` rows, one pass's, keep these, in their order."""
    assert cache.keys is not None
    assert cache.values is not None
    held = cache.keys.shape[2] - count
    places = mx.array([held + row for row in rows])
    end = held + len(rows)
    for part in (cache.keys, cache.values):
        part[..., held:end, :] = mx.take(part, places, axis=2)  # moves nothing else
    kept = cache.keys[..., :end, :], cache.values[..., :end, :]
    load(cache, kept, cache.offset - count + len(rows))


def save(cache: RotatingKVCache) -> KeysValues:
    """Copies of the rows that the next token's window needs, in temporal order."""
    keys, values = cache._temporal_order(cache.keys), cache._temporal_order(cache.values)
    count = min(cache.offset, cache.max_size - 1)
    newest = mx.arange(keys.shape[2] - count, keys.shape[2])
    return mx.take(keys, newest, axis=2), mx.take(values, newest, axis=2)


def load(cache: RotatingKVCache, rows: KeysValues, length: int) -> None:
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
