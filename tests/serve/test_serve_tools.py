"""Thinking and calls of tools, as OpenAI's client reads them: from a target that says one text."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from responses_api import client_of
from scripted_server import CALL, HI, TOLD, events_of, pair_saying, server_of

from dflash_mlx.serve.app import Server
from dflash_mlx.serve.runner import Runner

ARGUMENTS = {"a": 1, "b": [2, "}"]}


def whole(server: Server, **asked: Any) -> Any:
    body = {"model": "tiny", "messages": HI, **asked}
    return asyncio.run(client_of(server).chat.completions.create(**body)).choices[0]


def both(said: str, **tools: Any) -> tuple[Any, Any, list[Any]]:
    """The choice of a whole answer, that of a stream put together, and the stream's chunks."""
    server = server_of(pair_saying(said, HI, **tools))

    async def read() -> tuple[Any, list[Any]]:
        body: Any = {"model": "tiny", "messages": HI, **tools}
        async with client_of(server).chat.completions.stream(**body) as stream:
            chunks = [event.chunk async for event in stream if event.type == "chunk"]
            return await stream.get_final_completion(), chunks

    streamed, chunks = asyncio.run(read())
    return whole(server, **tools), streamed.choices[0], chunks


def test_thinking_is_apart_by_both_names() -> None:
    one, streamed, chunks = both("<think>why</think>\n\nyes")
    for message in (one.message, streamed.message):
        assert message.content == "yes"
        assert message.model_extra["reasoning_content"] == "why"
        assert message.model_extra["reasoning"] == "why"
    assert one.finish_reason == streamed.finish_reason == "stop"
    assert not any("yes" in str(c) and "why" in str(c) for c in chunks)


def test_a_client_that_reads_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events count what was sent before them, although both answers have ended by then."""
    answer = Runner.answer

    async def late(runner: Runner, request: Any, choices: Any) -> AsyncGenerator[Any]:
        async with aclosing(answer(runner, request, choices)) as events:
            async for event in events:
                while not all(choice.answer.finish_reason for choice in choices):
                    await asyncio.sleep(0.01)
                yield event

    monkeypatch.setattr(Runner, "answer", late)
    server = server_of(pair_saying(f"{CALL}\n{CALL}", HI, tools=TOLD))
    body = {"messages": HI, "tools": TOLD, "stream": True, "n": 2, "return_passes": True}
    found = asyncio.run(events_of(server, "/v1/chat/completions", body))
    chunks = [chunk for _, chunk in found if chunk != "[DONE]"]
    for index in (0, 1):
        told = [(one, c) for one in chunks for c in one["choices"] if c["index"] == index]
        calls = [call["index"] for _, c in told for call in c["delta"].get("tool_calls", [])]
        assert calls == [0, 1]
        passes = [one["dflash"]["pass"]["number"] for one, _ in told if "pass" in str(one)]
        assert passes == list(range(len(passes)))
    assert ["timings" in one for one in chunks].index(True) == len(chunks) - 1


def test_text_and_two_calls() -> None:
    """Each call comes as a whole."""
    other = CALL.replace("add", "sub")
    *choices, chunks = both(f"<think>hm</think>Well: {CALL}\n{other}", tools=TOLD)
    for choice in choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content.strip() == "Well:"
        calls = choice.message.tool_calls
        assert [call.function.name for call in calls] == ["add", "sub"]
        assert all(json.loads(call.function.arguments) == ARGUMENTS for call in calls)
        assert all(call.id.startswith("call_") for call in calls)
    pieces = [chunk.choices[0].delta.tool_calls for chunk in chunks if chunk.choices]
    (first,), (second,) = filter(None, pieces)
    assert (first.index, first.function.name) == (0, "add")
    assert (second.index, second.function.name) == (1, "sub")
    for call in (first, second):
        assert json.loads(call.function.arguments) == ARGUMENTS


BARE = CALL.removeprefix("<tool_call>").removesuffix("</tool_call>").strip()


@pytest.mark.parametrize("said", [BARE, f"```json\n{BARE}\n```", f"\n```\n{BARE}```"])
@pytest.mark.parametrize("after", ["", "\n\nI wait."])
def test_calls_without_their_tags(said: str, after: str) -> None:
    """As Qwen 2.5 Coder writes them, at the beginning of an answer; text may follow."""
    for choice in both(said + after, tools=TOLD)[:2]:
        assert (choice.message.content or "").strip() == after.strip()
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", ARGUMENTS)
        assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "said",
    [
        *(BARE.replace("add", "nobody"), f"So: {BARE}", "```json\n{}\n```"),
        *("<tool_call>{broken</tool_call>", "<tool_call>[1]</tool_call>"),
    ],
)
def test_what_is_no_call_stays_text(said: str) -> None:
    """JSON of no offered tool, after text, or of anything else."""
    for choice in both(said, tools=TOLD)[:2]:
        assert choice.message.content == said
        assert not choice.message.tool_calls
        assert choice.finish_reason == "stop"


def test_tools_that_are_not_to_be_called() -> None:
    found = whole(server_of(pair_saying(CALL, HI)), tools=TOLD, tool_choice="none")
    assert found.message.content == CALL
    assert found.finish_reason == "stop"


def test_results_go_back() -> None:
    """A call and its result are written by the template; arguments are an object there."""
    call = {"name": "add", "arguments": '{"a": 1}'}
    messages = [
        *HI,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    read = {"function": {"name": "add", "arguments": {"a": 1}}}
    told = [
        *HI,
        {"role": "assistant", "content": "", "tool_calls": [read]},
        {"role": "tool", "content": "rain"},
    ]
    server = server_of(pair_saying("wet", told, tools=TOLD))
    assert whole(server, messages=messages, tools=TOLD).message.content == "wet"
