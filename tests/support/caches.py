"""Tests of caches: passes over tiny targets, and comparison with a fresh prefill."""

from functools import cache
from typing import Any

import mlx.core as mx
import tiny
from mlx_lm.models.cache import ChunkedKVCache, QuantizedKVCache

from dflash_mlx.models.cache.recurrent import RecurrentCache
from dflash_mlx.models.cache.sliding import SlidingCache
from dflash_mlx.models.cache.target_cache import TargetCache
from dflash_mlx.models.parts import flat
from dflash_mlx.models.target import Target
from dflash_mlx.speculation.tree import Tree

EXACT = 1e-5  # float32; stock mlx-lm differs by a third of it with other prefill chunks
QUANTISED = 2e-1  # one step of 8-bit quantisation
STEPPED = ("quantised", "qwen3_5 kv8")  # kinds whose rows may differ by such a step
KINDS = (*STEPPED, *tiny.FAMILIES)
FORK = Tree((5, 6, 7), (0, 0, 2), (1, 1, 2), (0.0, 0.0, 0.0))


def layers_of(kind: str) -> list[Any]:
    if kind == "quantised":
        return [QuantizedKVCache(group_size=32, bits=8) for _ in range(3)]
    return target_of(kind).make_cache().layers


@cache
def target_of(kind: str) -> Target:
    """The target for a kind of cache; `head_dim` 32 is a multiple of the quantisation group.

    The other targets have `sober` weights, so that `EXACT` allows rounding errors only.
    """
    if kind == "quantised":
        return tiny.make_target("llama", head_dim=32)
    return tiny.make_target(kind, seed=7, scale=0.8, sober=True)


def read(target: Target, cache: TargetCache, tokens: list[int]) -> mx.array:
    logits, _ = target.forward(mx.array([tokens]), cache)
    mx.eval(logits, cache.state)
    return logits[0, -1]


def rows(layer: Any) -> tuple[mx.array, ...]:
    """A layer's keys and values that attention can still read, oldest first, or its state."""
    if isinstance(layer, RecurrentCache):
        held = tuple(part for part in layer.cache if part is not None)
        assert len(held) == len(layer.cache)
        return held
    if isinstance(layer, SlidingCache):
        keep = min(layer.offset, layer.max_size - 1)
        keys, values = layer._temporal_order(layer.keys), layer._temporal_order(layer.values)
        return keys[..., keys.shape[2] - keep :, :], values[..., values.shape[2] - keep :, :]
    if isinstance(layer, QuantizedKVCache):
        packed: Any = layer.keys_and_values()
        keys, values = (
            mx.dequantize(*part, group_size=layer.group_size, bits=layer.bits) for part in packed
        )
        return keys, values
    return layer.keys_and_values()


def assert_same(target: Target, kind: str, cache: TargetCache, tokens: list[int]) -> None:
    fresh = TargetCache(layers_of(kind))
    read(target, fresh, tokens)
    assert cache.offset == len(tokens)
    step = QUANTISED if kind in STEPPED else EXACT
    for mine, theirs in zip(flat(cache.layers), flat(fresh.layers), strict=True):
        assert mine.offset == theirs.offset
        for a, b in zip(rows(mine), rows(theirs), strict=True):
            assert a.shape == b.shape
            assert tiny.apart(a, b) < step


def chunked(reads: list[int]) -> ChunkedKVCache:
    """A chunked cache whose keys are their own positions, updated as by Llama 4."""
    cache: Any = ChunkedKVCache(8)
    for count in reads:
        cache.maybe_trim_front()
        keys = mx.arange(cache.offset, cache.offset + count, dtype=mx.float32)
        cache.update_and_fetch(keys.reshape(1, 1, -1, 1), keys.reshape(1, 1, -1, 1))
    return cache
