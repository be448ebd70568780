"""Behaviour of mlx-lm that this project leans on without it being promised.

Each test says where we use it: when one fails after an upgrade, look there.
"""

import inspect
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import (
    RotatingKVCache,
)

from dflash_mlx.models import attention
from dflash_mlx.models.cache.sliding import SlidingCache


def rows(count: int, first: int = 0) -> mx.array:
    """Keys [1, 1, count, 1] that are their own position."""
    return mx.arange(first, first + count, dtype=mx.float32).reshape(1, 1, count, 1)


def test_a_window_gives_the_rows_and_masks_of_mlx_lm() -> None:
    """sliding.SlidingCache: for several rows those of `RotatingKVCache`, in its order.

    One row sees all; its mask for a window smaller than the cache's has the newest rows.
    """
    theirs, ours = RotatingKVCache(6), SlidingCache(6)
    for size in (2, 1, 3, 9, 1, 1, 2, 4, 1, 5, 5, 1, 12, 1, 3):
        mask: Any = None
        for window in (None, 6, 4):
            wanted, mask = (each.make_mask(size, window_size=window) for each in (theirs, ours))
            assert size == 1 or str(wanted) == str(mask)
        keys = rows(size, ours.offset)
        rings, found = (np.array(each.update_and_fetch(keys, keys)[0]) for each in (theirs, ours))
        assert np.array_equal(rings if size > 1 else np.sort(rings, axis=2), found)
        if size == 1 and ours.offset > 6:
            assert mask.tolist() == [False] * 2 + [True] * 4
    assert ours.offset == theirs.offset


LATENT = ("deepseek_v3", "glm_moe_dsa", "kimi_k25")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_attention_is_called_by_name(family: str) -> None:
    """attention: each family's module calls one global, with these words; but for latent attention.

    Its `__call__` is the whole of it: no closure, and nothing between the caches and that call.
    """
    target = tiny.make_target(family)
    for layer in target._body.layers:
        if not hasattr(layer, "self_attn"):
            continue
        kind = attention.stock_class(layer.self_attn)
        call: Any = kind.__call__
        assert call.__globals__[attention.NAME] is scaled_dot_product_attention
        assert attention.NAME in call.__code__.co_names
        assert call.__closure__ is None
        assert "softcap" not in " ".join(call.__code__.co_names)
        assert kind.__module__.startswith("mlx_lm.models.")
        ours: Any = type(layer.self_attn).__call__
        leads_here = ours.__globals__[attention.NAME] is not scaled_dot_product_attention
        assert leads_here == (family not in LATENT)
        assert bool(target.stock_attention) == (family in LATENT)
        assert hasattr(layer.self_attn, "kv_lora_rank") == (family in LATENT)
    names = list(inspect.signature(scaled_dot_product_attention).parameters)
    assert names == ["queries", "keys", "values", "cache", "scale", "mask", "sinks"]
