"""What caches hold at some depth of context, as lazy arrays that a trace takes for inputs.

Windows of sliding layers are full; nothing has to grow in the pass that is traced.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, RotatingKVCache

from dflash_mlx.models.cache import sliding
from dflash_mlx.models.cache.recurrent import RecurrentCache

ROOM = 64  # free rows behind the context
# Keys and values of all tokens, of a window; recurrent states; the last inputs of convolutions.
ROWS, SLIDING, STATE, WINDOW = "rows", "sliding", "state", "window"


def held(caches: Sequence[Any], depth: int) -> list[mx.array]:
    """Two lazy arrays that each of these caches holds after `depth` tokens.

    The caches have read something, from which shapes and dtypes are taken.
    """
    found: list[mx.array] = []
    for cache in caches:
        recurrent = isinstance(cache, ArraysCache)
        parts: list[Any] = cache.cache if recurrent else [cache.keys, cache.values]
        for part in parts:
            shape = part.shape
            if not recurrent:
                shape = (*shape[:2], rows_of(cache, depth), shape[3])
            found.append(mx.zeros(shape, part.dtype))
    return found


def rows_of(cache: Any, depth: int) -> int:
    """How many rows, used and free, a cache of keys and values has after `depth` tokens."""
    if isinstance(cache, sliding.SlidingCache):
        return cache.max_size - 1 + sliding.ROOM
    return cache.max_size if isinstance(cache, RotatingKVCache) else depth + ROOM


def put(caches: Sequence[Any], arrays: Iterator[mx.array], depth: int) -> None:
    """Let the caches hold these arrays, in the order of `held`."""
    for cache in caches:
        first, second = next(arrays), next(arrays)
        if isinstance(cache, RecurrentCache):
            cache.load([first, second], depth)
            continue
        if isinstance(cache, ArraysCache):
            cache.cache = [first, second]
            continue
        cache.keys, cache.values, cache.offset = first, second, depth
        if isinstance(cache, RotatingKVCache):
            cache._idx = cache.max_size - isinstance(cache, sliding.SlidingCache)


def after(caches: Sequence[Any], rows: bool) -> list[mx.array]:
    """The recurrent states that caches hold, and with `rows` keys and values.

    Windows of convolutions are left out: MLX cannot trace how they are kept.
    """
    found: list[Any] = []
    for cache in caches:
        if isinstance(cache, ArraysCache):
            found.append(cache.cache[1])
        elif rows:
            found += [cache.keys, cache.values]
    return found


def labels_of(caches: Sequence[Any]) -> list[str]:
    """Labels of the arrays of `held`."""
    found: list[str] = []
    for cache in caches:
        if isinstance(cache, ArraysCache):
            found += [WINDOW, STATE]
        else:
            found += [SLIDING if isinstance(cache, RotatingKVCache) else ROWS] * 2
    return found
