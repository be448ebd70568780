"""Rules for the tokens of an answer: those of plain decoding under them, in every mode."""

from functools import cache
from typing import Any

import mlx.core as mx
import pytest
import tiny
from stock import LENGTH, Rules, check, stock_answer

from dflash_mlx.engine.request import Request
from dflash_mlx.errors import UsageError
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.speculation.token_rules import TokenRules


@cache
def target_for(params: SamplingParams) -> Target:
    """A target that does not repeat itself, whose choices are open at temperature 1."""
    return tiny.make_target("qwen3") if params.greedy else tiny.make_target("qwen3", scale=1.0)


PARAMS = (SamplingParams(), SamplingParams(1.0, seed=7), SamplingParams(1.2, top_p=0.9, seed=4))
by_params = pytest.mark.parametrize("params", PARAMS, ids=["greedy", "seeded", "filtered"])


@by_params
def test_bad_words(params: SamplingParams) -> None:
    """Of one token and of several, some of which only drafts begin."""
    target = target_for(params)
    said = stock_answer(target, params, Rules())
    words = ((said[2],), (said[5], said[6]), (said[9], said[10], said[11]))
    for some in (words, words[1:2], words[2:]):
        found = check(target, params, Rules(bad_word_ids=some))
        assert found != said
        for word in some:
            assert all(tuple(found[n : n + len(word)]) != word for n in range(len(found)))


@by_params
def test_allowed_tokens(params: SamplingParams) -> None:
    target = target_for(params)
    allowed = tuple(range(0, tiny.VOCAB, 3))
    found = check(target, params, Rules(allowed_token_ids=allowed))
    assert {*found} <= {*allowed}


@by_params
def test_tokens_that_end_an_answer(params: SamplingParams) -> None:
    """stop_token_ids end it, but not before min_tokens; then the target says something else."""
    target = target_for(params)
    said = stock_answer(target, params, Rules())
    early, late = said[4], said[-2]
    ended = check(target, params, Rules(stop_token_ids=(early,)), accepted=0)
    assert ended == said[: said.index(early) + 1]
    rules = Rules(stop_token_ids=(early, late), min_tokens=12)
    longer = check(target, params, rules)
    assert len(longer) > 12
    assert {early, late}.isdisjoint(longer[:12])


@by_params
def test_no_end(params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_for(params)
    said = stock_answer(target, params, Rules())
    monkeypatch.setattr(target, "eos_ids", frozenset({said[6], said[8]}))
    assert len(check(target, params, Rules(), accepted=0)) <= 9
    found = check(target, params, Rules(ignore_eos=True))
    assert len(found) == LENGTH
    assert target.eos_ids.isdisjoint(found)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
@pytest.mark.parametrize(
    "more", [{}, {"top_k": 9}, {"top_p": 0.9, "min_p": 0.02, "top_k": 5}], ids=str
)
def test_xtc_is_stocks(family: str, more: dict[str, Any]) -> None:
    """With two keys for each token; a token in kept_ids is never left out."""
    target = tiny.make_target(family, scale=1.0)
    for kept in ((), (3, 8)):
        params = SamplingParams(1.0, seed=5, xtc_probability=0.6, xtc_threshold=0.05, **more)
        found = check(target, params, Rules(kept_ids=kept))
        assert found != stock_answer(target, SamplingParams(1.0, seed=5, **more), Rules())


def test_xtc_needs_the_rule_match() -> None:
    with pytest.raises(UsageError, match="XTC has none"):
        Request((1,), sampling=SamplingParams(1.0, xtc_probability=0.5), accept="token")


def test_a_rule_leaves_a_token() -> None:
    """A grammar, then allowed tokens, come before what is banned; no row loses all tokens."""
    rows = mx.array([[0.0, 1.0, -mx.inf, -mx.inf], [-mx.inf, -mx.inf, 2.0, 3.0]])
    draft = Draft(mx.array([1]))
    rules = TokenRules(allowed=(0, 2), words=((2,),))
    assert rules.apply(rows, [], 0, draft).tolist() == [
        [0.0, -mx.inf, -mx.inf, -mx.inf],
        [-mx.inf, -mx.inf, 2.0, -mx.inf],
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 1e-45},
        {"top_p": 1e-40},
        {"repetition_penalty": 1e300},
        {"logit_bias": ((1, 1e39),)},
        {"logit_bias": ((1, float("nan")),)},
    ],
)
def test_numbers_beyond_32_bits(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="32 bits"):
        SamplingParams(**wrong)
