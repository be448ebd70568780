"""Calls whose JSON is wrong, in every API: a client can always go on with what it got."""

import asyncio
import json
from typing import Any

import pytest
from scripted_server import HI, TOLD, URL, bundled, pair_saying, server_of, transport

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")
SAID = '<tool_call>\n{"name": "add", "arguments": ARGUMENTS}\n</tool_call>'
MENDED = {'{"a": "1\n2"}': {"a": "1\n2"}, r'{"a": "\d"}': {"a": r"\d"}}
GUESSED = ('{"a": "say "hi""}', "[1]", '{"a": NaN}')


def post(server: Any, path: str, body: Any) -> Any:
    async def ask() -> Any:
        async with transport(server) as client:
            return await client.post(URL + path, json=body)

    return asyncio.run(ask())


def ask(said: str, path: str) -> tuple[str, list[Any]]:
    """The text and the arguments of the calls that an API gives."""
    function = TOLD[0]["function"]
    body: dict[str, Any] = {"model": "tiny", "messages": HI, "tools": TOLD, "stream": False}
    if path == "/v1/responses":
        body = {"model": "tiny", "input": "hi", "tools": [{"type": "function", **function}]}
    elif path == "/v1/messages":
        tool = {**function, "input_schema": function["parameters"]}
        tool.pop("parameters")
        body |= {"max_tokens": 200, "tools": [tool]}
    found = post(server_of(pair_saying(said, HI, tools=TOLD, strict=False)), path, body).json()
    if path == "/v1/responses":
        items = found["output"]
        calls = [json.loads(i["arguments"]) for i in items if i["type"] == "function_call"]
        texts = [part["text"] for i in items if i["type"] == "message" for part in i["content"]]
        return "".join(texts), calls
    if path == "/v1/messages":
        calls = [block["input"] for block in found["content"] if block["type"] == "tool_use"]
        return "".join(block.get("text", "") for block in found["content"]), calls
    message = found["message"] if path == "/api/chat" else found["choices"][0]["message"]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
    return message["content"] or "", [c if isinstance(c, dict) else json.loads(c) for c in calls]


@pytest.mark.parametrize("path", PATHS)
def test_arguments_are_an_object_or_text(path: str) -> None:
    for arguments, wanted in MENDED.items():
        assert ask(SAID.replace("ARGUMENTS", arguments), path) == ("", [wanted])
    for arguments in GUESSED:
        said = SAID.replace("ARGUMENTS", arguments)
        assert ask(said, path) == (said, [])


def test_a_history_with_nearly_json() -> None:
    """As another server may have given it."""
    for arguments in MENDED:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c", "content": "3"}
        body = {"model": "tiny", "messages": [*HI, said, result], "max_tokens": 2}
        assert post(server_of(bundled()), PATHS[0], body).status_code == 200
        item = {"type": "function_call", "call_id": "c", "name": "add", "arguments": arguments}
        end = {"type": "function_call_output", "call_id": "c", "output": "3"}
        asked = {"model": "tiny", "input": [item, end], "max_output_tokens": 2}
        assert post(server_of(bundled()), PATHS[1], asked).status_code == 200
