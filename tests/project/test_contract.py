"""Behaviour of mlx-lm that this project leans on without it being promised.

Each test says where we use it: when one fails after an upgrade, look there.
"""

import inspect
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx_lm import sample_utils
from mlx_lm.generate import generate_step
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import (
    ArraysCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from dflash_mlx.engine.prompt_chunks import PREFILL_STEP_SIZE
from dflash_mlx.models import attention
from dflash_mlx.models.cache.sliding import SlidingCache
from dflash_mlx.speculation.sampling import HISTORY


def rows(count: int, first: int = 0) -> mx.array:
    """Keys [1, 1, count, 1] that are their own position."""
    return mx.arange(first, first + count, dtype=mx.float32).reshape(1, 1, count, 1)


def feed(cache: Any, *sizes: int) -> None:
    """Updates of these many rows."""
    for size in sizes:
        keys = rows(size, cache.offset)
        cache.update_and_fetch(keys, keys)


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


def test_trim_is_a_change_of_offset() -> None:
    """cache.TargetCache.rewind, drafter.DraftCache.rewind: rows after it are written over."""
    cache: Any = KVCache()
    feed(cache, 5)
    assert cache.trim(2) == 2
    assert cache.offset == 3
    cache.update_and_fetch(rows(1, 70), rows(1, 70))
    assert cache.keys_and_values()[0].flatten().tolist() == [0, 1, 2, 70]
    assert len(cache.state) >= 2
    quantised = QuantizedKVCache(group_size=32, bits=8)
    keys = mx.ones((1, 1, 5, 32))
    quantised.update_and_fetch(keys, keys)
    assert quantised.trim(2) == 2
    assert quantised.offset == 3
    assert not KVCache().keys
    assert KVCache().empty()
    assert RotatingKVCache(4).empty()
    assert QuantizedKVCache().empty()


def test_short_convolutions_are_what_the_tape_expects() -> None:
    """recurrent.TapedConv: the parts of a ShortConv module, which layers have it, their caches.

    Its input projection gives two gates and x, in this order; the cache holds the gated inputs.
    """
    for family in ("lfm2", "lfm2_moe"):
        target = tiny.make_target(family)
        layers: Any = target.parts.layers
        assert [layer.is_attention_layer for layer in layers] == [False, True, False]
        caches = make_prompt_cache(target.model)
        assert [type(cache) for cache in caches] == [ArraysCache, KVCache, ArraysCache]
        assert caches[0].cache == [None]
        net: Any = layers[0].conv.net
        assert net.L_cache == 3
        assert net.conv.weight.shape == (32, 3, 1)
        x = mx.random.normal((1, 5, 32), key=mx.random.key(1))
        out = net(x, None, caches[0])
        before, after, inner = mx.split(net.in_proj(x), 3, axis=-1)
        assert mx.array_equal(caches[0][0], (before * inner)[:, -2:])
        padded = mx.pad(before * inner, [(0, 0), (2, 0), (0, 0)])
        assert mx.array_equal(out, net.out_proj(after * net.conv(padded)))
        rope: Any = layers[1].self_attn.rope
        assert not rope.traditional  # halves; the drafters of these targets interleave
        assert "lm_head" not in target.model


LATENT = ("deepseek_v3", "glm_moe_dsa", "kimi_k25")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_attention_is_called_by_name(family: str) -> None:
    """attention: each family's module calls one global, with these words; but for latent attention.

    Its `__call__` is the whole of it: no closure, and nothing between the caches and that call.
    """
    target = tiny.make_target(family)
    for layer in target.parts.layers:
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


def test_penalties_look_at_twenty_tokens() -> None:
    """sampling.HISTORY, Sequence.history: the context of every penalty is 20 by default."""
    parameters = inspect.signature(sample_utils.make_logits_processors).parameters
    for kind in ("repetition", "presence", "frequency"):
        assert parameters[f"{kind}_context_size"].default == HISTORY
    for process in sample_utils.make_logits_processors(
        repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0
    ):
        logits = process(mx.arange(HISTORY + 1), mx.ones((1, 30)))
        assert (logits[0, :1] == 1).all()
        assert (logits[0, 1 : HISTORY + 1] != 1).all()
    assert not sample_utils.make_logits_processors(None, None, 20, 0.0, 20, 0.0)


def test_generate_step_reports_its_prefill() -> None:
    """The prompt is read in chunks, its last token by itself: `separate_last_token`."""
    calls: list[tuple[int, int, int]] = []
    target, prompt = tiny.make_target("qwen3"), tiny.prompt_of(9)
    cache = make_prompt_cache(target.model)

    def report(done: int, total: int) -> None:
        calls.append((done, total, cache[0].offset))

    steps = generate_step(
        mx.array(prompt),
        target.model,
        prompt_cache=cache,
        prefill_step_size=5,
        prompt_progress_callback=report,
    )
    next(steps)
    assert calls == [(0, 9, 0), (5, 9, 5), (8, 9, 8), (9, 9, 10)]
    default = inspect.signature(generate_step).parameters["prefill_step_size"].default
    assert default == PREFILL_STEP_SIZE
