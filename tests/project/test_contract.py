"""Behaviour of mlx-lm that this project leans on without it being promised.

Each test says where we use it: when one fails after an upgrade, look there.
"""

import inspect
from functools import partial
from importlib.util import find_spec
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx.utils import tree_map
from mlx_lm import generate, sample_utils
from mlx_lm.generate import generate_step
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)
from mlx_lm.models.deepseek_v3 import DeepseekV3Attention
from mlx_lm.models.gated_delta import (
    compute_g,
    gated_delta_ops,
    gated_delta_update,
    normalize_qk,
)
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import MODEL_REMAPPING, load_model, load_tokenizer

from dflash_mlx.engine.engine import PREFILL_STEP_SIZE
from dflash_mlx.families import FAMILIES
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


def test_mlx_lm_cannot_rewind_a_full_ring() -> None:
    """cache: the reason for our own rewind. If this fails, mlx-lm can do it: use its trim."""
    cache = RotatingKVCache(4)
    feed(cache, 9)
    assert not cache.is_trimmable()


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


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_caches(bits: int) -> None:
    """cache.rows, attention: what `--kv-bits` needs of mlx-lm's quantised cache and attention.

    Keys and values are three arrays each, with rows along the second last axis. A row is quantised
    by itself: whichever pass it came in, it has the same bits. The attention is chosen by the
    cache's `bits`, takes a mask of booleans, and knows no sinks.
    """
    keys = mx.random.normal((1, 2, 9, 128), key=mx.random.key(1))
    at_once, in_turn = (QuantizedKVCache(group_size=64, bits=bits) for _ in range(2))
    at_once.update_and_fetch(keys, -keys)
    found: Any = None
    for first, last in ((0, 4), (4, 5), (5, 9)):
        found = in_turn.update_and_fetch(keys[:, :, first:last], -keys[:, :, first:last])
    held: Any = at_once.keys_and_values()
    for ours, theirs in zip((*held[0], *held[1]), (*found[0], *found[1]), strict=True):
        assert ours.shape[:3] == (1, 2, 9)
        assert mx.array_equal(ours, theirs)
    queries = mx.random.normal((1, 4, 3, 128), key=mx.random.key(2))
    mask = mx.arange(9) <= mx.arange(6, 9)[:, None]
    attend: Any = partial(scaled_dot_product_attention, cache=in_turn, scale=0.1)
    together = attend(queries * 1, *held, mask=mask)
    assert mx.allclose(together, attend(queries * 1, *held, mask="causal"), atol=1e-6)
    for row in range(3):
        rows = tree_map(lambda part, end=7 + row: part[:, :, :end], held)
        alone = attend(queries[:, :, row : row + 1] * 1, *rows, mask=None)
        assert mx.allclose(together[:, :, row : row + 1], alone, atol=1e-5)
    with pytest.raises(ValueError, match="sinks"):
        attend(queries, *held, mask=None, sinks=mx.zeros(4))


def test_llama_makes_rotating_caches() -> None:
    """target.make_cache: the layers' own kinds, found through the taps' attributes."""
    target = tiny.make_target("llama_sliding")
    target.tap((0, 1, 2))
    kinds = [type(layer) for layer in make_prompt_cache(target.model)]
    assert kinds == [RotatingKVCache, KVCache, RotatingKVCache]


def test_recurrent_layers_are_what_the_tape_expects() -> None:
    """recurrent: the parts of a Gated DeltaNet module, where the layers have it, their caches."""
    for family in ("qwen3_5", "qwen3_5_moe", "qwen3_next"):
        target = tiny.make_target(family)
        layers: Any = target._body.layers
        assert [layer.is_linear for layer in layers] == [True, False, True]
        caches = make_prompt_cache(target.model)
        assert [type(cache) for cache in caches] == [ArraysCache, KVCache, ArraysCache]
        assert caches[0].cache == [None, None]
        net: Any = layers[0].linear_attn.net
        assert (net.conv_kernel_size, net.key_dim, net.conv_dim) == (4, 16, 64)
        assert (net.num_v_heads, net.head_k_dim, net.head_v_dim) == (4, 8, 8)
        assert net.A_log.shape == net.dt_bias.shape == (4,)
        for count in (5, 1):
            target.model(mx.zeros((1, count), dtype=mx.int32), cache=caches)
            conv, state = caches[0].cache
            assert (conv.shape, state.shape) == ((1, 3, 64), (1, 4, 8, 8))
            assert state.dtype == mx.float32


def test_short_convolutions_are_what_the_tape_expects() -> None:
    """short_conv: the parts of a ShortConv module, which layers have it, their caches.

    Its input projection gives two gates and x, in this order; the cache holds the gated inputs.
    """
    for family in ("lfm2", "lfm2_moe"):
        target = tiny.make_target(family)
        layers: Any = target._body.layers
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


def test_arrays_cache_counts_through_advance() -> None:
    """recurrent.RecurrentCache: `advance` is called once a pass, with the number of tokens."""
    calls: list[int] = []

    class Counted(ArraysCache):
        def advance(self, N: int) -> None:
            calls.append(N)
            super().advance(N)

    target = tiny.make_target("qwen3_next")
    caches = [Counted(2), KVCache(), Counted(2)]
    assert caches[0].make_mask(7) is None
    target.model(mx.array([[1, 2, 3]]), cache=caches)
    target.model(mx.array([[1]]), cache=caches)
    assert calls == [3, 3, 1, 1]
    assert ArraysCache(2).empty()
    target = tiny.make_target("lfm2")
    target.model(mx.array([[1, 2, 3]]), cache=[Counted(1), KVCache(), Counted(1)])
    assert calls[4:] == [3, 3]


def test_gated_delta_update() -> None:
    """recurrent.update: argument order, results, and rows in pieces are the rows at once."""
    names = list(inspect.signature(gated_delta_update).parameters)
    assert names[:10] == [
        "q",
        "k",
        "v",
        "a",
        "b",
        "A_log",
        "dt_bias",
        "state",
        "mask",
        "use_kernel",
    ]
    key = mx.random.key(0)
    q, k = (mx.random.normal((1, 9, 2, 8), key=mx.random.key(n)) for n in (1, 2))
    v = mx.random.normal((1, 9, 4, 8), key=mx.random.key(3))
    a, b = (mx.random.normal((1, 9, 4), key=mx.random.key(n)) for n in (4, 5))
    own = mx.random.normal((4,), key=key), mx.ones(4)
    out, state = gated_delta_update(q, k, v, a, b, *own, None, None, use_kernel=True)
    assert (out.shape, state.shape, state.dtype) == ((1, 9, 4, 8), (1, 4, 8, 8), mx.float32)
    outs, pieces = [], None
    for part in (slice(0, 4), slice(4, 8), slice(8, 9)):
        q_, k_, v_, a_, b_ = (array[:, part] for array in (q, k, v, a, b))
        some, pieces = gated_delta_update(q_, k_, v_, a_, b_, *own, pieces, None, use_kernel=True)
        outs.append(some)
    assert pieces is not None
    assert mx.array_equal(mx.concatenate(outs, axis=1), out)
    assert mx.array_equal(pieces, state)
    other = gated_delta_update(k, k, v, a, b, *own, None, None, use_kernel=True)[1]
    assert mx.array_equal(other, state)  # queries do not matter to the state


def test_gated_delta_ops() -> None:
    """recurrent.walk: on the CPU an update is these steps over g and the sigmoid of b."""
    assert list(inspect.signature(gated_delta_ops).parameters)[:6] == "q k v g beta state".split()
    q, k = (mx.random.normal((1, 3, 2, 8), key=mx.random.key(n)) for n in (1, 2))
    v = mx.random.normal((1, 3, 4, 8), key=mx.random.key(3))
    a, b = (mx.random.normal((1, 3, 4), key=mx.random.key(n)) for n in (4, 5))
    A_log, dt_bias = mx.random.normal((4,), key=mx.random.key(6)), mx.ones(4)
    wanted = gated_delta_update(q, k, v, a, b, A_log, dt_bias, None, None, use_kernel=False)
    g, wide = compute_g(A_log, a, dt_bias), [mx.repeat(x, 2, axis=2) for x in (q, k)]
    found = gated_delta_ops(wide[0], wide[1], v, g, mx.sigmoid(b), None)
    assert all(mx.array_equal(x, y) for x, y in zip(found, wanted, strict=True))


def test_normalize_qk() -> None:
    """recurrent.TapedDelta: names of the arguments; both come back in order, scaled apart."""
    assert list(inspect.signature(normalize_qk).parameters) == ["q", "k", "inv_scale", "eps"]
    x = mx.random.normal((1, 3, 2, 16), key=mx.random.key(0))
    q, k = normalize_qk(x, x, inv_scale=0.25, eps=1e-6)
    assert tiny.apart((k * k).sum(axis=-1), mx.ones((1, 3, 2))) < 1e-4
    assert tiny.apart(q, 0.25 * k) < 1e-6


def test_chunked_cache_cuts_its_front_before_a_pass() -> None:
    """cache.can_cut: after a pass at least `chunk_size` rows before it are still there."""
    cache = ChunkedKVCache(4)
    feed(cache, 9)
    assert (cache.start_position, cache.offset) == (0, 9)
    cache.maybe_trim_front()
    assert (cache.start_position, cache.offset) == (5, 9)
    assert cache.keys_and_values()[0].flatten().tolist() == [5, 6, 7, 8]
    feed(cache, 2)
    assert cache.trim(1) == 1
    assert cache.keys_and_values()[0].flatten().tolist() == [5, 6, 7, 8, 9]


def test_cache_list() -> None:
    """cache.members: the members of mlx-lm's list of caches, and what DeepSeek's indexer keeps."""
    target = tiny.make_target("glm_moe_dsa")
    caches = make_prompt_cache(target.model)
    assert [type(cache) for cache in caches] == [CacheList] * 3
    assert [type(member) for member in caches[0].caches] == [KVCache] * 2
    target.model(mx.array([tiny.prompt_of(20)]), cache=caches)
    assert [member.offset for member in caches[0].caches] == [20, 20]
    assert not caches[0].empty()


def test_families_arguments() -> None:
    """families: attributes that mlx-lm's classes scale embeddings and logits by."""
    gemma = tiny.make_target("gemma4")
    assert gemma._body.embed_scale == 32**0.5
    assert gemma._outer.args.final_logit_softcapping == 30.0
    muse = tiny.make_target("muse_glimmer")
    assert muse._outer.args.output_multiplier == pytest.approx(0.19611613513818404)
    assert muse._outer.args.final_logit_softcapping == 20.0
    assert MODEL_REMAPPING["minimax_m2"] == "minimax"
    assert MODEL_REMAPPING["kimi_k2"] == "deepseek_v3"
    assert MODEL_REMAPPING["gemma4_unified"] == "gemma4"
    for family in FAMILIES:
        assert find_spec(f"mlx_lm.models.{MODEL_REMAPPING.get(family, family)}")


def test_gemma_lends_keys_and_values() -> None:
    """target.make_cache: layers that read another's rows have no cache; the others come first."""
    target = tiny.make_target("gemma4_unified")
    assert target.layers == 6
    assert len(make_prompt_cache(target.model)) == 3


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


def test_latent_attention_takes_another_way_through_one_row() -> None:
    """attention.covered: why it stays stock's: scores come as a mask, and one row is appended."""
    code = DeepseekV3Attention.__call__.__code__
    assert "pe_scores" in code.co_varnames
    assert {"embed_q", "unembed_out"} <= set(code.co_names)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_windows_are_those_of_rotating_caches(family: str) -> None:
    """attention.Pass: windows are asked of caches, and are the sizes of rotating ones."""
    target = tiny.make_target(family)
    caches = target.make_cache()
    asked: list[tuple[Any, int | None]] = []

    def noting(cache: Any, honest: Any) -> Any:
        def make_mask(*args: Any, **options: Any) -> Any:
            asked.append((cache, options.get("window_size")))
            return honest(*args, **options)

        return make_mask

    for cache in caches.members:
        cache.make_mask = noting(cache, cache.make_mask)
    target.model(mx.array([tiny.prompt_of(20)]), cache=caches.layers)
    assert asked
    for cache, window in asked:
        assert window == (tiny.WINDOW if isinstance(cache, RotatingKVCache) else None)


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


def test_history_is_prompt_and_answer() -> None:
    """sampling.Shaper.penalise: processors see every token so far and [1, V] logits."""
    seen: list[list[int]] = []

    def look(tokens: mx.array, logits: mx.array) -> mx.array:
        assert logits.shape == (1, tiny.VOCAB)
        seen.append(tokens.tolist())  # type: ignore[arg-type]
        return logits

    target, prompt = tiny.make_target("qwen3"), tiny.prompt_of(9)
    steps = generate_step(
        mx.array(prompt), target.model, max_tokens=4, logits_processors=[look], prefill_step_size=4
    )
    answer = [token for token, _ in steps]
    assert seen[:4] == [[*prompt, *answer[:count]] for count in range(4)]


def test_generate_step_is_one_step_ahead() -> None:
    """Engine.step runs ahead too: a yielded token has been fed to the model, also the last one."""
    target, prompt = tiny.make_target("qwen3"), tiny.prompt_of(9)
    cache = make_prompt_cache(target.model)
    steps = generate_step(mx.array(prompt), target.model, max_tokens=3, prompt_cache=cache)
    for number, _ in enumerate(steps, 1):
        assert cache[0].offset == len(prompt) + number
    assert cache[0].offset == len(prompt) + 3


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


def test_stock_draws_from_the_global_generator() -> None:
    """sampling.Keys: mx.random.seed is what makes plain sampling repeatable."""
    target, prompt = tiny.make_target("qwen3"), tiny.prompt_of(9)
    sampler = sample_utils.make_sampler(1.0)

    def answer(seed: int) -> list[int]:
        mx.random.seed(seed)
        steps = generate_step(mx.array(prompt), target.model, max_tokens=12, sampler=sampler)
        return [int(token) for token, _ in steps]

    assert answer(1) == answer(1) != answer(2)


@pytest.mark.parametrize("top_k", [0, 30, 31])
def test_top_k_of_the_whole_vocabulary(top_k: int) -> None:
    """sampling.Shaper: mlx-lm refuses a top_k that filters nothing; 0 is off."""
    sampler = sample_utils.make_sampler(1.0, top_k=top_k)
    if top_k:
        with pytest.raises(ValueError, match="top_k"):
            sampler(mx.zeros((1, 30)))
        mx.random.seed(0)  # what it refuses while tracing leaves the global state unusable
    else:
        sampler(mx.zeros((1, 30)))


def test_sampler_order() -> None:
    """sampling.Shaper.shape: top-p before min-p before top-k before the temperature."""
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("apply_top_p", "apply_min_p", "apply_top_k", "categorical_sampling"):

            def noted(rows: mx.array, *args: Any, name: str = name) -> mx.array:
                calls.append(name)
                return rows

            patch.setattr(sample_utils, name, noted)
        sample_utils.make_sampler(0.5, top_p=0.9, min_p=0.1, top_k=5)(mx.zeros((1, 30)))
    assert calls == ["apply_top_p", "apply_min_p", "apply_top_k", "categorical_sampling"]


def test_tokenizer_wrapper() -> None:
    """chat/: the tokenizer inside, marks, a detokenizer for each answer."""
    wrapper = tiny.byte_tokenizer()
    assert wrapper._tokenizer.apply_chat_template is not None
    assert (wrapper.think_start, wrapper.think_end) == ("<think>", "</think>")
    start, end = wrapper.encode("<think>")[0], wrapper.encode("</think>")[0]
    assert wrapper.rfind_think_start([1, start, 2, start, end]) == 3
    assert wrapper.rfind_think_end([1, start, 2]) == -1
    assert wrapper.convert_tokens_to_ids("<think>") == start
    assert wrapper.convert_ids_to_tokens(start) == "<think>"
    assert wrapper.convert_tokens_to_ids("<none>") is None
    one, two = wrapper.detokenizer, wrapper.detokenizer
    one.add_token(start)
    assert two.text == ""
    assert one.last_segment == "<think>"
    assert one.last_segment == ""


def test_signatures() -> None:
    """target.Target.load, tokenizer.load: arguments and results of mlx-lm's loaders."""
    names = list(inspect.signature(load_tokenizer).parameters)
    assert names[1:] == ["tokenizer_config_extra", "eos_token_ids"]
    folder = tiny.GOLDEN / "qwen3_full" / "target"
    model, config = load_model(folder)
    assert config["hidden_size"] == 64
    assert len(model["model"]["layers"]) == 8
    tokenizer = load_tokenizer(folder, eos_token_ids=97)
    assert isinstance(tokenizer, TokenizerWrapper)
    assert tokenizer.eos_token_ids == {97, 98}
    assert callable(generate)
