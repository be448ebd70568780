"""Keys and values of some tokens of a layer, taken out of mlx-lm's cache and put into another.

Knows caches that keep the rows of all tokens, plain or quantised; not whose they are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

Rows = tuple[Any, Any]  # keys and values of some tokens of a layer, as its cache holds them
STEP = 256  # rows by which a cache grows, as mlx-lm's do


def copy_rows(cache: Any, start: int, end: int) -> Rows:
    """Keys and values of the tokens from `start` to before `end`, in arrays of their own."""
    places = mx.arange(start, end)
    return tree_map(lambda part: mx.take(part, places, axis=-2), (cache.keys, cache.values))


def append_rows(cache: Any, parts: Sequence[Rows]) -> None:
    """Add such rows, whose tokens follow one another, to a cache; they stay as they are."""
    held = [] if cache.keys is None else [tree_map(first(cache.offset), arrays_of(cache))]
    length = cache.offset + sum(count_rows(part) for part in parts)
    free = STEP - length % STEP

    def join(*arrays: mx.array) -> mx.array:
        shape = arrays[0].shape
        room = mx.zeros((*shape[:-2], free, shape[-1]), arrays[0].dtype)
        return mx.concatenate([*arrays, room], axis=-2)

    cache.keys, cache.values = tree_map(join, *held, *parts)
    cache.offset = length


def first(count: int) -> Callable[[mx.array], mx.array]:
    """What takes the first `count` rows of an array."""
    return lambda part: part[..., :count, :]


def arrays_of(cache: Any) -> Rows:
    """Its keys and values, with the free rows behind them."""
    return cache.keys, cache.values


def count_rows(rows: Rows) -> int:
    """The number of tokens that they are of."""
    flat: Any = tree_flatten(rows)
    return flat[0][1].shape[-2]


def share_rows(ours: Any, theirs: Any) -> None:
    """Let an empty cache go on from another one's rows by itself."""
    if ours.keys is not None:
        theirs.keys, theirs.values = tree_map(lambda part: part[...], arrays_of(ours))
        theirs.offset = ours.offset


def fill_rows(cache: Any, depth: int) -> None:
    """Let a cache that holds some tokens look as if it held `depth`, for timing."""
    held = cache.keys_and_values()
    zeros = [mx.zeros((*a.shape[:2], depth, a.shape[3]), a.dtype) for a in held]
    cache.keys, cache.values, cache.offset = *zeros, depth
