"""OpenAI's chat and text completions, by OpenAI's own client over a real socket."""

from dataclasses import replace
from typing import Any

import openai
import pytest
import tiny
from openai.types.chat import ChatCompletion
from serving import Served, serving

from dflash_mlx import api
from dflash_mlx.options import Mode, SamplingParams
from dflash_mlx.pair import Pair

QUESTION = "What is 12 plus 7?"
PROMPTS = (QUESTION, "Name three colors.", "Count from 3 to 9.")
USER: Any = {"role": "user", "content": QUESTION}


def ask(client: openai.OpenAI, prompt: str = QUESTION, **options: Any) -> ChatCompletion:
    messages: Any = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(model="m", messages=messages, **options)


def alone(pair: Pair, prompt: Any = QUESTION, mode: Mode = "dflash", **options: Any) -> api.Result:
    """The same answer without a server; the empty lines behind thinking are dropped there."""
    sampling = SamplingParams(**options.pop("sampling", {}))
    found = api.generate(pair, prompt, mode=mode, sampling=sampling, **options)
    return replace(found, text=found.text.lstrip("\n")) if found.thinking else found


@pytest.mark.quick_every(4)
@pytest.mark.parametrize("mode", ["auto", "dflash", "ddtree", "baseline"])
def test_whole_answers_are_those_of_generate(pair: Pair, mode: Mode) -> None:
    with serving(pair, mode=mode) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        for prompt in PROMPTS:
            for options in ({}, {"temperature": 1.1, "seed": 5, "top_p": 0.9}):
                found = ask(client, prompt, max_tokens=40, **options)
                mine = alone(pair, prompt, mode, max_tokens=40, sampling=options)
                assert found.choices[0].message.content == mine.text
                assert found.choices[0].finish_reason == mine.finish_reason
                assert found.usage is not None
                assert found.usage.completion_tokens == len(mine.tokens)
                assert found.usage.prompt_tokens == mine.stats.prompt_tokens
                told: Any = found.model_extra
                assert told["dflash"]["mode"] == mode
                assert told["timings"]["draft_n"] == mine.stats.drafted or mode == "auto"


def test_streams_add_up(client: openai.OpenAI, pair: Pair) -> None:
    stream = client.chat.completions.create(
        model="m", messages=[USER], max_tokens=40, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    mine = alone(pair, max_tokens=40)
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == mine.text
    assert sum(bool(text) for text in texts) > 2
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == mine.finish_reason
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(mine.tokens)
    assert {c.id for c in chunks} == {chunks[0].id}


def test_choices_follow_one_another_in_seeds(client: openai.OpenAI, pair: Pair) -> None:
    found = ask(client, n=3, seed=7, temperature=1.3, max_tokens=30)
    assert found.usage is not None
    assert found.usage.prompt_tokens == alone(pair, max_tokens=1).stats.prompt_tokens
    for number, choice in enumerate(found.choices):
        sampling = {"seed": 7 + number, "temperature": 1.3}
        assert choice.message.content == alone(pair, max_tokens=30, sampling=sampling).text
        assert choice.index == number
    stream = client.chat.completions.create(
        model="m", messages=[USER], n=3, seed=7, temperature=1.3, max_tokens=30, stream=True
    )
    texts = ["", "", ""]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in found.choices]


def test_logprobs(client: openai.OpenAI, pair: Pair) -> None:
    found = ask(client, logprobs=True, top_logprobs=3, max_tokens=20)
    mine = [
        one
        for block in api.stream(pair, QUESTION, max_tokens=20, logprobs=3)
        for one in block.logprobs
    ]
    assert found.choices[0].logprobs is not None
    told = found.choices[0].logprobs.content
    assert told is not None
    assert [one.logprob for one in told] == pytest.approx([m.logprob for m in mine], abs=1e-4)
    assert [len(one.top_logprobs) for one in told] == [3] * len(mine)
    decode = pair.tokenizer.decode
    assert [one.token for one in told] == [decode([m.token]) for m in mine]
    assert (
        bytes(b for one in told for b in one.bytes or ())
        .decode()
        .startswith(found.choices[0].message.content or "?")
    )


def test_options_reach_the_engine(client: openai.OpenAI, pair: Pair) -> None:
    usual = alone(pair, max_tokens=40)
    banned = usual.tokens[2]
    found = ask(client, logit_bias={str(banned): -100}, max_tokens=40)
    bias = {"logit_bias": ((banned, -100.0),)}
    assert found.choices[0].message.content == alone(pair, sampling=bias, max_tokens=40).text
    assert found.choices[0].message.content != usual.text
    found = ask(client, stop=["plus"], max_completion_tokens=40)
    assert found.choices[0].message.content == usual.text.partition("plus")[0]
    assert found.choices[0].finish_reason == "stop"
    found = ask(client, frequency_penalty=1.5, presence_penalty=0.5, max_tokens=40)
    penalties = {"frequency_penalty": 1.5, "presence_penalty": 0.5}
    assert found.choices[0].message.content == alone(pair, sampling=penalties, max_tokens=40).text
    more = {"top_k": 5, "min_p": 0.02, "repetition_penalty": 1.2}
    found = ask(client, temperature=0.9, seed=1, max_tokens=40, extra_body=more)
    sampling = {"temperature": 0.9, "seed": 1, **more}
    assert found.choices[0].message.content == alone(pair, sampling=sampling, max_tokens=40).text


def test_text_completions(client: openai.OpenAI, pair: Pair) -> None:
    mine = alone(pair, "The sky is", raw=True, max_tokens=24)
    text = mine.thinking + mine.text
    found = client.completions.create(model="m", prompt="The sky is", max_tokens=24, logprobs=2)
    assert text in found.choices[0].text
    assert found.choices[0].logprobs is not None
    assert len(found.choices[0].logprobs.tokens or ()) == len(mine.tokens)
    ids = pair.tokenizer.encode("The sky is")
    by_ids = client.completions.create(model="m", prompt=ids, max_tokens=24)
    assert by_ids.choices[0].text == found.choices[0].text
    stream = client.completions.create(model="m", prompt=[ids], max_tokens=24, stream=True)
    assert "".join(c.choices[0].text for c in stream if c.choices) == found.choices[0].text


def test_conversations_and_roles(client: openai.OpenAI, pair: Pair) -> None:
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Use words."}]},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": "19", "reasoning_content": "12 + 7"},
        {"role": "user", "content": "And 2 plus 2?"},
    ]
    found = client.chat.completions.create(model="m", messages=messages, max_tokens=20)
    mine = alone(
        pair,
        [
            {"role": "system", "content": "Be brief.\n\nUse words."},
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": "19", "reasoning_content": "12 + 7"},
            {"role": "user", "content": "And 2 plus 2?"},
        ],
        max_tokens=20,
    )
    assert found.choices[0].message.content == mine.text


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").owned_by == "dflash"
    with pytest.raises(openai.NotFoundError, match=r"'gpt-5' is not served .*--alias 'gpt-5'"):
        client.models.retrieve("gpt-5")


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 99}, "n"),
    ({"stop": [""]}, "stop"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logit_bias": {"one": 1}}, "logit_bias"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"modalities": ["audio"]}, "modalities"),
    *(({name: "root ::= x"}, name) for name in ("grammar", "guided_json", "json_schema")),
    ({"structured_outputs": {"regex": "("}}, "regex"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}}, "schema"),
    ({"response_format": {"type": "json_object", "schema": {"type": "odd"}}}, "schema"),
    ({"format": "json"}, "format"),
    ({"system": "Be brief."}, "system"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"bad_words": [" "]}, "bad_words"),
    ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
    ({"xtc_threshold": 0.6}, "xtc_threshold"),
    ({"temperature": 1e-40}, "temperature"),
    ({"top_p": 1e-40}, "top_p"),
    ({"logit_bias": {"5": 1e39}}, "logit_bias"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_json": {"$ref": "#"}}, "schema"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {}}, "tool_choice"),
    (
        {"tool_choice": "named", "tools": [{"type": "function", "function": {"name": "f"}}]},
        "tool_choice",
    ),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "robot", "content": "?"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content.0",
    ),
    ({"messages": [{"role": "user", "content": "word " * 8000}]}, "messages"),
)


@pytest.mark.parametrize(
    ("wrong", "param"), WRONG, ids=[f"{p}-{n}" for n, (_, p) in enumerate(WRONG)]
)
def test_what_is_wrong_is_named(
    client: openai.OpenAI, served: Served, wrong: dict[str, Any], param: str
) -> None:
    body = {"model": "m", "messages": [USER], **wrong}
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body=body, cast_to=object)
    error: Any = caught.value.body
    assert param.split(".")[0] in f"{error['param']} {error['message']}"
    assert error["type"] == "invalid_request_error"
    assert served.busy == 0


def test_a_model_without_tools_says_what_to_do() -> None:
    tools: Any = [{"type": "function", "function": {"name": "f"}}]
    way_out = r"does not call tools\. \(Leave tools out, or serve a model"
    with serving(tiny.golden_pair("qwen3_full")) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        with pytest.raises(openai.BadRequestError, match=way_out):
            client.chat.completions.create(model="m", messages=[USER], tools=tools)


def test_a_client_that_leaves_stops_its_answer(client: openai.OpenAI, served: Served) -> None:
    before = len(served.lines)
    stream = client.chat.completions.create(
        model="m", messages=[USER], max_tokens=1500, stream=True, logit_bias=endless(served)
    )
    for number, _ in enumerate(stream):
        if number == 3:
            break
    assert served.busy == 1
    stream.close()
    served.wait_until_idle()
    assert served.wait_for_answer(before)["generated"] < 1500


def test_the_answer_of_a_client_that_leaves_is_cached(
    client: openai.OpenAI, served: Served
) -> None:
    """Its reply is closed, which adds what was generated to the prefix cache."""
    prompt = "The numbers are one, two, three, four"
    stream = client.completions.create(
        model="m", prompt=prompt, max_tokens=1500, stream=True, logit_bias=endless(served)
    )
    text = ""
    for number, chunk in enumerate(stream):
        text += chunk.choices[0].text
        if number == 8:
            break
    stream.close()
    served.wait_until_idle()
    longer = client.completions.create(model="m", prompt=prompt + text, max_tokens=1)
    assert longer.usage is not None
    assert longer.usage.prompt_tokens_details is not None
    cached = longer.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert cached > len(served.server.first.pair.encode(prompt)) + 3


def test_a_client_that_does_not_wait(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.4).chat.completions.create(
            model="m", messages=[USER], max_tokens=1900, logit_bias=endless(served)
        )
    served.wait_until_idle()


def endless(served: Served) -> dict[str, int]:
    """A bias against every stop token: answers go on to their end."""
    return {str(token): -100 for token in served.server.first.pair.target.eos_ids}
