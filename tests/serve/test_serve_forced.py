"""Calls that a client forces, by OpenAI's and Anthropic's clients: of whatever the model says."""

import asyncio
import json
from typing import Any

import anthropic
import messages_api
import openai
import pytest
import responses_api
import templates
from call_families import tokenizer_of
from scripted_server import HI, TEMPLATE, pair_saying, server_of

from dflash_mlx.chat.tool_parser import numbered_calls
from dflash_mlx.serve.app import Server

NUMBERS = {
    "type": "object",
    "properties": {"a": {"enum": [1, 5]}},
    "required": ["a"],
    "additionalProperties": False,
}
ADD = {"name": "add", "description": "a sum", "parameters": NUMBERS}
MUL = {"name": "mul", "description": "a product", "parameters": NUMBERS}
TOLD: Any = [{"type": "function", "function": one} for one in (ADD, MUL)]
CALL = '<tool_call>\n{"name": "mul", "arguments": {"a": 5}}\n</tool_call>'
FILL = "x" * 300  # a text that goes on, where the grammar ends it
Calls = list[tuple[str, dict[str, Any]]]


def server_saying(said: str, tokenizer: Any = None) -> Server:
    """A server whose model says one text, of the two tools."""
    return server_of(pair_saying(said, HI, tokenizer, strict=False, tools=TOLD))


def chat(server: Server, *, streamed: bool = False, **asked: Any) -> Any:
    body: Any = {"model": "tiny", "messages": HI, "tools": TOLD, **asked}

    async def read() -> Any:
        completions = responses_api.client_of(server).chat.completions
        if not streamed:
            return await completions.create(**body)
        async with completions.stream(**body) as stream:
            return await stream.get_final_completion()

    return asyncio.run(read()).choices[0]


def chat_calls(server: Server, name: str | None, *, streamed: bool, one: bool) -> Calls:
    """The calls of an answer of the chat API; any tool's without a name."""
    choice: Any = {"type": "function", "function": {"name": name}} if name else "required"
    found = chat(server, streamed=streamed, tool_choice=choice, parallel_tool_calls=not one)
    assert found.finish_reason == "tool_calls"
    assert found.message.reasoning_content == "hm"
    assert not found.message.content
    calls = [call.function for call in found.message.tool_calls]
    return [(call.name, json.loads(call.arguments)) for call in calls]


def responses_calls(server: Server, name: str | None, *, streamed: bool, one: bool) -> Calls:
    choice: Any = {"type": "function", "name": name} if name else "required"
    ask = responses_api.ask_streamed if streamed else responses_api.ask
    tools: Any = [{"type": "function", **tool["function"]} for tool in TOLD]
    found = ask(server, tools=tools, tool_choice=choice, parallel_tool_calls=not one)
    assert found.status == "completed"
    thought, *calls = found.output
    assert thought.content[0].text == "hm"
    return [(call.name, json.loads(call.arguments)) for call in calls]


def messages_calls(server: Server, name: str | None, *, streamed: bool, one: bool) -> Calls:
    choice: Any = {"type": "tool", "name": name} if name else {"type": "any"}
    ask = messages_api.ask_streamed if streamed else messages_api.ask
    tools = [
        {"name": tool["name"], "description": tool["description"], "input_schema": NUMBERS}
        for tool in (ADD, MUL)
    ]
    found = ask(server, tools=tools, tool_choice={**choice, "disable_parallel_tool_use": one})
    assert found.stop_reason == "tool_use"
    thought, *calls = found.content
    assert thought.thinking == "hm"
    return [(call.name, call.input) for call in calls]


every_api = pytest.mark.parametrize("api", [chat_calls, responses_calls, messages_calls])


@every_api
def test_a_named_tool(api: Any) -> None:
    """A model that calls `mul` is held to `add`, whole and streamed, after its own thinking."""
    server = server_saying(f"<think>hm</think>\n{CALL}{FILL}")
    for streamed in (False, True):
        assert api(server, "add", streamed=streamed, one=False) == [("add", {"a": 5})]
        assert api(server, "mul", streamed=streamed, one=False) == [("mul", {"a": 5})]


@every_api
def test_any_tool(api: Any) -> None:
    """A text becomes a call; several calls stay several, unless one at most is asked for."""
    text = server_saying(f"<think>hm</think>I would say: {FILL}")
    ((name, arguments),) = api(text, None, streamed=False, one=True)
    assert name in ("add", "mul")
    assert arguments["a"] in (1, 5)
    calls = server_saying(f"<think>hm</think>{CALL}\n{CALL}")
    for one in (False, True):
        found = api(calls, None, streamed=True, one=one)
        assert found == [("mul", {"a": 5})] * (1 if one else 2)


def test_a_form_of_the_answer_beside_tools() -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
    told = server_saying('<think>hm</think>{"ok": true}')
    assert chat(told, response_format=form).message.content == '{"ok": true}'
    called = server_saying(f"<think>hm</think>{CALL}")
    assert chat(called, response_format=form).message.tool_calls[0].function.name == "mul"


THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
HARMONY_CALL = '<|channel|>commentary to=functions.mul <|constrain|>json<|message|>{"a": 5}'


def test_calls_of_gpt_oss() -> None:
    """A call's mark ends the answer; a forced one comes behind the analysis."""
    for said in (
        f"{THOUGHT}{HARMONY_CALL}<|call|>never",
        f'{THOUGHT} to=functions.mul<|channel|>commentary json<|message|>{{"a": 5}}<|call|>never',
    ):
        tokenizer = templates.tokenizer_of("gpt_oss")
        server = server_saying(said, tokenizer)
        for streamed in (False, True):
            found = chat(server, streamed=streamed)
            assert found.finish_reason == "tool_calls"
            assert found.message.reasoning_content == "hm"
            assert not found.message.content
            (call,) = found.message.tool_calls
            assert (call.function.name, call.function.arguments) == ("mul", '{"a": 5}')
            for asked in ("add", None):
                ((name, arguments),) = chat_calls(server, asked, streamed=streamed, one=True)
                assert name == (asked or "mul")
                assert arguments["a"] in (1, 5)
        most = len(tokenizer.encode(said[: said.index(": 5")], add_special_tokens=False))
        cut = chat(server, max_tokens=most)
        assert cut.finish_reason == "length"
        assert cut.message.tool_calls[0].function.arguments == '{"a"'


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"tool_choice": "required", "tools": []}, "tool_choice needs tools"),
        ({"tool_choice": "always"}, "tool_choice must be"),
        ({"tool_choice": {"type": "function"}}, "tool_choice must be"),
        ({"tool_choice": {"type": "function", "function": {"name": "div"}}}, "'div'"),
    ],
)
def test_choices_that_cannot_be(body: dict[str, Any], named: str) -> None:
    server = server_saying("no")
    with pytest.raises(openai.BadRequestError, match=named):
        chat(server, **body)


def test_families_that_cannot_be_forced_are_named() -> None:
    """Also where a form of the answer needs a grammar beside the tools."""
    tokenizer = tokenizer_of("muse_spark", TEMPLATE)
    server = server_saying("no", tokenizer)
    with pytest.raises(openai.BadRequestError, match=r"tool_choice.*muse_spark"):
        chat(server, tool_choice="required")
    with pytest.raises(anthropic.BadRequestError, match=r"tool_choice.*muse_spark"):
        messages_calls(server, "add", streamed=False, one=False)
    with pytest.raises(openai.BadRequestError, match=r"response_format beside tools.*muse_spark"):
        chat(server, response_format={"type": "json_object"})


def test_calls_have_the_names_that_kimi_knows() -> None:
    """Its template writes a call's id, and no other name."""
    ids = ("c1", "c2")
    calls = [{"id": one, "function": {"name": "mul", "arguments": {}}} for one in ids]
    found = numbered_calls(
        [{"role": "assistant", "content": "", "tool_calls": calls[:1]},
         {"role": "tool", "tool_call_id": "c1", "content": "1"},
         {"role": "assistant", "content": "", "tool_calls": calls[1:]},
         {"role": "tool", "tool_call_id": "c2", "content": "2"}]
    )  # fmt: skip
    assert [one["tool_calls"][0]["id"] for one in found[::2]] == [
        "functions.mul:0",
        "functions.mul:1",
    ]
    assert [one["tool_call_id"] for one in found[1::2]] == ["functions.mul:0", "functions.mul:1"]
