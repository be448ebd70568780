"""Half an emoji (a lone surrogate) in any text is U+FFFD; no request and no call fails by it."""

from typing import Any

import pytest
from every_api import TOOLS, body_of, reply_of
from scripted_server import HI, TOLD, bundled, pair_saying, server_of, tool_tokenizer

import dflash_mlx
from dflash_mlx.chat.call_json import json_object

HALF = "a\ud83d b"
WHOLE = "a\ufffd b"
WRITTEN = '{"a": "\\ud83d"}'  # JSON in a text


def called(arguments: Any) -> list[Any]:
    """A chat whose history has a call with these arguments."""
    function = {"name": "add", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": "1", "content": HALF}
    return [*HI, {"role": "assistant", "content": HALF, "tool_calls": [call]}, result]


ITEM = {"type": "function_call", "call_id": "1", "name": "add", "arguments": WRITTEN}
RESULT = {"type": "function_call_output", "call_id": "1", "output": HALF}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": HALF}], "stop": [HALF]}),
    ("/v1/chat/completions", {"messages": called(WRITTEN), "bad_words": [HALF]}),
    ("/v1/completions", {"prompt": HALF}),
    ("/v1/responses", {"input": HALF, "instructions": HALF, "metadata": {HALF: HALF}}),
    ("/v1/responses", {"input": [{"role": "user", "content": "hi"}, ITEM, RESULT]}),
    ("/v1/messages", {"system": HALF, "messages": HI}),
    ("/v1/messages/count_tokens", {"system": HALF, "messages": HI}),
    ("/api/chat", {"messages": called({"a": HALF}), "stream": False}),
    ("/api/generate", {"prompt": HALF, "raw": True, "stream": False}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_bodies_with_half_a_character(path: str, body: dict[str, Any]) -> None:
    name = {"/v1/responses": "max_output_tokens"}.get(path, "max_tokens")
    limit = {"num_predict": 2} if path.startswith("/api") else {name: 2}
    if path.endswith("count_tokens"):
        limit = {}
    reply = reply_of(server_of(bundled()), path, {"model": "tiny", **body, **limit})
    assert reply.status_code == 200, reply.text


def test_half_a_character_is_the_same_as_its_sign() -> None:
    """Escaped, or as the bytes that JavaScript and Java may write for it."""
    pair = bundled()
    counts = set()
    for text in (WHOLE.encode(), rb"a\ud83d b", b"a\xed\xa0\xbd b"):
        raw = b'{"model": "tiny", "messages": [{"role": "user", "content": "%s"}]}' % text
        reply = reply_of(server_of(pair), "/v1/messages/count_tokens", raw)
        counts.add(reply.json()["input_tokens"])
    assert len(counts) == 1
    assert pair.encode(HALF) == pair.encode(WHOLE)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_calls_with_half_a_character(path: str) -> None:
    """Models write such escapes, and no client can send the value on."""
    said = '<tool_call>\n{"name": "add", "arguments": {"a": "x\\ud83dy"}}\n</tool_call>'
    pair = pair_saying(said, HI, tool_tokenizer(), strict=False, tools=TOLD)
    reply = reply_of(server_of(pair), path, body_of(path, tools=TOOLS[path]))
    assert reply.status_code == 200, reply.text
    assert "x\ufffdy" in reply.text


def test_arguments_keep_whole_characters() -> None:
    assert json_object('{"a": "\\ud83d\\ude00"}') == '{"a": "😀"}'
    assert json_object('{"a": "\\ud83d"}') == '{"a": "\ufffd"}'
    assert json_object('{"a":1, "b": "\\u00e9"}') == '{"a":1, "b": "\\u00e9"}'  # as it is written


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        (HALF, {}),
        (HALF, {"raw": True}),
        ([{"role": "user", "content": [{"type": "text", "text": HALF}]}], {}),
        (called({"a": HALF}), {}),
        ("hi", {"bad_words": (HALF,), "stop": (HALF,)}),
    ],
)
def test_python(prompt: Any, options: dict[str, Any]) -> None:
    answer = dflash_mlx.generate(bundled(), prompt, max_tokens=2, **options)
    assert len(answer.tokens) == 2
