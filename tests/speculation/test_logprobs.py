"""Log-probabilities are the target's own: those of plain decoding, for accepted drafts too."""

from dataclasses import replace

import mlx.core as mx
import pytest
import tiny

from dflash_mlx import api
from dflash_mlx.errors import UsageError
from dflash_mlx.options import Mode, SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.types import TokenLogprob

PROMPT = tiny.prompt_of(12)
SAMPLINGS = (SamplingParams(), SamplingParams(1.2, top_k=9, repetition_penalty=1.3, seed=5))


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny.golden_pair("qwen3_full")


def stock(pair: Pair, tokens: list[int], count: int) -> list[TokenLogprob]:
    """The same by one plain pass of the model over prompt and answer."""
    whole = mx.array([[*PROMPT, *tokens]])
    logits = pair.target.model(whole)[0, len(PROMPT) - 1 : -1]
    rows = (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()
    found = []
    for token, row in zip(tokens, rows, strict=True):
        best = sorted(range(len(row)), key=lambda n: -row[n])[:count]
        found.append(TokenLogprob(token, row[token], tuple((n, row[n]) for n in best)))
    return found


def check(pair: Pair, mode: Mode, sampling: SamplingParams) -> None:
    blocks = list(api.stream(pair, PROMPT, mode=mode, sampling=sampling, max_tokens=40, logprobs=4))
    tokens = tiny.joined(blocks)
    told = [one for block in blocks for one in block.logprobs]
    assert mode in ("baseline", "auto") or any(block.accepted for block in blocks)
    assert len(told) == len(tokens)
    for mine, other in zip(told, stock(pair, tokens, 4), strict=True):
        assert (mine.token, [n for n, _ in mine.top]) == (other.token, [n for n, _ in other.top])
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [p for _, p in mine.top] == pytest.approx([p for _, p in other.top], abs=1e-3)


@pytest.mark.parametrize("mode", ["baseline", "dflash", "ddtree", "auto"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_they_are_those_of_plain_decoding(pair: Pair, mode: Mode, sampling: SamplingParams) -> None:
    check(pair, mode, sampling)


def test_none_unless_asked_for(pair: Pair) -> None:
    assert not any(block.logprobs for block in api.stream(pair, PROMPT, max_tokens=9))
    some = list(api.stream(pair, PROMPT, max_tokens=9, logprobs=0))
    assert all(one.top == () for block in some for one in block.logprobs)


def test_biased_tokens_are_in_the_vocabulary(pair: Pair) -> None:
    bias = SamplingParams(logit_bias=((pair.target.vocab_size, 1.0),))
    with pytest.raises(UsageError, match="a token of logit_bias is outside"):
        api.generate(pair, PROMPT, sampling=bias)


def test_a_banned_token_is_not_said(pair: Pair) -> None:
    usual = api.generate(pair, PROMPT, max_tokens=20)
    banned = usual.tokens[3]
    bias = replace(SamplingParams(), logit_bias=((banned, -100.0),))
    answers = [
        api.generate(pair, PROMPT, max_tokens=20, sampling=bias, mode=mode).tokens
        for mode in ("baseline", "dflash", "ddtree")
    ]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][:3] == usual.tokens[:3]
    assert banned not in answers[0]
