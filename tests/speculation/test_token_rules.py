"""Rules for the tokens of an answer: those of plain decoding under them, in every mode."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
import tiny
from mlx_lm import sample_utils
from mlx_lm.generate import generate_step

from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.errors import UsageError
from dflash_mlx.models.target import Target
from dflash_mlx.options import Mode, SamplingParams
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.speculation.token_rules import TokenRules

LENGTH = 24
PROMPT = tiny.prompt_of(26)
WAYS: list[tuple[Mode, dict[str, Any]]] = [
    ("baseline", {}),
    ("dflash", {"block_size": 6}),
    ("ddtree", {"block_size": 6, "tree_budget": 12}),
]


@dataclass(frozen=True)
class Rules:
    allowed_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    kept_ids: tuple[int, ...] = ()


def stock_answer(target: Target, params: SamplingParams, rules: Rules) -> list[int]:
    """The tokens of mlx-lm, one by one, up to one that ends the answer."""
    ends = target.eos_ids | {*rules.stop_token_ids}

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        said = tokens.tolist()[len(PROMPT) :]  # type: ignore[index]
        for token in range(logits.shape[-1]):
            if rules.allowed_token_ids and token not in rules.allowed_token_ids:
                logits[:, token] = -mx.inf
        banned = set(target.eos_ids) if rules.ignore_eos else set()
        if len(said) < rules.min_tokens:
            banned |= ends
        for word in rules.bad_word_ids:
            if [*word[:-1]] == said[len(said) - len(word) + 1 :]:
                banned.add(word[-1])
        if banned:
            logits[:, list(banned)] = -mx.inf
        return logits

    sampler = sample_utils.make_sampler(
        params.temperature, params.top_p, params.min_p, 1, params.top_k,
        params.xtc_probability, params.xtc_threshold, list(rules.kept_ids),
    )  # fmt: skip
    if params.seed is not None:
        mx.random.seed(params.seed)
    model: Any = target.model
    steps = generate_step(
        mx.array(PROMPT), model, max_tokens=LENGTH, sampler=sampler, logits_processors=[process]
    )
    answer = []
    for token, _ in steps:
        answer.append(int(token))
        if answer[-1] in ends:
            break
    return answer


def check(target: Target, params: SamplingParams, rules: Rules, *, accepted: int = 10) -> list[int]:
    """Hold the answers of all modes, with two drafters, against stock's, which is returned."""
    wanted = stock_answer(target, params, rules)
    near = [t if n % 5 else (t + 1) % tiny.VOCAB for n, t in enumerate([*PROMPT, *wanted])]
    drafters = (tiny.random_drafter(target), tiny.scripted_drafter(near, strict=False))
    options = {name: getattr(rules, name) for name in Rules.__annotations__}
    count = 0
    for drafter in drafters:
        for mode, way in WAYS:
            sequence = TokenSequence(target, drafter)
            answer = tiny.start(
                sequence, PROMPT, params, mode=mode, max_tokens=LENGTH,
                stops=target.eos_ids | {*rules.stop_token_ids}, **options, **way,
            )  # fmt: skip
            blocks = list(answer)
            assert tiny.joined(blocks) == wanted, mode
            count += sum(block.accepted for block in blocks)
    assert count >= accepted
    return wanted


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
        params = SamplingParams(
            1.0, seed=5, xtc_probability=0.6, xtc_threshold=0.05, **more
        )  # fmt: skip
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
