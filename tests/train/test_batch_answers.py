"""Training answers made in shared passes: those of each prompt alone, taps included."""

from typing import Any

import mlx.core as mx
import pytest
import tiny

from dflash_mlx.engine.request import Request
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams
from dflash_mlx.train.answers import complete

FAMILIES = ("qwen3", "llama", "deepseek_v3", "gemma4")
START = tiny.prompt_of(7)
PROMPTS = [(*START, *tiny.prompt_of(1 + 5 * (n % 3) + n, seed=n)) for n in range(9)]


def answers(target: Target, temperature: float, batch: int) -> dict[str, Any]:
    """Tokens and taps of each prompt's answer."""
    requests = {
        str(n): Request(
            prompt,
            sampling=SamplingParams(temperature=temperature, seed=n),
            max_tokens=1 + 3 * n,
            stop_ids=target.eos_ids,
            mode="baseline",
        )
        for n, prompt in enumerate(PROMPTS)
    }
    return {key: answer for key, *answer in complete(target, None, requests, batch)}


def close(taps: mx.array | None, wanted: mx.array | None) -> bool:
    """Whether taps differ by bfloat16's rounding at most."""
    if taps is None or wanted is None or taps.shape != wanted.shape:
        return False
    assert taps.dtype == wanted.dtype == mx.bfloat16
    return bool(mx.allclose(taps, wanted, rtol=2e-2, atol=2e-2))


@pytest.fixture(params=FAMILIES)
def target(request):
    """A random target whose second layer and last are tapped."""
    made = tiny.make_target(request.param)
    made.tap((1, 2))
    return made


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_answers_as_each_prompt_alone(target, temperature):
    """Guards tokens and taps: sequences that end and begin while others go on."""
    wanted = answers(target, temperature, batch=1)
    batched = answers(target, temperature, batch=4)
    assert batched.keys() == wanted.keys()
    for key, (tokens, taps) in batched.items():
        assert tokens == wanted[key][0]
        assert close(taps, wanted[key][1])


def test_taps_are_those_of_the_whole_text(target):
    """Guards what a drafter learns from: a pass over prompt and answer gives the same taps."""
    made = answers(target, 0.0, batch=4)
    for key, (tokens, taps) in made.items():
        text = [*PROMPTS[int(key)], *tokens][:-1]
        whole = target.taps(mx.array([text]))[0].astype(mx.bfloat16)
        assert close(taps, whole)
