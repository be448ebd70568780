"""The drafter's cache: rows that wait are as good as rows that are there, and cuts are exact."""

from typing import Any

import mlx.core as mx
import pytest
import tiny
from tiny import prompt_of

from dflash_mlx.drafters.bound import WAITING
from dflash_mlx.drafters.dflash.drafter import DraftCache
from dflash_mlx.drafters.dflash.model import CachedRows
from dflash_mlx.engine.sequence import Sequence


@pytest.fixture(scope="module")
def read() -> tuple[Sequence, mx.array]:
    """A sequence of a random pair, and the taps of some tokens that it did not read."""
    target = tiny.make_target("qwen3")
    drafter = tiny.random_drafter(target)
    return Sequence(target, drafter), target.taps(mx.array([prompt_of(40)]))


def drafted(cache: DraftCache) -> mx.array:
    return cache.draft_logits(5, 8)


def fresh(sequence: Sequence, taps: mx.array) -> DraftCache:
    """A cache that computes its rows at once."""
    cache = sequence.drafters[0].make_cache() if sequence.drafters else None
    assert isinstance(cache, DraftCache)
    cache.append(taps)
    mx.eval(cache.state)
    return cache


@pytest.mark.parametrize("length", [30, 29, 26, 24, 21, 20, 12])
def test_a_cut_among_rows_that_wait(read: tuple[Sequence, mx.array], length: int) -> None:
    """Rows behind the cut are forgotten, those before it and those that come after count."""
    sequence, taps = read
    cache = fresh(sequence, taps[:, :20])
    for first, end in ((20, 21), (21, 25), (25, 30)):
        cache.append(taps[:, first:end])
    assert (cache.offset, cache.computed) == (30, 20)
    cache.rewind(length)
    assert (cache.offset, cache.computed) == (length, min(20, length))
    assert mx.allclose(drafted(cache), drafted(fresh(sequence, taps[:, :length])), atol=1e-5)
    cache.append(taps[:, length:40])
    assert mx.allclose(drafted(cache), drafted(fresh(sequence, taps)), atol=1e-5)


def test_a_fork_shares_no_rows_that_wait(read: tuple[Sequence, mx.array]) -> None:
    """What a fork commits is not read by its original."""
    sequence, taps = read
    cache = fresh(sequence, taps[:, :20])
    cache.append(taps[:, 20:25])
    fork = cache.fork()
    fork.append(taps[:, 30:35])
    assert cache.offset == 25
    assert mx.allclose(drafted(cache), drafted(fresh(sequence, taps[:, :25])), atol=1e-5)


def test_rows_do_not_wait_for_ever(read: tuple[Sequence, mx.array]) -> None:
    """Taps are large: after so many tokens without a draft they become rows."""
    sequence, taps = read
    cache = fresh(sequence, taps)
    for number in range(1, WAITING + 1):
        assert cache.computed == 40
        cache.append(taps[:, :1])
        assert cache.offset == 40 + number
    assert cache.computed == cache.offset


def peak_of_a_draft(cache: DraftCache) -> float:
    """Memory that one draft takes beside what is there, as a share of the cache."""
    mx.eval(drafted(cache))  # makes room
    held = sum(part.nbytes for part in cache.state)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(drafted(cache))
    return (mx.get_peak_memory() - before) / held


def test_a_draft_copies_no_context(
    read: tuple[Sequence, mx.array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block's rows are written in place; new arrays of both together would be seen."""
    sequence, taps = read
    cache = fresh(sequence, mx.tile(taps, (1, 500, 1)))
    assert peak_of_a_draft(cache) < 0.4

    def joined(self: CachedRows, keys: mx.array, values: mx.array) -> Any:
        held: Any = self.cache.keys_and_values()
        each = zip(held, (keys, values), strict=True)
        return tuple(mx.concatenate([*parts], axis=2) for parts in each)

    monkeypatch.setattr(CachedRows, "joined", joined)
    assert peak_of_a_draft(cache) > 0.4


def test_layers_of_one_kind_share_their_mask() -> None:
    """A mask costs a dozen small operations, so it is not built once for each layer."""
    target = tiny.make_target("qwen3")
    kinds = [kind + "_attention" for kind in ("sliding", "sliding", "full", "sliding")]
    window = {"sliding_window": 20, "use_sliding_window": True}
    drafter = tiny.random_drafter(target, num_hidden_layers=4, layer_types=kinds, **window)
    cache = drafter.make_cache()
    cache.append(target.taps(mx.array([prompt_of(20)])))
    _, masks = cache.visible(5)
    assert masks[0] is masks[1] is masks[3] is not None
    assert masks[2] is None
