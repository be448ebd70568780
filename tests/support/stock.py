"""Answers of stock mlx-lm, token by token, and ours in every mode held against them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import tiny
from mlx_lm import sample_utils
from mlx_lm.generate import generate_step

from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.models.target import Target
from dflash_mlx.options import Mode, SamplingParams

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


FREE = Rules()


def processors_of(params: SamplingParams) -> list[Any]:
    return sample_utils.make_logits_processors(
        logit_bias=dict(params.logit_bias) or None,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
    )


def stock_answer(
    target: Target,
    params: SamplingParams,
    rules: Rules = FREE,
    prompt: Sequence[int] = PROMPT,
    *,
    stops: bool = True,
) -> list[int]:
    """The tokens that mlx-lm draws, one by one; with `stops` up to one that ends the answer."""
    ends = target.eos_ids | {*rules.stop_token_ids}

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        said = tokens.tolist()[len(prompt) :]  # type: ignore[index]
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
        mx.array([*prompt]), model, max_tokens=LENGTH, sampler=sampler,
        logits_processors=[*processors_of(params), process],
    )  # fmt: skip
    answer = []
    for token, _ in steps:
        answer.append(int(token))
        if stops and answer[-1] in ends:
            break
    return answer


def check(
    target: Target,
    params: SamplingParams,
    rules: Rules = FREE,
    *,
    accepted: int = 10,
    stops: bool = True,
) -> list[int]:
    """Hold the answers of all modes, with two drafters, against stock's, which is returned.

    One drafter was never trained; the other is wrong about every fifth token.
    """
    wanted = stock_answer(target, params, rules, stops=stops)
    ends = target.eos_ids | {*rules.stop_token_ids} if stops else frozenset[int]()
    near = [t if n % 5 else (t + 1) % tiny.VOCAB for n, t in enumerate([*PROMPT, *wanted])]
    drafters = (tiny.random_drafter(target), tiny.scripted_drafter(near, strict=False))
    options = {name: getattr(rules, name) for name in Rules.__annotations__}
    count = 0
    for drafter in drafters:
        for mode, way in WAYS:
            sequence = TokenSequence(target, drafter)
            answer = tiny.start(
                sequence, PROMPT, params, mode=mode, max_tokens=LENGTH,
                stops=ends, **options, **way,
            )  # fmt: skip
            blocks = list(answer)
            assert tiny.joined(blocks) == wanted, mode
            count += sum(block.accepted for block in blocks)
    assert count >= accepted
    return wanted
