"""Prompt lookup: copies of earlier text, found by a suffix automaton, exact in every mode."""

import random
from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import tiny

from dflash_mlx.drafters.ngram import (
    LEAST,
    CopiedBlock,
    NgramCache,
    NgramDrafter,
    SuffixAutomaton,
)
from dflash_mlx.errors import UsageError
from dflash_mlx.hub.resolve import pair_names
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair, load
from dflash_mlx.session import Session
from dflash_mlx.speculation.acceptance import BlockVerification, TokenRejection
from dflash_mlx.speculation.tree import best_first

ROSES = "Say this twice: roses are red, violets are blue, sugar is sweet."
TRIES = 1500  # draws of a test of a distribution
PROMPTS = (ROSES, "Count from 1 to 30.", "What is 7 plus 5? And what is 7 plus 6?")
SETTINGS = (
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.8, top_p=0.9, top_k=40, repetition_penalty=1.2, seed=6),
)


def longest(text: Sequence[int]) -> tuple[int, list[int]]:
    """The longest suffix that occurs before the end, and where it goes on, by trying all."""
    for length in range(len(text) - 1, 0, -1):
        end = text[len(text) - length :]
        if found := [n for n in range(length, len(text)) if text[n - length : n] == end]:
            return length, found
    return 0, []


@pytest.mark.parametrize("letters", [1, 2, 3, 7])
def test_the_automaton_finds_the_longest_and_newest(letters: int) -> None:
    """At every length of random texts, as trying all places does."""
    dice = random.Random(letters)
    for _ in range(30):
        runs, text = SuffixAutomaton(), list[int]()
        for _ in range(40):
            text.append(dice.randrange(letters))
            runs.extend(text[-1:])
            length, places = longest(text)
            assert runs.matched == length
            if length:
                assert runs.continues_at == max(places)
                followed = [token for token, _ in runs.following(runs.match)]
                assert sorted(followed) == sorted({text[place] for place in places})
                assert followed[0] == text[max(places)]
                period = len(text) - max(places)
                again = [text[max(places) + n % period] for n in range(9)]
                assert runs.continuation(9) == again


def test_a_tree_of_continuations() -> None:
    """All that followed is in it, the newest first; nothing is in it that never followed."""
    runs = SuffixAutomaton([1, 2, 3, 4, 9, 1, 2, 5, 6, 8, 1, 2])
    tree = best_first(CopiedBlock(runs, 3), 6)
    paths = set(tree.paths())
    assert (tree.tokens[0], tree.parents[0]) == (5, 0)
    assert {(5,), (3,), (5, 6), (3, 4), (5, 6, 8), (3, 4, 9)} == paths - {()}


def test_a_tree_of_very_many_continuations() -> None:
    """A long list: 2,000 tokens have followed the same two."""
    items = [token for n in range(2000) for token in (1, 2, 10 + n)]
    tree = best_first(CopiedBlock(SuffixAutomaton([*items, 1, 2]), 3), 6)
    assert tree.tokens[0] == 2009
    logs, tokens, _ = CopiedBlock(SuffixAutomaton([*items, 1, 2]), 3).after(0, 0)
    assert len(tokens) >= 2000
    assert logs == sorted(logs, reverse=True)


def test_a_text_that_grows_and_one_that_is_looked_for_again() -> None:
    """Drafts follow what is there; one equal token is not enough."""
    drafter = NgramDrafter()
    cache = drafter.make_cache()
    none = mx.zeros((1, 0, 0))
    assert drafter.preview(cache, 4, 4) == []
    cache.append(none, [4, 1, 5])
    assert drafter.preview(cache, 1, 4) == []
    cache.append(none, [1])
    assert len(drafter.preview(cache, 5, 4)) == 3
    assert drafts_of(drafter, cache, 5) == [1, 5, 1]
    assert drafts_of(drafter, cache, 5) == [1, 5, 1], "the same place, looked for twice"
    assert drafter.preview(cache, 4, 4) == [], "another anchor than the one before"
    cache.append(none, [5, 1, 5])
    assert drafts_of(drafter, cache, 1) == [5, 1, 5]
    cache.rewind(3)
    cache.append(none, [6, 4, 1])
    assert drafts_of(drafter, cache, 5) == [6, 4, 1]
    assert LEAST == 2


def drafts_of(drafter: NgramDrafter, cache: NgramCache, anchor: int) -> list[int]:
    (block,) = drafter.draft([cache], [anchor], 4)
    tokens: list[int] = block.greedy().tokens.tolist()  # type: ignore[assignment]
    return tokens


def test_a_fork_shares_nothing() -> None:
    """What a fork commits leaves the original's drafts as they are."""
    drafter, none = NgramDrafter(), mx.zeros((1, 0, 0))
    cache = drafter.make_cache()
    cache.append(none, [1, 2, 3, 1])
    before = drafts_of(drafter, cache, 2)
    twin = cache.fork()
    assert twin.automaton is not cache.automaton
    twin.append(none, [2, 7, 8, 9, 1])
    drafts_of(drafter, twin, 2)
    assert drafts_of(drafter, cache, 2) == before
    assert cache.offset == 4


def chi_square(rule: type[TokenRejection], certain: float) -> float:
    """Of the tokens that are committed where the draft is always the first of three."""
    chances = np.array([0.2, 0.5, 0.3])
    logits = mx.array(np.log(np.stack([chances, chances])), dtype=mx.float32)
    judge, counts = rule(SamplingParams(temperature=1.0, seed=1), 3), np.zeros(3)
    runs = SuffixAutomaton([0, 1, 0, 1])
    for place in range(TRIES):
        draft = CopiedBlock(runs, 1).sample(judge.draw([]))
        assert draft.probabilities is not None
        draft = replace(draft, probabilities=draft.probabilities * certain)
        outcome = judge.outcome(draft, logits, [1], place)
        counts[judge.accept(draft, outcome).tokens[0]] += 1
    return float(((counts - TRIES * chances) ** 2 / (TRIES * chances)).sum())


@pytest.mark.parametrize("rule", [TokenRejection, BlockVerification])
def test_copies_leave_the_distribution_as_it_is(rule: type[TokenRejection]) -> None:
    """By chi-square, two degrees of freedom; a copy that hides how sure it is shows."""
    assert chi_square(rule, 1.0) < 13.8, "p < 0.001"
    assert chi_square(rule, 0.5) > 13.8


@pytest.fixture(scope="module")
def bundled() -> Pair:
    return load(cache_ram=0)


@pytest.fixture(scope="module")
def alone(bundled: Pair) -> Pair:
    return replace(bundled, drafter=None, draft_name="lookup", lookup=True)


@pytest.fixture(scope="module")
def beside(bundled: Pair) -> Pair:
    return replace(bundled, lookup=True)


def answer(pair: Pair, prompt: str, mode: str, sampling: SamplingParams, **options: object):
    session = Session(pair, mode=mode, use_prefix_cache=False)  # type: ignore[arg-type]
    blocks = session.stream(prompt, sampling=sampling, max_tokens=60, **options)  # type: ignore
    tokens = [token for block in blocks for token in block.tokens]
    return tokens, session.stats


@pytest.mark.quick_every(6)
@pytest.mark.parametrize("sampling", SETTINGS, ids=["greedy", "drawn", "filtered"])
@pytest.mark.parametrize("which", ["alone", "beside"])
def test_answers_are_those_of_plain_decoding(
    which: str, sampling: SamplingParams, request: pytest.FixtureRequest
) -> None:
    """Token for token in every mode, copies verified in some of them."""
    pair, copied = request.getfixturevalue(which), 0
    for prompt in PROMPTS:
        plain, _ = answer(pair, prompt, "baseline", sampling)
        for mode in ("dflash", "ddtree", "auto"):
            tokens, stats = answer(pair, prompt, mode, sampling)
            assert tokens == plain, (prompt, mode)
            copied += stats.drafted
    assert copied


def test_a_chat_that_goes_on_and_one_that_is_changed(alone: Pair) -> None:
    """What was said before is looked at anew for each answer, as it is now."""
    session = Session(alone, mode="dflash", use_prefix_cache=False)
    for turns in ([ROSES], [ROSES, "Roses.", ROSES], [PROMPTS[1], "1, 2, 3", PROMPTS[1]]):
        messages = [
            {"role": ("user", "assistant")[number % 2], "content": text}
            for number, text in enumerate(turns)
        ]
        found = [t for b in session.stream(messages, max_tokens=40) for t in b.tokens]
        fresh = Session(alone, mode="baseline", use_prefix_cache=False)
        assert found == [t for b in fresh.stream(messages, max_tokens=40) for t in b.tokens]


def test_names() -> None:
    """`lookup` by its name, and wherever no drafter is known; no_draft is still plain decoding."""
    asked = pair_names("a/target", "lookup")
    assert (asked.lookup, asked.draft, asked.draft_label) == (True, None, "lookup")
    assert pair_names("nobody/has-a-drafter-for-it", None).lookup
    assert not pair_names("nobody/has-a-drafter-for-it", None, no_draft=True).lookup
    assert not pair_names(None, None).lookup


def test_a_loaded_target_changes_to_copies_and_back(bundled: Pair) -> None:
    """By `with_drafter`, as `/draft lookup` does."""
    wanted, _ = answer(bundled, ROSES, "baseline", SamplingParams())
    copies = tiny.with_drafter(bundled, "lookup")
    assert copies.drafts
    assert copies.drafter is None
    assert answer(copies, ROSES, "auto", SamplingParams())[0] == wanted
    both = tiny.with_drafter(copies, lookup=True)
    assert (both.drafter is not None, both.draft_label) == (True, "bundled + lookup")
    assert answer(both, ROSES, "auto", SamplingParams())[0] == wanted
    with pytest.raises(UsageError, match="lookup and no_draft contradict each other"):
        tiny.with_drafter(both, no_draft=True, lookup=True)
    assert answer(tiny.with_drafter(both), ROSES, "dflash", SamplingParams())[0] == wanted
