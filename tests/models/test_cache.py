"""The target's caches after any walk of verifies and rewinds hold what a fresh prefill gives."""

import random
from typing import Any

import mlx.core as mx
import pytest
import tiny
from caches import EXACT, KINDS, STEPPED, assert_same, chunked, layers_of, read, rows, target_of
from mlx_lm.models import qwen3_next
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from dflash_mlx.errors import RewindError
from dflash_mlx.models import gated_delta, recurrent
from dflash_mlx.models.cache.recurrent import RecurrentCache
from dflash_mlx.models.cache.sliding import SlidingCache
from dflash_mlx.models.cache.target_cache import TargetCache, own_caches
from dflash_mlx.models.parts import flat
from dflash_mlx.models.target import Target
from dflash_mlx.types import SNAPSHOT_LIMITS, SnapshotLimits

STEPS, SOME_STEPS = 1000, 60
COMPARE_EVERY = 20
RESTART_AT = 200  # tokens; keeps the fresh prefills short
DELTA = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
RECURRENT = (*DELTA, "lfm2")
HELD = (1, 3 * 1024, 1 << 20)  # bytes: no state of a pass is kept, every third or so, every one


def walk(kind: str, steps: int) -> None:
    """Random verifies of 1 to 17 rows, each rewound to what was kept of it; then compare.

    Every fourth step is one token, every tenth goes back further than one verify if that can be,
    and every seventh leaves a snapshot.
    """
    target, dice = target_of(kind), random.Random(5)
    cache, tokens = TargetCache(layers_of(kind)), []
    wraps = long_rewinds = 0
    for step in range(1, steps + 1):
        count = 1 if step % 4 == 0 else dice.randint(1, 17)
        block = [dice.randrange(96) for _ in range(count)]
        read(target, cache, block)
        kept = dice.randint(0 if tokens else 1, count)
        cache.rewind(len(tokens) + kept)
        tokens += block[:kept]
        back = cache.reachable(max(0, len(tokens) - dice.randint(1, 20)))
        if step % 10 == 0 and back and cache.can_rewind(back):
            cache.rewind(back)
            long_rewinds += len(tokens) - back > 0
            del tokens[back:]
        if step % 7 == 0:
            cache.snapshot()
        wraps += len(tokens) > tiny.WINDOW
        if step % COMPARE_EVERY == 0 and tokens:
            following = dice.randrange(96)
            logits = read(target, cache, [following])
            tokens.append(following)
            if kind not in STEPPED:
                wanted = read(target, TargetCache(layers_of(kind)), tokens)
                size = float(mx.abs(wanted).max().item())  # type: ignore
                assert tiny.apart(logits, wanted) < EXACT * max(1.0, size)
            assert_same(target, kind, cache, tokens)
        if len(tokens) > RESTART_AT:
            cache, tokens = TargetCache(layers_of(kind)), []
    assert wraps > steps // 2
    assert long_rewinds > steps // 20


@pytest.mark.parametrize("kind", KINDS)
def test_some_steps(kind: str) -> None:
    """After random steps, one-token ones, wraps and long ways back among them, all is as fresh."""
    walk(kind, SOME_STEPS)


@pytest.mark.parametrize("held", HELD[:2])
@pytest.mark.parametrize("kind", DELTA)
def test_some_steps_run_again(kind: str, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where rows are run again, as on a GPU and with large states."""
    monkeypatch.setattr(recurrent, "KEPT_STATES", held)
    walk(kind, SOME_STEPS)


@pytest.mark.slow
@tiny.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_thousand_steps(kind: str) -> None:
    walk(kind, STEPS)


def filled(kind: str, count: int, chunk: int) -> tuple[Target, TargetCache, list[int]]:
    target, tokens = target_of(kind), tiny.prompt_of(count)
    cache = TargetCache(layers_of(kind))
    for first in range(0, count, chunk):
        read(target, cache, tokens[first : first + chunk])
    return target, cache, tokens


@pytest.mark.parametrize("chunk", [1, 5, 20])
def test_every_rewind_is_exact_or_refused(chunk: int) -> None:
    """From any fill of a window to any length: exact, or RewindError and nothing changed."""
    done = refused = 0
    for count in (1, tiny.WINDOW - 1, tiny.WINDOW, tiny.WINDOW + 1, 28):
        target, full, tokens = filled("llama_sliding", count, chunk)
        fresh = [
            read(target, TargetCache(layers_of("llama_sliding")), [*tokens[:length], 7, 8])
            for length in range(count + 1)
        ]
        for outside in (-1, count + 1):
            with pytest.raises(RewindError):
                full.rewind(outside)
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
    copies = []
    for layer in cache.layers:
        state = [mx.array(part) if isinstance(part, mx.array) else part for part in layer.state]
        copies.append(type(layer).from_state(tuple(state)))
    return TargetCache(copies)


def test_rewind_to_nothing() -> None:
    """An unwrapped cache of any kind can be emptied and filled again."""
    for kind in KINDS:
        target, cache, tokens = filled(kind, 9, 9)
        cache.rewind(0)
        assert cache.offset == 0
        read(target, cache, tokens)
        assert_same(target, kind, cache, tokens)


def test_caches_that_cannot_take_drafts_back() -> None:
    """It is known before the first draft, not in the middle of an answer."""
    layers = own_caches([KVCache(), ArraysCache(2), ArraysCache(2)], [False, True, False])
    cache = TargetCache([*layers, RotatingKVCache(4, keep=1)])
    assert cache.takes_back == [True, True, False, False]


def ring() -> RotatingKVCache:
    return RotatingKVCache(6, keep=1)


def state() -> RecurrentCache:
    return RecurrentCache(1, taped=False)


@pytest.mark.parametrize("make", [ring, state])
def test_a_cache_without_a_tape_goes_back_to_before_its_last_pass(make: Any) -> None:
    """And no further; what it held then is whole, also where the pass wrote over it."""
    layer = make()
    cache = TargetCache([layer])
    before: list[mx.array] = []
    for number in range(1, 5):
        cache.begin(2)
        rows = mx.full((1, 1, 2, 1), number)
        if isinstance(layer, RotatingKVCache):
            layer.update_and_fetch(rows, rows)
        else:
            layer[0] = rows[0]
        if number == 3:
            before = [mx.array(array) for array in arrays_of(layer)]
    assert cache.offset == 8
    assert [length for length in range(1, 9) if cache.can_rewind(length)] == [6, 8]
    cache.rewind(6)
    assert cache.offset == 6
    assert all(mx.array_equal(*pair) for pair in zip(arrays_of(layer), before, strict=True))


def arrays_of(layer: Any) -> list[Any]:
    return layer.cache if isinstance(layer, RecurrentCache) else [layer.keys, layer.values]


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_pass_is_taken_back_row_by_row(
    kind: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a verify of 1 to 9 rows to every row of it, twice in turn; never to before the pass."""
    monkeypatch.setattr(recurrent, "KEPT_STATES", held)
    target, tokens = target_of(kind), tiny.prompt_of(30)
    for count in (1, 2, 4, 5, 9):
        for first in range(count + 1):
            for second in {first, 0, first // 2}:
                cache = TargetCache(layers_of(kind))
                read(target, cache, tokens[:12])
                read(target, cache, tokens[12 : 12 + count])
                assert not any(cache.can_rewind(length) for length in range(1, 12))
                cache.rewind(12 + first)
                cache.rewind(12 + second)
                assert_same(target, kind, cache, tokens[: 12 + second])
                with pytest.raises(RewindError):
                    cache.rewind(11)


def test_without_a_tape_only_the_whole_pass() -> None:
    """A prefill's rows cannot be taken back one by one, and no tape is held for them."""
    target, tokens = target_of("qwen3_5"), tiny.prompt_of(30)
    cache = TargetCache(layers_of("qwen3_5"))
    read(target, cache, tokens[:9])
    cache.tape(False)
    read(target, cache, tokens[9:20])
    assert [n for n in range(21) if cache.can_rewind(n)] == [0, 9, 20]
    cache.rewind(9)
    assert_same(target, "qwen3_5", cache, tokens[:9])
    held = [layer.tape for layer in cache.layers if isinstance(layer, RecurrentCache)]
    assert held == [None, None]


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_tape_changes_no_bit(kind: str, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verify's logits and states are bit by bit those of stock mlx-lm on the same instance."""
    monkeypatch.setattr(recurrent, "KEPT_STATES", held)
    target, tokens = target_of(kind), tiny.prompt_of(30)
    ours, stock = TargetCache(layers_of(kind)), make_prompt_cache(target.model)
    for first, last in ((0, 7), (7, 8), (8, 24)):
        logits = target.forward(mx.array([tokens[first:last]]), ours)[0]
        wanted = target.model(mx.array([tokens[first:last]]), cache=stock)
        assert mx.array_equal(logits, wanted)
    for mine, theirs in zip(ours.layers, stock, strict=True):
        if isinstance(theirs, ArraysCache):
            for a, b in zip(rows(mine), theirs.cache, strict=True):
                assert b is not None
                assert mx.array_equal(a, b)


@pytest.mark.parametrize(
    "kind", ["qwen3_5", "qwen3_next", "lfm2", "gpt_oss", "gemma4", "muse_glimmer"]
)
def test_snapshots(kind: str) -> None:
    """Back to each of four snapshots from far beyond it, newest first, oldest at once; then on."""
    target, tokens = target_of(kind), tiny.prompt_of(90)
    places = [3, tiny.WINDOW - 1, tiny.WINDOW + 1, 40]
    for order in (places[::-1], [3], [tiny.WINDOW + 1, 3]):
        cache = TargetCache(layers_of(kind))
        while cache.offset < 90:
            first = cache.offset
            count = 1 if first in places else 4
            last = min([place for place in [*places, 90] if place > first] + [first + count])
            read(target, cache, tokens[first:last])
            if last in places:
                cache.snapshot()
        for length in order:
            assert cache.reachable(length + 2) in (length, length + 2)
            cache.rewind(length)
            assert_same(target, kind, cache, tokens[:length])
            read(target, cache, [5])
            read(target, cache, [6, 7])
            assert_same(target, kind, cache, [*tokens[:length], 5, 6, 7])
            cache.rewind(length)


@pytest.mark.every_family
@pytest.mark.parametrize("kind", ["qwen3_5", "gpt_oss"])
def test_a_fork_has_snapshots_of_its_own(kind: str) -> None:
    """What one takes at a place is not where the other goes back to."""
    target, tokens = target_of(kind), tiny.prompt_of(90)
    original = TargetCache(layers_of(kind))
    read(target, original, tokens[:30])
    original.snapshot()
    twin = original.fork()
    texts = {original: tokens[:40], twin: [*tokens[:30], *tokens[50:60]]}
    for branch, text in texts.items():
        read(target, branch, text[30:])
        branch.snapshot()
        for start in (60, 75):
            read(target, branch, tokens[start : start + 15])
    for branch, text in texts.items():
        branch.rewind(40)
        assert_same(target, kind, branch, text)


def test_snapshots_are_bounded() -> None:
    """By number and by bytes, the oldest going first; at one place there is one."""
    target = target_of("qwen3_5")
    cache = TargetCache(layers_of("qwen3_5"))
    assert cache.snapshot_bytes == 0
    cache.snapshot()  # nothing was read: there is nothing to keep
    assert cache.snapshot_bytes == 0
    sizes = []
    for _ in range(SNAPSHOT_LIMITS.count + 3):
        read(target, cache, [1, 2, 3])
        cache.snapshot()
        cache.snapshot()
        sizes.append(cache.snapshot_bytes)
    one = sizes[0]
    # Two layers with three rows of 2 * 16 + 32 channels, and four heads of 8 * 8; float32.
    assert one == 2 * 4 * (3 * 64 + 4 * 8 * 8)
    assert sizes == [one * min(n, SNAPSHOT_LIMITS.count) for n in range(1, len(sizes) + 1)]
    assert cache.reachable(8) == 0
    assert cache.reachable(14) == 12
    cache.limits = SnapshotLimits(SNAPSHOT_LIMITS.count, 2 * one + 1)
    read(target, cache, [1])
    cache.snapshot()
    assert cache.snapshot_bytes == 2 * one
    cache.limits = SnapshotLimits(SNAPSHOT_LIMITS.count, 1)
    read(target, cache, [1])
    cache.snapshot()
    assert cache.snapshot_bytes == one  # the newest stays


@pytest.mark.parametrize("kind", ["qwen3", "deepseek_v3", "glm_moe_dsa"])
def test_rows_need_no_snapshots(kind: str) -> None:
    """Where every layer has rows of all tokens, any length is reached and nothing is kept."""
    _, cache, _ = filled(kind, 30, 30)
    assert not cache.needs_snapshots
    cache.snapshot()
    assert cache.snapshot_bytes == 0
    assert [cache.reachable(n) for n in range(31)] == list(range(31))


def test_a_snapshot_keeps_no_chunk_alive() -> None:
    """What a snapshot holds is what it says: not the buffer of the prefill that it was cut from."""
    chunk = mx.random.normal((1, 1, 100_000, 4))
    layer = SlidingCache(8)
    layer.update_and_fetch(chunk, chunk + 1)
    recurrent_layer = RecurrentCache()
    recurrent_layer.load([mx.contiguous(chunk[0, :, -3:]), mx.zeros((1, 1, 4, 4))], 100_000)
    mx.eval(layer.state, recurrent_layer.cache)
    cache = TargetCache([layer, recurrent_layer])
    cache.snapshot()
    del chunk, layer, recurrent_layer
    before = mx.get_active_memory()
    for old in cache.layers:
        old.__init__(*([8] if isinstance(old, SlidingCache) else []))
    assert before - mx.get_active_memory() > 3_000_000
    assert cache.snapshot_bytes == 2 * 7 * 4 * 4 + 3 * 4 * 4 + 16 * 4


def test_chunked_caches() -> None:
    """A chunked cache goes back as far as a chunk's rows are left, or to a snapshot, or refuses."""
    for reads in ([5], [8], [9], [20, 6], [20, 1, 1, 9]):
        for length in range(sum(reads) + 1):
            cache = TargetCache([chunked(reads)])
            layer = cache.layers[0]
            if not cache.can_rewind(length):
                assert layer.start_position > max(0, length - 8)
                continue
            cache.rewind(length)
            layer.maybe_trim_front()
            rows = layer.keys_and_values()[0].flatten().tolist()
            assert layer.offset == length
            assert rows == list(range(max(0, length - 8), length))
    cache = TargetCache([chunked([20])])
    cache.snapshot()
    for _ in range(3):
        cache.layers[0].maybe_trim_front()
        cache.layers[0].update_and_fetch(mx.zeros((1, 1, 7, 1)), mx.zeros((1, 1, 7, 1)))
    assert cache.reachable(21) == 20
    cache.rewind(20)
    cache.layers[0].maybe_trim_front()
    assert cache.layers[0].keys_and_values()[0].flatten().tolist() == list(range(12, 20))


def test_lists_of_caches() -> None:
    """Every member of mlx-lm's lists goes back, or none of the layers does."""
    ring: Any = SlidingCache(4)
    cache = TargetCache([CacheList(KVCache(), ring), KVCache()])
    for count in (9, 2):
        rows = mx.ones((1, 1, count, 1))
        for layer in flat(cache.layers):
            layer.update_and_fetch(rows, rows)
    assert cache.offset == 11
    with pytest.raises(RewindError):
        cache.rewind(8)
    assert [layer.offset for layer in flat(cache.layers)] == [11, 11, 11]
    cache.rewind(9)
    assert [layer.offset for layer in flat(cache.layers)] == [9, 9, 9]
    assert TargetCache([CacheList(KVCache(), RotatingKVCache(4))]).takes_back == [True, False]


@pytest.mark.parametrize("taping", [True, False])
def test_a_pass_that_breaks_off_leaves_no_trace(
    taping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the first recurrent layer of a pass, and in the second: back to before the pass."""
    target, tokens = target_of("qwen3_next"), tiny.prompt_of(20)
    place, name = (gated_delta, "normalize_qk") if taping else (qwen3_next, "gated_delta_update")
    honest = getattr(place, name)
    calls = 0

    def fail(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (1, 4):  # the second is in the second layer of another pass
            raise KeyboardInterrupt
        return honest(*args, **options)

    cache = TargetCache(layers_of("qwen3_next"))
    read(target, cache, tokens[:9])
    cache.tape(taping)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, fail)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                read(target, cache, tokens[9:12])
            cache.rewind(9)
            calls += calls == 1
    assert calls == 4
    assert_same(target, "qwen3_next", cache, tokens[:9])
