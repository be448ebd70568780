"""Plain answers in one batch of caches: the same as those of packed rounds, taps included."""

from collections import deque

import mlx.core as mx
import pytest
import tiny

from dflash_mlx.models.cache.batch import Batch, fits_batch
from dflash_mlx.models.target import Target
from dflash_mlx.train import answers as module
from dflash_mlx.train.answers import common, plain_answers, rounds
from dflash_mlx.train.data import Answered, Asked
from dflash_mlx.train.streams import Streams

FAMILIES = ("qwen3", "llama", "deepseek_v3")
START = tiny.prompt_of(7)


def asked(count: int = 9) -> list[Asked]:
    """Prompts of other lengths that begin alike, with room for answers of other lengths."""
    rest = [tiny.prompt_of(1 + 5 * (n % 3) + n, seed=n) for n in range(count)]
    return [Asked(str(n), (*START, *more), 1 + 3 * n, n) for n, more in enumerate(rest)]


def written(target: Target, temperature: float, desks: int = 1) -> dict[str, Answered]:
    """Answers by key, of desks that write at once and take from the same prompts."""
    prompts, ready = asked(), deque[Answered]()
    waiting = deque(prompts)
    each = (plain_answers(target, prompts, waiting, temperature, 4, ready) for _ in range(desks))
    for _ in Streams(desks).together(each):
        pass
    return {found.key: found for found in ready}


def alike(one: Answered, other: Answered) -> bool:
    """Equal tokens, and taps that differ by bfloat16's rounding at most."""
    ours, theirs = one.taps, other.taps
    if ours is None or theirs is None or one.tokens != other.tokens or ours.shape != theirs.shape:
        return False
    assert ours.dtype == theirs.dtype == mx.bfloat16
    return bool(mx.allclose(ours, theirs, rtol=2e-2, atol=2e-2))


@pytest.fixture(params=FAMILIES)
def target(request):
    """A random target whose second layer and last are tapped."""
    made = tiny.make_target(request.param)
    made.tap((1, 2))
    return made


@pytest.mark.parametrize("desks", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_answers_as_packed_rounds_do(target, temperature, desks, monkeypatch):
    """Guards tokens and taps: places taken again, prompts of two passes, a batch that shrinks."""
    monkeypatch.setattr(module, "CHUNK", 20)
    monkeypatch.setattr(module, "TOGETHER", 3)
    assert fits_batch(target.make_cache())
    wanted = {each.key: each for each in rounds(target, None, deque(asked()), temperature, 4)}
    found = written(target, temperature, desks)
    assert found.keys() == wanted.keys()
    assert all(alike(each, wanted[key]) for key, each in found.items())


def test_the_comparison_finds_a_wrong_mask(target, monkeypatch):
    """Guards the test above: a row that sees one place of nobody gives other answers or taps."""
    wanted = written(target, 0.0)
    mask = Batch.mask
    monkeypatch.setattr(Batch, "mask", lambda self, window: mx.ones_like(mask(self, window)))
    found = written(target, 0.0)
    assert not all(alike(each, wanted[key]) for key, each in found.items())


def test_what_prompts_begin_with():
    """Guards the shared beginning: never more than all have."""
    assert common([[1, 2, 3], [1, 2], [1, 2, 4]]) == [1, 2]
    assert common([[1], [2]]) == common([[], [1]]) == []
    assert common([[5, 6]]) == [5, 6]
