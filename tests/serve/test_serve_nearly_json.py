"""Calls whose JSON is wrong, in every API: a client can always go on with what it got."""

from typing import Any

import every_api
import pytest
from every_api import CHAT, PATHS, RESPONSES, TOOLS, body_of, reply_of
from scripted_server import HI, TOLD, bundled, pair_saying, server_of

SAID = '<tool_call>\n{"name": "add", "arguments": ARGUMENTS}\n</tool_call>'
MENDED = {'{"a": "1\n2"}': {"a": "1\n2"}, r'{"a": "\d"}': {"a": r"\d"}}
GUESSED = ('{"a": "say "hi""}', "[1]", '{"a": NaN}')


def ask(said: str, path: str) -> tuple[str, list[Any]]:
    """The text and the arguments of the calls that an API gives."""
    server = server_of(pair_saying(said, HI, tools=TOLD, strict=False))
    found = every_api.ask(server, path, tools=TOOLS[path])
    return found.text, found.arguments


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
        body = body_of(CHAT, [*HI, said, result], limit=2)
        assert reply_of(server_of(bundled()), CHAT, body).status_code == 200
        item = {"type": "function_call", "call_id": "c", "name": "add", "arguments": arguments}
        end = {"type": "function_call_output", "call_id": "c", "output": "3"}
        body = body_of(RESPONSES, [item, end], limit=2)
        assert reply_of(server_of(bundled()), RESPONSES, body).status_code == 200
