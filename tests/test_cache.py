"""The target's caches after any walk of verifies and rewinds hold what a fresh prefill gives."""

import random
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
import tiny
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

from dflash_mlx.cache import TargetCache
from dflash_mlx.errors import DFlashError, RewindError
from dflash_mlx.target import Target

STEPS = 1000
COMPARE_EVERY = 50
RESTART_AT = 400  # tokens; keeps the fresh prefills short
Rewind = Callable[[TargetCache, int], None]


def layers_of(kind: str) -> list[Any]:
    """Empty caches for the three layers of a tiny target."""
    if kind == "rotating":
        sizes: list[Any] = [RotatingKVCache(tiny.WINDOW), KVCache(), RotatingKVCache(tiny.WINDOW)]
        return sizes
    if kind == "quantised":
        return [QuantizedKVCache(group_size=32, bits=8) for _ in range(3)]
    return [KVCache() for _ in range(3)]


def target_of(kind: str) -> Target:
    """The target that goes with a kind of cache; quantised rows must divide into groups."""
    if kind == "rotating":
        return tiny.make_target("llama_sliding")
    if kind == "quantised":
        return tiny.make_target("llama", head_dim=32)
    return tiny.make_target("qwen3")


def ours(cache: TargetCache, length: int) -> None:
    """The rewind under test."""
    cache.rewind(length)


def mlx_lm_trim(cache: TargetCache, length: int) -> None:
    """mlx-lm's own trim, without asking whether it can."""
    for layer in cache.layers:
        layer.trim(layer.offset - length)


def read(target: Target, cache: TargetCache, tokens: list[int]) -> mx.array:
    """A pass; logits of the last token."""
    logits, _ = target.forward(mx.array([tokens]), cache)
    mx.eval(logits, cache.state)
    return logits[0, -1]


def rows(layer: Any) -> tuple[mx.array, mx.array]:
    """The newest rows that attention may still ask for, in the order of their tokens."""
    if isinstance(layer, RotatingKVCache):
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
    """Every layer's rows are those of a fresh prefill; quantised ones within one step of 8 bits."""
    fresh = TargetCache(layers_of(kind))
    read(target, fresh, tokens)
    assert cache.offset == len(tokens)
    tolerance = 2e-1 if kind == "quantised" else 1e-4
    for mine, theirs in zip(cache.layers, fresh.layers, strict=True):
        assert mine.offset == theirs.offset
        for a, b in zip(rows(mine), rows(theirs), strict=True):
            assert a.shape == b.shape
            assert tiny.apart(a, b) < tolerance


def walk(kind: str, rewind: Rewind, steps: int = STEPS) -> None:
    """Random verifies of 1 to 17 rows, each rewound to what was kept of it; then compare.

    Every fourth step is one token, every tenth goes back further than one verify if that can be.
    """
    target, dice = target_of(kind), random.Random(5)
    cache, tokens = TargetCache(layers_of(kind)), []
    wraps = long_rewinds = 0
    for step in range(1, steps + 1):
        count = 1 if step % 4 == 0 else dice.randint(1, 17)
        block = [dice.randrange(96) for _ in range(count)]
        read(target, cache, block)
        kept = dice.randint(1, count)
        rewind(cache, len(tokens) + kept)
        tokens += block[:kept]
        back = max(0, len(tokens) - dice.randint(1, 20))
        if step % 10 == 0 and cache.can_rewind(back):
            rewind(cache, back)
            del tokens[back:]
            long_rewinds += 1
        wraps += len(tokens) > tiny.WINDOW
        if step % COMPARE_EVERY == 0 and tokens:
            following = dice.randrange(96)
            logits = read(target, cache, [following])
            tokens.append(following)
            if kind != "quantised":
                wanted = read(target, TargetCache(layers_of(kind)), tokens)
                assert tiny.apart(logits, wanted) < 1e-4
            assert_same(target, kind, cache, tokens)
        if len(tokens) > RESTART_AT:
            cache, tokens = TargetCache(layers_of(kind)), []
    assert wraps > steps // 2
    assert long_rewinds > (0 if kind == "rotating" else steps // 20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "quantised", "rotating"])
def test_thousand_steps(kind: str) -> None:
    """After 1,000 random steps, one-token ones and wraps among them, nothing has drifted."""
    walk(kind, ours)


def test_mlx_lm_trim_is_noticed() -> None:
    """The walk can fail: with mlx-lm's own trim a rotating cache reads rows that were dropped."""
    with pytest.raises((AssertionError, ValueError)):
        walk("rotating", mlx_lm_trim, steps=100)


def filled(kind: str, count: int, chunk: int) -> tuple[Target, TargetCache, list[int]]:
    """A cache that has read `count` tokens in passes of `chunk`."""
    target, tokens = target_of(kind), tiny.prompt_of(count)
    cache = TargetCache(layers_of(kind))
    for first in range(0, count, chunk):
        read(target, cache, tokens[first : first + chunk])
    return target, cache, tokens


@pytest.mark.parametrize("chunk", [1, 5, 20])
def test_every_rewind_is_exact_or_refused(chunk: int) -> None:
    """From any fill of a rotating cache to any length: exact, or RewindError and nothing changed.

    Also when it is the second rewind in a row; each with a next step of one token and of two.
    """
    done = refused = 0
    for count in (1, tiny.WINDOW - 1, tiny.WINDOW, tiny.WINDOW + 1, 28):
        target, full, tokens = filled("rotating", count, chunk)
        fresh = [
            read(target, TargetCache(layers_of("rotating")), [*tokens[:length], 7, 8])
            for length in range(count + 1)
        ]
        for first in range(count + 1):
            for second in {first, max(0, first - 1), first // 2}:
                cache, length = clone(full), count
                for goal in (first, second):
                    if cache.can_rewind(goal):
                        cache.rewind(goal)
                        length, done = goal, done + 1
                    else:
                        refused += 1
                        with pytest.raises(RewindError):
                            cache.rewind(goal)
                    assert cache.offset == length
                for steps in ([[7], [8]], [[7, 8]]):
                    copy = clone(cache)
                    logits = [read(target, copy, step) for step in steps][-1]
                    assert tiny.apart(logits, fresh[length]) < 1e-4, (first, second)
    assert done > 100
    assert refused > 20


def clone(cache: TargetCache) -> TargetCache:
    """Caches of the same content that share no array."""
    copies = []
    for layer in cache.layers:
        state = [mx.array(part) if isinstance(part, mx.array) else part for part in layer.state]
        copies.append(type(layer).from_state(tuple(state)))
    return TargetCache(copies)


def content(cache: TargetCache) -> list[Any]:
    """Everything that the layers hold, as plain numbers."""
    return [
        [part.tolist() if isinstance(part, mx.array) else part for part in layer.state]
        for layer in cache.layers
    ]


def test_refused_rewind_changes_nothing() -> None:
    """A rewind past the ring leaves every layer, also those that could have gone back."""
    target, cache, tokens = filled("rotating", 30, 30)
    read(target, cache, [1])
    before = content(cache)
    for length in (-1, 0, 5, 29, 32):
        with pytest.raises(RewindError):
            cache.rewind(length)
    assert content(cache) == before
    assert_same(target, "rotating", cache, [*tokens, 1])


def test_rewind_to_nothing() -> None:
    """An unwrapped cache of any kind can be emptied and filled again."""
    for kind in ("plain", "quantised", "rotating"):
        target, cache, tokens = filled(kind, 9, 9)
        cache.rewind(0)
        assert cache.offset == 0
        read(target, cache, tokens)
        assert_same(target, kind, cache, tokens)


def test_unknown_caches_are_refused() -> None:
    """A cache that cannot be rewound is refused when it is made, not in the middle of an answer."""
    with pytest.raises(DFlashError) as caught:
        TargetCache([KVCache(), ArraysCache(2)])
    assert "ArraysCache" in caught.value.message
    assert caught.value.hint
