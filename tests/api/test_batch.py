"""`Pair.generate`: many prompts in shared passes, each with the answer that it gets alone."""

from dataclasses import fields, replace
from typing import Any

import pytest
import tiny

from dflash_mlx import api
from dflash_mlx.errors import DFlashError, PromptTooLong, UsageError
from dflash_mlx.option_keywords import OptionKeywords
from dflash_mlx.options import GenerationOptions, Mode, SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.types import Block

PROMPTS = ["river", "stone, lantern", "paper boat", "amber", "north", "harbor wind and a meter"]


def check_answers(pair: Pair, options: GenerationOptions) -> None:
    results = pair.generate(PROMPTS, options, max_sequences=4)
    assert len(results) == len(PROMPTS)
    for prompt, result in zip(PROMPTS, results, strict=True):
        alone = api.generate(pair, prompt, options)
        assert (result.tokens, result.text) == (alone.tokens, alone.text)
        assert result.finish_reason == alone.finish_reason


@pytest.mark.parametrize("mode", ["dflash", "baseline"])
def test_answers_are_those_of_each_prompt_alone(pair: Pair, mode: Mode) -> None:
    check_answers(pair, GenerationOptions(mode=mode, max_tokens=24))


def test_answers_with_a_seed_are_those_of_each_prompt_alone(pair: Pair) -> None:
    sampling = SamplingParams(temperature=1.0, seed=5)
    check_answers(pair, GenerationOptions(sampling=sampling, max_tokens=16))


def test_prompts_share_passes(pair: Pair) -> None:
    before = pair.engine.passes
    pair.generate(PROMPTS, max_tokens=16, mode="baseline")
    together = pair.engine.passes - before
    pair.generate(PROMPTS, max_tokens=16, mode="baseline", max_sequences=1)
    assert together < (pair.engine.passes - before - together) / 2


@pytest.mark.parametrize("limited", [False, True], ids=["by max_sequences", "by memory"])
def test_no_more_answers_run_than_allowed(
    pair: Pair, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With memory for one answer they run one after another; one alone runs in any case."""
    if limited:
        monkeypatch.setattr(pair.engine, "memory_limit", 1)
    seen: list[int] = []
    pair.generate(
        PROMPTS[:3],
        max_tokens=8,
        max_sequences=16 if limited else 1,
        on_block=lambda number, block: seen.append(number),
    )
    assert seen == sorted(seen)
    assert {*seen} == {0, 1, 2}


def test_progress_is_counted(pair: Pair) -> None:
    seen: list[tuple[int, int]] = []
    pair.generate(PROMPTS, max_tokens=4, on_progress=lambda *counts: seen.append(counts))
    assert seen == [(done, len(PROMPTS)) for done in range(len(PROMPTS) + 1)]
    assert pair.generate([]) == []


def test_blocks_are_those_of_the_results(pair: Pair) -> None:
    """With their log-probabilities."""
    blocks: dict[int, list[Block]] = {}

    def on_block(number: int, block: Block) -> None:
        blocks.setdefault(number, []).append(block)

    results = pair.generate(PROMPTS[:3], max_tokens=12, logprobs=1, on_block=on_block)
    for number, result in enumerate(results):
        assert tiny.joined(blocks[number]) == result.tokens
        entries = [entry for block in blocks[number] for entry in block.logprobs]
        assert [*result.logprobs] == entries
        assert [entry.token for entry in entries] == result.tokens


def test_a_callback_stops_its_answer_alone(pair: Pair) -> None:
    results = pair.generate(PROMPTS[:3], max_tokens=24, on_block=lambda number, _: number == 1)
    assert [result.finish_reason == "interrupted" for result in results] == [False, True, False]
    assert results[1].tokens == api.generate(pair, PROMPTS[1], max_tokens=24).tokens[:1]


def test_an_error_of_a_callback_ends_all_answers(pair: Pair) -> None:
    """The fixture looks whether one still runs."""

    def on_block(number: int, block: Block) -> None:
        raise KeyError(number)

    with pytest.raises(KeyError):
        pair.generate(PROMPTS, on_block=on_block)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("hi", "the prompts cannot be a single text."),
        ([{"role": "user", "content": "hi"}], "the prompts cannot be a list of {'role'"),
        ([1, 2], "the prompts cannot be a list of 1."),
        (["hi", " "], "prompt 1 of the list: the prompt is empty."),
        (["hi", None], "prompt 1 of the list: a prompt cannot be None."),
        (["hi", "x" * 9999], "prompt 1 of the list: the prompt has "),
    ],
)
def test_a_wrong_prompt_is_named_before_any_model_runs(
    pair: Pair, prompts: Any, message: str
) -> None:
    before = pair.engine.passes
    with pytest.raises(UsageError) as caught:
        pair.generate(prompts)
    assert message in caught.value.message
    assert caught.value.hint
    assert pair.engine.passes == before


def test_wrong_arguments_are_refused(pair: Pair) -> None:
    with pytest.raises(UsageError, match="max_sequences cannot be 0"):
        pair.generate(PROMPTS, max_sequences=0)
    unknown: Any = {"temperature": 1}
    with pytest.raises(UsageError, match="generate has no argument 'temperature'"):
        pair.generate(PROMPTS, **unknown)


def test_an_error_in_one_answer_is_raised(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no check could know: the context became shorter meanwhile."""
    begin, begun = pair.engine.begin, []

    def failing(*given: Any) -> Any:
        begun.append(given)
        if len(begun) == 3:
            raise PromptTooLong(9, 8, memory=True)
        return begin(*given)

    monkeypatch.setattr(type(pair.engine), "begin", lambda _, *given: failing(*given))
    with pytest.raises(DFlashError, match="holds 8"):
        pair.generate(PROMPTS)


def test_keywords_are_the_fields_of_the_options() -> None:
    """Type checkers know the keywords by a declaration of their own."""
    names = [member.name for member in fields(GenerationOptions)]
    assert [*OptionKeywords.__annotations__] == names
    assert replace(GenerationOptions(), stop="a").stop == ("a",)
