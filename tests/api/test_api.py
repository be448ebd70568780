"""What `stream` and `generate` take, and what they say to the rest."""

import inspect
import traceback
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
import tiny

import dflash_mlx
from dflash_mlx import api, tools
from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions, SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny.golden_pair("qwen3_full")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temperature", "give sampling=SamplingParams(temperature=...)"),
        ("temp", "give sampling=SamplingParams(temperature=...)"),
        ("seed", "give sampling=SamplingParams(seed=...)"),
        ("max_token", "did you mean 'max_tokens'?"),
        ("qqqq", "it has pair, prompt, options,"),
    ],
)
def test_an_unknown_argument_is_named_with_what_was_meant(pair: Pair, name: str, hint: str) -> None:
    """Guards the first thing many try, `temperature=0.5`, which ended in a bare TypeError."""
    options: dict[str, Any] = {name: 1}
    for function in (api.generate, api.stream):
        with pytest.raises(UsageError, match=f"has no argument '{name}'") as caught:
            function(pair, "hi", **options)
        assert caught.value.hint.startswith(hint)
    with pytest.raises(UsageError, match=f"stream has no argument '{name}'") as caught:
        Session(pair).stream("hi", **options)
    assert "self" not in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("sampling", {"temperature": 0.7}, "give SamplingParams("),
        ("options", SamplingParams(), "give a GenerationOptions"),
        ("stop", 5, "give a text, or several"),
        ("max_tokens", "5", "give 1 or more"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(pair: Pair, name: str, value: Any, hint: str) -> None:
    """Guards against an AttributeError from within; a number as text is shown in quotes."""
    with pytest.raises(UsageError, match=f"{name} cannot be ") as caught:
        api.generate(pair, "hi", **{name: value})
    assert caught.value.hint.startswith(hint)
    assert repr(value)[:20] in caught.value.message


def test_what_is_no_pair_is_refused() -> None:
    swapped: Any = "hi"
    with pytest.raises(UsageError, match="a pair cannot be 'hi'"):
        api.generate(swapped, swapped)


@pytest.mark.parametrize("name", ["cache_ram", "cache_disk"])
@pytest.mark.parametrize("size", ["2GB", -1])
def test_a_cache_size_is_bytes(name: str, size: Any) -> None:
    """Refused before anything is loaded; it failed in the first answer, or not at all."""
    with pytest.raises(UsageError, match=f"{name} cannot be"):
        dflash_mlx.load(**{name: size})


def test_a_traceback_shows_the_hint(pair: Pair) -> None:
    with pytest.raises(UsageError) as caught:
        api.generate(pair, " ")
    assert f"Hint: {caught.value.hint}" in "".join(traceback.format_exception(caught.value))


def test_a_whole_answer_has_its_log_probabilities(pair: Pair) -> None:
    options = GenerationOptions(max_tokens=8, logprobs=1, mode="dflash")
    streamed = [entry for block in api.stream(pair, "hi", options) for entry in block.logprobs]
    result = api.generate(pair, "hi", options)
    assert [*result.logprobs] == streamed
    assert len(streamed) == len(result.tokens)


def test_editors_see_the_public_names() -> None:
    """They are loaded late, so that `dir` alone would not have them."""
    assert {*dflash_mlx.__all__} <= {*dir(dflash_mlx)}
    assert {*tools.__all__} <= {*dir(tools)}


def test_signatures_name_every_argument() -> None:
    """Guards `help()` and editors: the check of names hides no name."""
    for function in (api.generate, api.stream, Session.stream):
        spelt = inspect.signature(function).parameters
        assert all(one.kind is not one.VAR_KEYWORD for one in spelt.values())
        for one in fields(GenerationOptions):
            assert spelt[one.name].annotation == get_type_hints(GenerationOptions)[one.name]


def content(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


def test_text_parts_are_one_text(pair: Pair) -> None:
    """Guards messages in OpenAI's form: a list of text parts was an error of the template."""
    session = Session(pair)
    parts = content({"type": "text", "text": "sum:"}, {"type": "text", "text": "2 and 3"})
    whole = [{"role": "user", "content": "sum:\n2 and 3"}]
    assert session.tokens(parts) == session.tokens(whole)
    answer = api.generate(pair, parts, max_tokens=4)
    assert answer.tokens == api.generate(pair, whole, max_tokens=4).tokens
    assert parts[0]["content"][0] == {"type": "text", "text": "sum:"}


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "a prompt cannot be None."),
        ({"role": "user", "content": "hi"}, "a prompt cannot be {'role'"),
        (["hi"], "a prompt cannot be ['hi']."),
        ([{"role": "user", "content": "hi"}, "hi"], "a message cannot be a str."),
        (content({"type": "image_url", "image_url": {"url": "x"}}), "of the type 'image_url'"),
        (content({"type": "text", "text": "hi"}, {"type": "input_audio"}), "type 'input_audio'"),
        (content("hi"), "of the type 'str'"),
        (content({"type": "text"}), "without a text"),
    ],
)
def test_what_is_no_prompt_is_refused(pair: Pair, prompt: Any, message: str) -> None:
    """Guards against a TypeError from within, and against a picture that nobody looks at."""
    with pytest.raises(UsageError) as caught:
        api.generate(pair, prompt)
    assert message in caught.value.message
    assert caught.value.hint
