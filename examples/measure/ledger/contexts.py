"""The contents of caches at a depth of context, as lazy arrays that are inputs of a trace.

Windows of sliding layers are full, and no cache has to grow in the traced pass.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from dflash_mlx.models.cache import sliding
from dflash_mlx.models.cache.recurrent import RecurrentCache

ROOM = 64  # free rows after the context
# Labels: keys and values of all tokens, of a window; recurrent states; inputs of convolutions.
ROWS, SLIDING, STATE, WINDOW = "rows", "sliding", "state", "window"


def held(caches: Sequence[Any], depth: int) -> list[tuple[str, mx.array]]:
    """The arrays of each cache after `depth` tokens, as lazy zeros with their labels.

    The caches must have read something, because shapes and dtypes are taken from them.
    """
    found: list[tuple[str, mx.array]] = []
    for cache in caches:
        recurrent = isinstance(cache, ArraysCache)
        parts: list[Any] = cache.cache if recurrent else [cache.keys, cache.values]
        kinds = [SLIDING if isinstance(cache, RotatingKVCache) else ROWS] * 2
        for label, part in zip([WINDOW, STATE] if recurrent else kinds, parts, strict=False):
            shape = part.shape
            if not recurrent:
                shape = (*shape[:2], rows_of(cache, depth), shape[3])
            found.append((label, mx.zeros(shape, part.dtype)))
    return found


def rows_of(cache: Any, depth: int) -> int:
    """The number of rows, used and free, of a KV cache after `depth` tokens."""
    if isinstance(cache, sliding.SlidingCache):
        return cache.max_size - 1 + sliding.ROOM
    return cache.max_size if isinstance(cache, RotatingKVCache) else depth + ROOM


def put(caches: Sequence[Any], arrays: Iterator[mx.array], depth: int) -> None:
    """Put arrays in the order of `held` into the caches."""
    for cache in caches:
        if isinstance(cache, ArraysCache):
            cache.cache = [next(arrays) for _ in cache.cache]
            if isinstance(cache, RecurrentCache):
                cache.load(cache.cache, depth)
            continue
        cache.keys, cache.values, cache.offset = next(arrays), next(arrays), depth
        if isinstance(cache, RotatingKVCache):
            cache._idx = cache.max_size - isinstance(cache, sliding.SlidingCache)


def after(caches: Sequence[Any], rows: bool) -> list[mx.array]:
    """The recurrent states in the caches, and with `rows` also keys and values.

    The last inputs of convolutions are left out, because MLX cannot trace their update.
    """
    found: list[Any] = []
    for cache in caches:
        if isinstance(cache, ArraysCache):
            found += cache.cache[1:]
        elif rows:
            found += [cache.keys, cache.values]
    return found


def layers_of(cache: Any) -> list[KVCache]:
    """The caches that a drafter's cache of one sequence consists of."""
    held = vars(cache).values()
    parts = [part for one in held for part in (one if isinstance(one, list) else [one])]
    return [part for part in parts if isinstance(part, KVCache)]
