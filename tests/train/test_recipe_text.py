"""The training text of the bundled pair: rules make it, so it must not have a single mistake."""

import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from later_turns import later_turns
from sample import Chat, is_held_out
from system_prompts import system_prompts
from text import a_chat, held_out, held_out_chats, questions, trains
from tool_chats import no_call, one_call, three_steps, tool_chat

JSON = {"string": str, "integer": int, "boolean": bool, "array": list, "number": int | float}


def said(chat: Chat) -> list[str]:
    answers = [message for message in chat.messages if message["role"] == "assistant"]
    return [f"{each.get('reasoning_content', '')}\n{each['content']}" for each in answers]


def mistakes(text: str) -> list[str]:
    wrong = []
    for a, sign, b, result in re.findall(r"(-?\d+) ([+-]) (\d+) = (-?\d+)", text):
        if (int(a) + int(b) if sign == "+" else int(a) - int(b)) != int(result):
            wrong.append(f"{a} {sign} {b} = {result}")
    for a, b, result in re.findall(r"(\d+) times (\d+) is (\d+)", text):
        if int(a) * int(b) != int(result):
            wrong.append(f"{a} times {b} is {result}")
    return wrong


def test_a_wrong_sum_is_found() -> None:
    assert mistakes("12 + 7 = 29. 6 times 7 is 41.") == ["12 + 7 = 29", "6 times 7 is 41"]


@pytest.mark.parametrize("make", [questions, later_turns, system_prompts])
def test_no_step_is_wrong(make: Callable[[Random], Chat]) -> None:
    """Each calculation that the model is taught to write holds."""
    rng = Random(4)
    for _ in range(600):
        chat = make(rng)
        for text in said(chat):
            assert not mistakes(text), chat


def fault(call: dict[str, Any], tools: dict[str, Any]) -> str:
    """What is wrong with a call; empty if it fits the schema of its tool."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if name not in tools:
        return f"no tool {name}"
    parameters = tools[name]["parameters"]
    if missing := set(parameters.get("required", ())) - set(arguments):
        return f"{name} lacks {missing}"
    for key, value in arguments.items():
        kind = parameters["properties"].get(key, {}).get("type")
        if kind is None or not isinstance(value, JSON[kind]):
            return f"{name}({key}={value!r}) is no {kind}"
    return ""


@pytest.mark.parametrize("make", [tool_chat, one_call, three_steps, no_call])
def test_calls_fit_their_tools(make: Callable[[Random], Chat]) -> None:
    """A call is of a tool that the chat has, with its arguments; results answer calls."""
    rng = Random(7)
    for _ in range(300):
        chat = make(rng)
        tools = {tool["function"]["name"]: tool["function"] for tool in chat.tools}
        assert len(tools) == len(chat.tools)
        for before, message in zip(chat.messages, chat.messages[1:], strict=False):
            for call in message.get("tool_calls", ()):
                assert not fault(call, tools), chat
            if message["role"] == "tool":
                assert message["tool_call_id"] == before["tool_calls"][0]["id"]


def test_nothing_held_out_is_trained() -> None:
    """Neither a chat that is measured nor a question that is."""
    rng = Random(8)
    for _ in range(500):
        chat = a_chat(rng)
        asked = [message["content"] for message in chat.messages if message["role"] == "user"]
        assert not chat.held_out
        assert not any(is_held_out(text) for text in asked)
    assert not any(trains(chat) for chat in held_out_chats(later_turns, 20))


@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_as_many_are_held_out_as_were_asked(count: int) -> None:
    """Guards counts that give some families no share: two once became 319."""
    assert len({sample.prompt for sample in held_out(count)}) == count
