"""No thinking and no text of a call shows in an answer, whole and streamed, in each API."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from scripted_server import CALL, HI, TEMPLATE, TOLD, URL, pair_saying, server_of, transport
from scripted_server import tool_tokenizer as tokenizer_of

from dflash_mlx.serve.app import Server

ADD: Any = TOLD[0]["function"]
MESSAGES_TOOL = {
    "name": "add",
    "description": ADD["description"],
    "input_schema": ADD["parameters"],
}
TOOLS: dict[str, Any] = {
    "/v1/chat/completions": TOLD,
    "/v1/responses": [{"type": "function", **ADD}],
    "/v1/messages": [MESSAGES_TOOL],
    "/api/chat": TOLD,
}
OPENS = TEMPLATE.replace("[assistant]", "[assistant]<think>")
IN_CALL = "the answer ended inside"
# What the model says, and at how many tokens or which stop string it is cut.
CALL_CASES: dict[str, tuple[str, int | None, str | None]] = {
    "the length, in the tag's first line": ("Look.<tool_call>\n", 7, None),
    "the length, before the name": (f"Look.{CALL}", 20, None),
    "the length, in the arguments": (f"Look.{CALL}", 45, None),
    "the model, after the tag": ("Look.<tool_call>", None, None),
    "the model, in the arguments": (
        'Look.<tool_call>{"name": "add", "arguments": {"a"',
        None,
        None,
    ),
    "a stop string, in the tag": (f"Look.{CALL}", None, "tool_c"),
    "a stop string, before the name": (f"Look.{CALL}", None, "name"),
    "a stop string, in the arguments": (f"Look.{CALL}", None, '"b"'),
}


@dataclass
class Answer:
    """An answer of any API. reason: why it ended. incomplete: what the field `dflash` says."""

    text: str = ""
    thinking: str = ""
    calls: list[str] = field(default_factory=list)
    reason: str = ""
    incomplete: str = ""


def ask(server: Server, path: str, stream: bool, most: int | None, stop: str | None) -> Answer:
    """Ask with a tool; `most` tokens, or up to a stop string."""
    body: dict[str, Any] = {"model": "tiny", "stream": stream, "tools": TOOLS[path]}
    body["input" if path == "/v1/responses" else "messages"] = HI
    if path == "/api/chat":
        body["options"] = {"num_predict": most or 300, "stop": [stop] if stop else []}
    else:
        body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = most or 300
        body["stop_sequences" if path == "/v1/messages" else "stop"] = [stop] if stop else []
    text = asyncio.run(reply_of(server, path, body))
    if not stream:
        return READ[path](Answer(), [json.loads(text)])
    lines = text.splitlines() if path == "/api/chat" else text.split("data: ")[1:]
    found = [line.split("\n\n")[0] for line in lines]
    return STREAMS[path](Answer(), [json.loads(one) for one in found if one != "[DONE]"])


async def reply_of(server: Server, path: str, body: Any) -> str:
    async with transport(server) as client:
        reply = await client.post(URL + path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.text


def chat(answer: Answer, parts: list[Any]) -> Answer:
    """Chunks of a stream of chat completions, or one whole answer."""
    for part in parts:
        answer.incomplete = part.get("dflash", {}).get("incomplete", answer.incomplete)
        for choice in part["choices"]:
            piece = choice["delta"] if "delta" in choice else choice["message"]
            answer.text += piece.get("content") or ""
            answer.thinking += piece.get("reasoning_content") or ""
            names = [call["function"].get("name") for call in piece.get("tool_calls") or []]
            answer.calls += [name for name in names if name]
            answer.reason = choice["finish_reason"] or answer.reason
    return answer


def responses(answer: Answer, parts: list[Any]) -> Answer:
    """A whole response; a stream's last event has one. Its deltas must give the same text."""
    whole = parts[-1].get("response", parts[-1])
    kinds = {"message": "", "reasoning": ""}
    for item in whole["output"]:
        if item["type"] == "function_call":
            answer.calls.append(item["name"])
        else:
            kinds[item["type"]] += "".join(part["text"] for part in item["content"])
    answer.text, answer.thinking = kinds["message"], kinds["reasoning"]
    if len(parts) > 1:
        deltas = [one["delta"] for one in parts if one["type"] == "response.output_text.delta"]
        assert "".join(deltas) == answer.text
    answer.incomplete = whole["dflash"].get("incomplete", "")
    answer.reason = whole["status"]
    return answer


def messages(answer: Answer, parts: list[Any]) -> Answer:
    (whole,) = parts
    for block in whole["content"]:
        answer.text += block.get("text", "")
        answer.thinking += block.get("thinking", "")
        answer.calls += [block["name"]] if block["type"] == "tool_use" else []
    answer.reason = whole["stop_reason"]
    answer.incomplete = whole["dflash"].get("incomplete", "")
    return answer


def message_events(answer: Answer, parts: list[Any]) -> Answer:
    for part in parts:
        delta = part.get("delta", {})
        block = part.get("content_block", {})
        answer.text += delta.get("text", "")
        answer.thinking += delta.get("thinking", "")
        answer.calls += [block["name"]] if block.get("type") == "tool_use" else []
        answer.reason = delta.get("stop_reason", answer.reason)
        answer.incomplete = part.get("dflash", {}).get("incomplete", answer.incomplete)
    return answer


def ollama(answer: Answer, parts: list[Any]) -> Answer:
    """Lines of a stream, or one whole answer."""
    for part in parts:
        message = part["message"]
        answer.text += message["content"]
        answer.thinking += message.get("thinking", "")
        answer.calls += [call["function"]["name"] for call in message.get("tool_calls", [])]
        answer.reason = part.get("done_reason", "")
        answer.incomplete = part.get("dflash", {}).get("incomplete", "")
    return answer


READ = {
    "/v1/chat/completions": chat,
    "/v1/responses": responses,
    "/v1/messages": messages,
    "/api/chat": ollama,
}
STREAMS = {**READ, "/v1/messages": message_events}
CUT = {
    "/v1/chat/completions": "length",
    "/v1/responses": "incomplete",
    "/v1/messages": "max_tokens",
    "/api/chat": "length",
}
TOOL_REASONS = ("tool_calls", "tool_use")


@pytest.mark.parametrize("path", READ)
@pytest.mark.parametrize("case", CALL_CASES)
def test_an_answer_that_ends_inside_a_call(path: str, case: str) -> None:
    """Its text is what came before; it never claims that the call is complete."""
    said, most, stop = CALL_CASES[case]
    server = server_of(pair_saying(said, HI, tools=TOLD, strict=False))
    for stream in (False, True):
        found = ask(server, path, stream, most, stop)
        assert (found.text.strip(), found.thinking) == ("Look.", "")
        assert found.reason not in TOOL_REASONS
        assert (found.reason == CUT[path]) == (most is not None)
        assert found.incomplete.startswith(IN_CALL)
        begun = "arguments" in case and path != "/api/chat"  # Ollama's API knows whole calls only
        assert found.calls == (["add"] if begun else [])


@pytest.mark.parametrize("path", READ)
def test_a_stop_string_after_a_call(path: str) -> None:
    """The call counts, as older agents stop at its end tag."""
    server = server_of(pair_saying(f"Look.{CALL}", HI, tools=TOLD))
    for stream in (False, True):
        found = ask(server, path, stream, None, "</tool_call>")
        assert (found.text.strip(), found.calls, found.incomplete) == ("Look.", ["add"], "")
        assert found.reason in (*TOOL_REASONS, "completed", "stop")


THINKING_CASES: dict[str, tuple[str, str, int | None, str | None, str, str]] = {
    # Template, what the model says, its cut, the text and the thinking.
    "opened by the template": (OPENS, "hm</think>yes", None, None, "yes", "hm"),
    "opened by the template and by the model": (
        OPENS, "<think>hm</think>yes", None, None, "yes", "hm",
    ),
    "opened by the template, cut": (OPENS, "hm</think>yes", 2, None, "", "hm"),
    "opened by the template, ended there": (OPENS, "hm", None, None, "", "hm"),
    "cut at the tag": (TEMPLATE, "<think>hm</think>yes", 1, None, "", ""),
    "a stop string in the thinking": (TEMPLATE, "<think>a, b</think>yes", None, "b", "yes", "a, b"),
    "a stop string in the tag": (TEMPLATE, "<think>hm</think>yes", None, "think", "yes", "hm"),
    "a stop string beside the tag": (TEMPLATE, "<think>hm</think>\n\nyes", None, "\n", "", "hm"),
    "a tag too many": (TEMPLATE, "</think>yes", None, None, "yes", ""),
}  # fmt: skip


@pytest.mark.parametrize("path", READ)
@pytest.mark.parametrize("case", THINKING_CASES)
def test_thinking_with_odd_ends(path: str, case: str) -> None:
    template, said, most, stop, text, thinking = THINKING_CASES[case]
    pair = pair_saying(said, HI, tokenizer_of(template), tools=TOLD, strict=False)
    server = server_of(pair)
    for stream in (False, True):
        found = ask(server, path, stream, most, stop)
        assert (found.text.strip(), found.thinking, found.calls) == (text, thinking, [])
        assert not found.incomplete
