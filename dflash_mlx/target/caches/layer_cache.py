"""What each kind of mlx-lm's caches does to go back, to keep one path of a tree, and to be saved.

Knows one layer's cache at a time; when that may be asked, and of which layers, is not known here.
"""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from dflash_mlx.cpu.modules import MaskedCache
from dflash_mlx.target.recurrent import RecurrentCache

from . import rotating

ROWS = (KVCache, MaskedCache, QuantizedKVCache)  # go back to anywhere
KINDS = (*ROWS, ChunkedKVCache, RotatingKVCache, RecurrentCache)


def members(layers: list[Any]) -> Iterator[Any]:
    """The caches of all layers, those in mlx-lm's lists one by one."""
    for layer in layers:
        if type(layer) is CacheList:
            yield from members(list(layer.caches))
        else:
            yield layer


def can_cut(cache: Any, length: int) -> bool:
    """Whether one cache can go back to `length` tokens by itself."""
    if isinstance(cache, RotatingKVCache):
        return rotating.can_rewind(cache, length)
    if isinstance(cache, RecurrentCache):
        return cache.can_rewind(length)
    if isinstance(cache, ChunkedKVCache):  # its front is cut to `chunk_size` rows before a pass
        return length == cache.offset or cache.start_position <= max(0, length - cache.chunk_size)
    return True


def cut(cache: Any, length: int) -> None:
    """Let one cache of rows go back to `length` tokens, which `can_cut` has allowed."""
    if isinstance(cache, RotatingKVCache):
        rotating.rewind(cache, length)
    else:
        cache.trim(cache.offset - length)


def can_pick(cache: Any) -> bool:
    """Whether one cache can keep some of its newest rows."""
    return rotating.can_pick(cache) if isinstance(cache, RotatingKVCache) else True


def pick(cache: Any, rows: tuple[int, ...], count: int) -> None:
    """Of the newest `count` rows of one cache keep these, a path of the tree they were read as."""
    if rows == tuple(range(len(rows))):
        cut(cache, cache.offset - count + len(rows))
        return
    if isinstance(cache, RotatingKVCache):
        rotating.pick(cache, mx.array(rows), count)
        return
    first = cache.offset - count - getattr(cache, "start_position", 0)

    def compact(part: mx.array) -> mx.array:
        part[..., first : first + len(rows), :] = mx.take(part, first + mx.array(rows), axis=-2)
        return part

    cache.keys, cache.values = tree_map(compact, (cache.keys, cache.values))
    cache.trim(count - len(rows))


def save(cache: Any) -> tuple[mx.array, ...]:
    """Copies of what one cache that has read something needs to go on from here."""
    if isinstance(cache, RotatingKVCache):
        return rotating.save(cache)
    if isinstance(cache, RecurrentCache):
        return cache.save()
    keys, values = cache.keys_and_values()
    rows = mx.arange(keys.shape[2])
    return mx.take(keys, rows, axis=2), mx.take(values, rows, axis=2)


def load(cache: Any, part: tuple[mx.array, ...], length: int) -> None:
    """Put one cache back to what `save` gave after `length` tokens."""
    if isinstance(cache, RotatingKVCache):
        rotating.load(cache, (part[0], part[1]), length)
    elif isinstance(cache, RecurrentCache):
        cache.load(part, length)
    else:
        cache.keys, cache.values, cache.offset = part[0], part[1], length
        cache.start_position = length - part[0].shape[2]
