"""The prefix cache: a prompt with a known beginning reads only the rest, and its answer is the one
that reading it all would give."""

import gc
import random
from functools import cache
from typing import Any

import exact_rows
import mlx.core as mx
import numpy as np
import pytest
import tiny
from engines import EVERY_MODE, answer, target_of

from dflash_mlx import api
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.prefix_cache import tree
from dflash_mlx.engine.prefix_cache.prefix_cache import PrefixCache
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import EXACT_CHUNK, Sequence
from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session
from dflash_mlx.types import Block

GB = 1 << 30
# One family for each kind of cache.
KINDS = ["qwen3", "llama_sliding", "qwen3_5", "gemma4", "gpt_oss", "glm_moe_dsa", *tiny.QUANTISED]
every_family = pytest.mark.parametrize("family", [*tiny.QUANTISED, *tiny.FAMILIES])
every_kind = pytest.mark.parametrize("family", KINDS)


def engine_of(family: str, limit: int = GB) -> Engine:
    target = target_of(family)
    engine = Engine(target, tiny.random_drafter(target))
    engine.scheduler.prompt_chunks.sizes = {0: 16}
    engine.prefix_cache.limit = limit
    return engine


def next_prompt(texts: list[list[int]], dice: random.Random) -> list[int]:
    """A new conversation, a branch of an old one, or one that goes on after its answer."""
    begun = dice.choice(texts) if dice.random() < 0.8 else []
    cut = len(begun) if dice.random() < 0.5 else dice.randint(len(begun) // 2, len(begun))
    return [*begun[:cut], *tiny.prompt_of(dice.choice((1, 5, 20, 45)), dice.randrange(1000))]


def check_tree(family: str, seed: int, count: int) -> int:
    """Hold answers with what is cached against those read anew; the tokens that were not read."""
    held, anew = engine_of(family), engine_of(family, limit=0)
    dice = random.Random(seed)
    saved, texts = 0, [tiny.prompt_of(50, seed)]
    for _ in range(count):
        prompt, options = next_prompt(texts, dice), dice.choice(EVERY_MODE)
        wanted, none = answer(anew, prompt, **options)
        found, cached = answer(held, prompt, **options)
        assert found == wanted, (family, options, len(prompt), cached)
        assert none == 0
        saved += cached
        if len(prompt) < 150:
            texts.append([*prompt, *found])
    return saved


def test_where_a_prompt_differs() -> None:
    """From a cached prompt that goes on otherwise; not where it is the first, or continues one."""
    engine = engine_of("qwen3")
    text = tiny.prompt_of(60)
    places = []
    for prompt in (text, [*text, 5, 6], [*text[:40], *tiny.prompt_of(9, 1)], text):
        sequence = Sequence(engine.target, *engine.drafters)
        request = Request(tuple(prompt), max_tokens=1)
        places.append(engine.begin(sequence, request, len(prompt) - 1).differs_at)
        list(tiny.rounds(engine, sequence))
    assert places == [None, None, 40, None]


@pytest.mark.quick_every(3)
@every_family
def test_answers_are_those_read_anew(family: str) -> None:
    """Beginnings, branches and continuations of many prompts, in all modes after one another."""
    assert check_tree(family, 1, 12) > 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
@every_family
def test_answers_of_more_conversations(family: str, seed: int) -> None:
    assert check_tree(family, seed, 40) > 400


@every_kind
def test_sampled_answers_too(family: str) -> None:
    """A seed gives the same tokens whether the prompt was read or held."""
    held, anew = engine_of(family), engine_of(family, limit=0)
    sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=3)
    prompt = tiny.prompt_of(60, 5)
    wanted, _ = answer(anew, prompt, sampling=sampling)
    answer(held, prompt)
    assert answer(held, prompt, sampling=sampling) == (wanted, 59)


@every_kind
def test_an_answer_is_held_when_it_ends(family: str) -> None:
    """The next turn goes on from the last token that was read of the answer."""
    engine = engine_of(family)
    prompt = tiny.prompt_of(40, 2)
    said, _ = answer(engine, prompt)
    assert answer(engine, [*prompt, *said, 3, 4, 5])[1] == len(prompt) + len(said) - 1


@every_kind
def test_a_sequence_takes_what_follows_its_own_tokens(family: str) -> None:
    """Rows from the middle of a node, in the target and in the drafter."""
    engine = engine_of(family)
    prompt = tiny.prompt_of(60, 4)
    wanted, _ = answer(engine, prompt)
    sequence = Sequence(engine.target, *engine.drafters)
    sequence.read(prompt[:25])
    assert engine.begin(sequence, Request(tuple(prompt), max_tokens=9)).cached == 59
    assert tiny.joined(list(tiny.rounds(engine, sequence))) == wanted


@every_kind
def test_a_prompt_is_held_before_its_answer_ends(family: str) -> None:
    """Requests that come together share a beginning that is read once; nobody writes to it."""
    engine, anew = engine_of(family), engine_of(family, limit=0)
    prompt = tiny.prompt_of(50, 7)
    wanted, _ = answer(anew, prompt)
    running: list[Sequence] = []
    said: list[list[int]] = [[], [], []]
    for number in range(3):
        running.append(Sequence(engine.target, *engine.drafters))
        cached = engine.begin(running[-1], Request(tuple(prompt), max_tokens=9), 49).cached
        assert cached == (49 if number else 0)
        while not said[number]:
            for place, block in enumerate(engine.step(running)):
                assert isinstance(block, Block)
                said[place] += block.tokens
    while not all(sequence.answer.finish_reason for sequence in running):
        left = [n for n, sequence in enumerate(running) if not sequence.answer.finish_reason]
        for place, block in zip(left, engine.step([running[n] for n in left]), strict=True):
            assert isinstance(block, Block)
            said[place] += block.tokens
    assert said == [wanted] * 3


@every_kind
def test_where_prompts_part_is_learned(family: str) -> None:
    """Two prompts part at a place that nobody named: the third one goes on from there."""
    engine = engine_of(family)
    begun = tiny.prompt_of(60, 1)
    found = [answer(engine, [*begun, *tiny.prompt_of(20, n)])[1] for n in (2, 3, 4)]
    snapshots = engine.target.make_cache().needs_snapshots
    assert found == [0, 0 if snapshots else 60, 60]


def pair_of(family: str) -> Pair:
    target = tiny.make_target(family)
    pair = tiny.make_pair(target, tiny.random_drafter(target), family, "random")
    pair.engine.prefix_cache.limit = GB
    return pair


@pytest.mark.quick_every(6)
@every_kind
def test_a_long_system_message_is_read_once(family: str) -> None:
    """The second of two scripts' calls with the same 1,500 tokens reads only the rest."""
    pair = pair_of(family)
    system = {"role": "system", "content": "abcdefgh kmno " * 107}
    ways: tuple[Any, ...] = ("dflash", "ddtree", "auto", "baseline")
    for number, mode in enumerate(ways):
        asked = {"role": "user", "content": f"{number} lanterns, and a boat"}
        prompt = [system, asked]
        ids = Session(pair).tokens(prompt)
        opening = Session(pair).tokens([system, {"role": "user", "content": "?"}])
        shared = next(n for n, (a, b) in enumerate(zip(ids, opening, strict=False)) if a != b)
        assert shared > 1500
        found = api.generate(pair, prompt, max_tokens=6, mode=mode)
        assert found.stats.cached_tokens == (shared if number else 0)
        alone = list(Session(pair, mode=mode, use_prefix_cache=False).stream(prompt, max_tokens=6))
        assert found.tokens == tiny.joined(alone)


def test_who_does_not_share_neither_takes_nor_gives() -> None:
    """Measurements read their prompts; the cache can be off."""
    pair = pair_of("qwen3")
    for _ in range(2):
        session = Session(pair, use_prefix_cache=False)
        list(session.stream([5, 6, 7, 8, 9], max_tokens=4))
        assert session.stats.cached_tokens == 0
    assert not pair.engine.prefix_cache.tree.root.children
    pair.engine.prefix_cache.limit = 0
    assert [api.generate(pair, [5, 6], max_tokens=3).stats.cached_tokens for _ in "ab"] == [0, 0]
    assert not pair.engine.prefix_cache.tree.root.children


@every_kind
def test_conversations_keep_within_the_limit(family: str) -> None:
    """What was used last stays, what is counted is what the arrays take, and answers are right."""
    engine, anew = engine_of(family), engine_of(family, limit=0)
    answer(engine, tiny.prompt_of(100, 0))
    engine.prefix_cache.limit = limit = 3 * engine.prefix_cache.nbytes
    for number in range(1, 7):
        prompt = tiny.prompt_of(100, number)
        assert answer(engine, prompt)[0] == answer(anew, prompt)[0]
        assert answer(engine, prompt, max_tokens=1)[1] == 99
        held = engine.prefix_cache
        assert 0 < held.nbytes <= limit
        assert held.nbytes == count_again(held)
    assert answer(engine, tiny.prompt_of(100, 6))[1] == 99
    assert answer(engine, tiny.prompt_of(100, 1))[1] == 0


def count_again(held: PrefixCache) -> int:
    left, total = [held.tree.root], 0
    while left:
        one = left.pop()
        total += tree.count_bytes([part.layers for part in one.parts.values()])
        left += one.children.values()
    return total


@pytest.mark.parametrize("family", ["qwen3", "llama_sliding", "qwen3_5"])
def test_what_is_counted_is_what_is_held(family: str) -> None:
    """A few tokens do not keep the long buffers alive that they were copied from."""
    engine = engine_of(family)
    sequence = Sequence(engine.target, *engine.drafters)
    sequence.read(tiny.prompt_of(100, 1))
    sequence.target_cache.snapshot()
    sequence.read(tiny.prompt_of(2900, 2))
    sequence.rewind(100)  # the buffers stay long
    engine.prefix_cache.keep(sequence, ended=True)
    mx.eval(sequence.state)
    sequence.clear()
    counted = engine.prefix_cache.nbytes
    gc.collect()
    held = mx.get_active_memory()
    engine.prefix_cache.clear()
    gc.collect()
    assert counted <= held - mx.get_active_memory() < 1.1 * counted + 4096


def test_a_long_prompt_is_looked_up_by_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 tokens in 2 nodes two comparisons are made, however many texts are held."""
    counts: list[int] = []
    honest = tree.count_common
    monkeypatch.setattr(tree, "count_common", lambda a, b: counts.append(len(a)) or honest(a, b))
    root = tree.Node(0, np.zeros(0, np.int32))
    text = np.random.default_rng(0).integers(1000, size=100_000).astype(np.int32)
    one = tree.Node(0, text[:60_000], root)
    root.children = {(0, int(n)): tree.Node(0, np.array([n]), root) for n in range(1000)}
    root.children[0, int(text[0])] = one
    one.children[60_000, int(text[60_000])] = tree.Node(60_000, text[60_000:], one)
    assert [match.end for match in tree.walk(root, text)] == [60_000, 100_000]
    assert counts == [60_000, 40_000]


def test_what_broke_is_not_held() -> None:
    """Logits that are not numbers: the next prompt with that beginning reads it anew."""
    engine, anew = engine_of("qwen3"), engine_of("qwen3", limit=0)
    prompt = tiny.prompt_of(30, 3)
    sequence = Sequence(engine.target, *engine.drafters)
    engine.begin(sequence, Request(tuple(prompt), max_tokens=9), 29)
    engine.step([sequence])
    for held in sequence.target_cache.members:
        held.keys = mx.full(held.keys.shape, mx.nan)
    blocks = [engine.step([sequence])[0] for _ in range(2) if sequence.tokens]
    assert isinstance(blocks[-1], DFlashError)
    engine.stop(sequence)
    assert answer(engine, prompt)[0] == answer(anew, prompt)[0]
    longer = [*prompt, *answer(anew, prompt)[0], 4]
    assert answer(engine, longer)[0] == answer(anew, longer)[0]


@cache
def exact_target(family: str) -> Target:
    return exact_rows.target_of(family, Kernels(exact=True), mx.bfloat16)


def left_behind(engine: Engine, prompt: list[int]) -> tuple[list[int], int, list[mx.array]]:
    """An answer in exact mode, the tokens that were not read, and the keys and values it left."""
    sequence = Sequence(engine.target, None)
    request = Request(tuple(prompt), max_tokens=4, mode="baseline")
    cached = engine.begin(sequence, request, len(prompt) - 1).cached
    said = tiny.joined(list(tiny.rounds(engine, sequence)))
    count = len(sequence.tokens)
    held = sequence.target_cache.members
    return said, cached, [a[..., :count, :] for one in held for a in (one.keys, one.values)]


def check_bits() -> list[int]:
    """Hold bits of branches and of a next turn against those read anew; the tokens not read."""
    held, anew = Engine(exact_target("qwen3"), None), Engine(exact_target("qwen3"), None)
    held.prefix_cache.limit = GB
    first = tiny.prompt_of(600, 1)
    said, *_ = left_behind(held, first)
    counts = []
    for prompt in ([*first[:580], *tiny.prompt_of(30, 2)], [*first, *said, 3, 4]):
        found, wanted = left_behind(held, prompt), left_behind(anew, prompt)
        assert found[0] == wanted[0]
        assert all(mx.array_equal(a, b) for a, b in zip(found[2], wanted[2], strict=True))
        counts.append(found[1])
    return counts


def test_exact_mode_gives_the_bits_of_reading_anew() -> None:
    """What is taken was read in whole passes, as it would be again."""
    assert check_bits() == [512, 512]


def test_exact_mode_takes_nothing_of_an_answer() -> None:
    """Its tokens were read one by one, and a prompt reads them in a pass of many."""
    engine = Engine(exact_target("qwen3"), None)
    sequence = Sequence(engine.target, None)
    first = tuple(tiny.prompt_of(254, 1))
    engine.begin(sequence, Request(first, max_tokens=9, mode="baseline"), len(first) - 1)
    answer = tiny.joined(list(tiny.rounds(engine, sequence)))
    assert len(sequence.tokens) > EXACT_CHUNK
    cached = engine.begin(sequence, Request((*first, *answer, 3), mode="baseline"), -1).cached
    assert cached == 0


def test_other_passes_give_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: where beginnings end anywhere, rows have other bits."""
    monkeypatch.setattr(Sequence, "align", lambda self, length: length)
    with pytest.raises(AssertionError):
        check_bits()
