"""Caches that pretend to hold many tokens, for timing passes at a depth without reading so much.

Rows are zeros: a pass takes as long over them as over any others. Never for answers.
"""

from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import ChunkedKVCache, RotatingKVCache

from dflash_mlx.context import Context
from dflash_mlx.target.caches import rotating
from dflash_mlx.target.caches.target_cache import members
from dflash_mlx.target.recurrent import RecurrentCache


def stretch(context: Context, depth: int) -> None:
    """Make a context that has read a few tokens look as if it had read `depth`.

    Its caches and its count of tokens say so; going back behind it is not possible.
    """
    for cache in members(context.target_cache.layers):
        stretch_cache(cache, depth)
    if context.draft_cache is not None:
        stretch_cache(context.draft_cache.rows, depth)
    context.tokens = [0] * depth


def stretch_cache(cache: Any, depth: int) -> None:
    """One cache: as many rows as it would have after `depth` tokens, or its state as it is."""
    if isinstance(cache, RecurrentCache):
        cache.load(cache.save(), depth)
        return
    held = depth
    if isinstance(cache, RotatingKVCache):
        held = min(depth, cache.max_size - 1)
    elif isinstance(cache, ChunkedKVCache):
        held = min(depth, cache.chunk_size)
        cache.start_position = depth - held

    def rows(array: mx.array) -> mx.array:
        return mx.zeros((*array.shape[:2], held, array.shape[3]), dtype=array.dtype)

    keys, values = tree_map(rows, cache.keys), tree_map(rows, cache.values)
    mx.eval(keys, values)
    if isinstance(cache, RotatingKVCache):
        rotating.load(cache, (keys, values), depth)
    else:
        cache.keys, cache.values, cache.offset = keys, values, depth
