"""Thinking and calls of tools, as OpenAI's client reads them: from a target that says one text."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import openai
import pytest
import tiny
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from mlx_lm.tool_parsers import json_tools, qwen3_coder
from scripted_pair import speaking
from serving import serving

from dflash_mlx.chat.tool_parser import make_tool_parser

TEMPLATE = (
    "{% if tools %}[tools]{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ASKED: Any = [{"role": "user", "content": "?"}]
CALL = '{"name": "weather", "arguments": {"city": "Br\\"no {1}", "days": [1, 2]}}'
ARGUMENTS = {"city": 'Br"no {1}', "days": [1, 2]}
XML = "\n<function=weather>\n<parameter=city>\nBrno\n</parameter>\n</function>\n"


def tokenizer(parser: ModuleType = json_tools) -> TokenizerWrapper:
    """One byte a token, and marks of thinking and of calls."""
    bare = tiny.byte_tokenizer(marks=MARKS, template=TEMPLATE)
    detokenizer: Any = BPEStreamingDetokenizer
    return TokenizerWrapper(
        bare._tokenizer,
        detokenizer,
        tool_call_start="<tool_call>",
        tool_call_end="</tool_call>",
        tool_parser=parser.parse_tool_call,
    )


@contextmanager
def client_of(
    said: str, tools: Sequence[Any] = (WEATHER,), parser: ModuleType = json_tools
) -> Iterator[openai.OpenAI]:
    """OpenAI's client of a server whose target says one text, whatever it is asked."""
    words = tokenizer(parser)
    shape = dict(tools=list(tools)) if tools else {}
    prompt = words.apply_chat_template(ASKED, add_generation_prompt=True, tokenize=False, **shape)
    pair = speaking(said, words, words.encode(prompt, add_special_tokens=False))
    assert pair.drafter is not None
    config: Any = pair.drafter.config
    config.num_layers = config.num_kv_heads = config.head_dim = 1
    with serving(pair) as served:
        yield openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)


def both(said: str, **options: Any) -> tuple[Any, Any, list[Any]]:
    """The message of a whole answer, that of a stream put together, and the stream's chunks."""
    tools = options.pop("tools", [WEATHER])
    parser = options.pop("parser", json_tools)
    with client_of(said, tools, parser) as client:
        asked: Any = {"model": "m", "messages": ASKED, **options}
        if tools:
            asked["tools"] = tools
        whole = client.chat.completions.create(**asked)
        with client.chat.completions.stream(**asked) as stream:
            chunks = [event.chunk for event in stream if event.type == "chunk"]
            try:
                streamed = stream.get_final_completion()
            except openai.LengthFinishReasonError as cut:
                streamed = cut.completion
    return whole.choices[0], streamed.choices[0], chunks


def test_thinking_is_apart_by_both_names() -> None:
    whole, streamed, chunks = both("<think>why</think>\n\nyes", tools=[])
    for one in (whole.message, streamed.message):
        assert one.content == "yes"
        assert one.model_extra["reasoning_content"] == "why"
        assert one.model_extra["reasoning"] == "why"
    assert whole.finish_reason == streamed.finish_reason == "stop"
    assert not any("yes" in str(c) and "why" in str(c) for c in chunks)


def test_a_call() -> None:
    whole, streamed, _ = both(f"<think>hm</think>\n<tool_call>\n{CALL}\n</tool_call>")
    for one in (whole, streamed):
        assert one.finish_reason == "tool_calls"
        (call,) = one.message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) == ARGUMENTS
        assert call.id.startswith("call_")
        assert not one.message.content


def test_a_call_comes_as_a_whole() -> None:
    other = CALL.replace("weather", "clock")
    said = f"<tool_call>{CALL}</tool_call>\n<tool_call>{other}</tool_call>"
    *_, chunks = both(said)
    pieces = [chunk.choices[0].delta.tool_calls for chunk in chunks if chunk.choices]
    (first,), (second,) = filter(None, pieces)
    assert (first.index, first.function.name) == (0, "weather")
    assert (second.index, second.function.name) == (1, "clock")
    for call in (first, second):
        assert json.loads(call.function.arguments) == ARGUMENTS


def test_text_and_two_calls() -> None:
    other = CALL.replace("weather", "clock")
    said = f"Well: <tool_call>{CALL}</tool_call>\n<tool_call>{other}</tool_call>"
    for one in both(said)[:2]:
        assert [call.function.name for call in one.message.tool_calls] == ["weather", "clock"]
        assert one.message.content.strip() == "Well:"


def test_calls_that_are_no_json() -> None:
    for one in both(f"<tool_call>{XML}</tool_call>", parser=qwen3_coder)[:2]:
        (call,) = one.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == (
            "weather",
            {"city": "Brno"},
        )


@pytest.mark.parametrize("said", ["<tool_call>{broken</tool_call>", "<tool_call>[1]</tool_call>"])
def test_what_is_no_call_stays_text(said: str) -> None:
    for one in both(said)[:2]:
        assert one.message.content == said
        assert not one.message.tool_calls
        assert one.finish_reason == "stop"


def test_a_call_that_is_cut_is_not_dropped() -> None:
    """As soon as it has a name it is a call with the arguments that came; before, it is told."""
    said = f"<tool_call>{XML}</tool_call>"
    whole, streamed, _ = both(said, parser=qwen3_coder, max_tokens=19)
    for one in (whole, streamed):
        assert one.finish_reason == "length"
        assert not one.message.content
        assert not one.message.tool_calls
    for call, parser, most, arguments in (
        (CALL, json_tools, 45, '{"city": "B'),
        (XML, qwen3_coder, 39, '{"city": "B'),
    ):
        whole, *_ = both(f"<tool_call>{call}</tool_call>", parser=parser, max_tokens=most)
        assert whole.finish_reason == "length"
        assert whole.message.tool_calls[0].function.arguments == arguments


def test_tools_that_are_not_to_be_called() -> None:
    said = f"<tool_call>{CALL}</tool_call>"
    with client_of(said, tools=()) as client:
        found = client.chat.completions.create(
            model="m",
            messages=ASKED,
            tools=[WEATHER],
            tool_choice="none",
        )
    assert found.choices[0].message.content == said
    assert found.choices[0].finish_reason == "stop"


def test_results_go_back() -> None:
    """A call and its result are written by the template; arguments are an object there."""
    messages: Any = [
        *ASKED,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Brno"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    words = tokenizer()
    wanted = '[tools]weather [user]?[assistant]<tool_call>{"city": "Brno"}</tool_call>[tool]rain[a]'
    pair = speaking("wet", words, words.encode(wanted, add_special_tokens=False))
    assert pair.drafter is not None
    config: Any = pair.drafter.config
    config.num_layers = config.num_kv_heads = config.head_dim = 1
    with serving(pair) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        found = client.chat.completions.create(
            model="m",
            messages=messages,
            tools=[WEATHER],
        )
    assert found.choices[0].message.content == "wet"
    assert found.usage is not None
    assert found.usage.prompt_tokens == len(words.encode(wanted, add_special_tokens=False))


@pytest.mark.parametrize("step", [1, 2, 5, 100])
@pytest.mark.parametrize("parser", [json_tools, qwen3_coder])
def test_pieces_do_not_matter(step: int, parser: ModuleType) -> None:
    """Text and calls are the same however the answer is cut."""
    call = CALL if parser is json_tools else XML
    said = f"a<b <tool_call>{call}</tool_call> c </tool <tool_call>x</tool_call> d <tool_"
    reader = make_tool_parser(tokenizer(parser), [WEATHER])
    assert reader is not None
    found = [reader.feed(said[n : n + step]) for n in range(0, len(said), step)]
    found.append(reader.feed("", final=True))
    text = "".join(one.text for one in found)
    assert text == "a<b  c </tool <tool_call>x</tool_call> d <tool_"
    (made,) = [call for one in found for call in one.calls]
    assert made.name == "weather"
    assert json.loads(made.arguments) == (ARGUMENTS if parser is json_tools else {"city": "Brno"})
