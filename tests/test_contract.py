"""Behaviour of mlx-lm that this project leans on without it being promised.

Each test says where we use it: when one fails after an upgrade, look there.
"""

import inspect
from typing import Any

import mlx.core as mx
import pytest
import tiny
from mlx_lm import generate, sample_utils
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model, load_tokenizer

from dflash_mlx.context import CHUNK
from dflash_mlx.sampling import HISTORY


def rows(count: int, first: int = 0) -> mx.array:
    """Keys [1, 1, count, 1] that are their own position."""
    return mx.arange(first, first + count, dtype=mx.float32).reshape(1, 1, count, 1)


def feed(cache: Any, *sizes: int) -> None:
    """Updates of these many rows."""
    for size in sizes:
        keys = rows(size, cache.offset)
        cache.update_and_fetch(keys, keys)


def test_rotating_cache_keeps_enough_rows() -> None:
    """cache.rewind_rotating: S rows at once leave max_size - 1 + S, in order, `_idx` at the end."""
    cache = RotatingKVCache(4)
    feed(cache, 9, 3)
    assert cache.keys is not None
    assert cache.keys.flatten().tolist() == [6, 7, 8, 9, 10, 11]
    assert (cache._idx, cache.offset, cache.keep) == (6, 12, 0)


def test_rotating_cache_turns_at_one_row() -> None:
    """cache.rotating_rows: one-row steps write in a ring; `_idx` is behind the newest, never 0."""
    cache = RotatingKVCache(4)
    feed(cache, 1)
    seen = set()
    for _ in range(12):
        feed(cache, 1)
        assert cache.keys is not None
        assert cache.keys.shape[2] == 4
        assert cache.keys[0, 0, cache._idx - 1, 0].item() == cache.offset - 1
        seen.add(cache._idx)
    assert seen == {1, 2, 3, 4}
    ordered = cache._temporal_order(cache.keys)
    assert ordered.flatten().tolist() == [9, 10, 11, 12]


def test_rotating_cache_with_a_filler() -> None:
    """cache.rewind_rotating: with `_idx` 0 the next row replaces row 0, several rows drop it."""
    for count, wanted in ((1, [7, 8, 9, 10]), (2, [7, 8, 9, 10, 11])):
        cache: Any = RotatingKVCache(4)
        cache.keys = cache.values = mx.concatenate([rows(1, 99), rows(3, 7)], axis=2)
        cache.offset, cache._idx = 10, 0
        feed(cache, count)
        assert cache._temporal_order(cache.keys).flatten().tolist() == wanted


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


def test_llama_makes_rotating_caches() -> None:
    """target.make_cache: the layers' own kinds, found through the taps' attributes."""
    target = tiny.make_target("llama_sliding")
    target.tap((0, 1, 2))
    kinds = [type(layer) for layer in make_prompt_cache(target.model)]
    assert kinds == [RotatingKVCache, KVCache, RotatingKVCache]


def test_penalties_look_at_twenty_tokens() -> None:
    """sampling.HISTORY, context.history: the context of every penalty is 20 by default."""
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
    """sampling.Shaper.penalise, baseline: processors see every token so far and [1, V] logits."""
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
    """baseline.decode_plain: a yielded token has been fed to the model, the last one too."""
    target, prompt = tiny.make_target("qwen3"), tiny.prompt_of(9)
    cache = make_prompt_cache(target.model)
    steps = generate_step(mx.array(prompt), target.model, max_tokens=3, prompt_cache=cache)
    for number, _ in enumerate(steps, 1):
        assert cache[0].offset == len(prompt) + number
    assert cache[0].offset == len(prompt) + 3


def test_generate_step_reports_its_prefill() -> None:
    """baseline.decode_plain: progress is what the cache holds; the total comes before token 1."""
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
    assert default == CHUNK


def test_baseline_draws_from_the_global_generator() -> None:
    """baseline.decode_plain: mx.random.seed is what makes plain sampling repeatable."""
    target, prompt = tiny.make_target("qwen3"), tiny.prompt_of(9)
    sampler = sample_utils.make_sampler(1.0)

    def answer(seed: int) -> list[int]:
        mx.random.seed(seed)
        steps = generate_step(mx.array(prompt), target.model, max_tokens=12, sampler=sampler)
        return [int(token) for token, _ in steps]

    assert answer(1) == answer(1) != answer(2)


@pytest.mark.parametrize("top_k", [0, 30, 31])
def test_top_k_of_the_whole_vocabulary(top_k: int) -> None:
    """sampling.Shaper, baseline: mlx-lm refuses a top_k that filters nothing; 0 is off."""
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
    """target.chat_text, text.Reader: the tokenizer inside, markers, a detokenizer each."""
    wrapper = tiny.byte_tokenizer()
    assert wrapper._tokenizer.apply_chat_template is not None
    assert (wrapper.think_start, wrapper.think_end) == ("<think>", "</think>")
    start, end = wrapper.encode("<think>")[0], wrapper.encode("</think>")[0]
    assert wrapper.rfind_think_start([1, start, 2, start, end]) == 3
    assert wrapper.rfind_think_end([1, start, 2]) == -1
    one, two = wrapper.detokenizer, wrapper.detokenizer
    one.add_token(start)
    assert two.text == ""
    assert one.last_segment == "<think>"
    assert one.last_segment == ""


def test_signatures() -> None:
    """target.Target.load: arguments and results of mlx-lm's loaders."""
    assert "eos_token_ids" in inspect.signature(load_tokenizer).parameters
    folder = tiny.GOLDEN / "qwen3_full" / "target"
    model, config = load_model(folder)
    assert config["hidden_size"] == 64
    assert len(model["model"]["layers"]) == 8
    tokenizer = load_tokenizer(folder, eos_token_ids=97)
    assert isinstance(tokenizer, TokenizerWrapper)
    assert tokenizer.eos_token_ids == {97, 98}
    assert callable(generate)
