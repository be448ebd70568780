"""Requests for one answer to each API, and what came: whole, or put together from a stream."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import messages_api
import responses_api
from scripted_server import HI, TOLD, URL, transport

from dflash_mlx.serve.app import Server

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")
CHAT, RESPONSES, MESSAGES, OLLAMA = PATHS
LIMITS: dict[str, str] = {
    CHAT: "max_tokens",
    RESPONSES: "max_output_tokens",
    MESSAGES: "max_tokens",
}
TOOLS: dict[str, Any] = {
    CHAT: TOLD,
    RESPONSES: [responses_api.TOOL],
    MESSAGES: [messages_api.TOOL],
    OLLAMA: TOLD,
}


@dataclass
class Answer:
    """An answer of any API. calls: names; arguments: of a whole answer's calls, as they came.

    reason: why it ended, in the API's word. incomplete: what the field `dflash` says.
    """

    text: str = ""
    thinking: str = ""
    calls: list[str] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    reason: str = ""
    incomplete: str = ""
    tokens: int = 0
    prompt_tokens: int = 0


def reply_of(server: Server, path: str, body: Any, **headers: str) -> Any:
    """The reply to a body, which may be the bytes of one; with these headers, too."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def ask() -> Any:
        async with transport(server) as client:
            sent = {"content-type": "application/json", **headers}
            return await client.post(URL + path, content=raw, headers=sent)

    return asyncio.run(ask())


def body_of(
    path: str, messages: Any = HI, *, limit: int = 300, stop: str | None = None, **more: Any
) -> dict[str, Any]:
    body = {
        "model": "tiny",
        "stream": False,
        "input" if path == RESPONSES else "messages": messages,
    }
    strings = [stop] if stop else []
    if path == OLLAMA:
        return {**body, "options": {"num_predict": limit, "stop": strings}, **more}
    stops = "stop_sequences" if path == MESSAGES else "stop"
    return {**body, LIMITS[path]: limit, stops: strings, **more}


def ask(server: Server, path: str, messages: Any = HI, **options: Any) -> Answer:
    """The answer to a request with the options of `body_of`."""
    body = body_of(path, messages, **options)
    reply = reply_of(server, path, body)
    assert reply.status_code == 200, reply.text
    if not body["stream"]:
        return READ[path](Answer(), [reply.json()])
    lines = reply.text.splitlines()
    if path != OLLAMA:
        lines = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    parts = [json.loads(line) for line in lines if line != "[DONE]"]
    return (message_events if path == MESSAGES else READ[path])(Answer(), parts)


def chat(answer: Answer, parts: list[Any]) -> Answer:
    for part in parts:
        answer.incomplete = part.get("dflash", {}).get("incomplete", answer.incomplete)
        for choice in part["choices"]:
            piece = choice["delta"] if "delta" in choice else choice["message"]
            answer.text += piece.get("content") or ""
            answer.thinking += piece.get("reasoning_content") or ""
            functions = [call["function"] for call in piece.get("tool_calls") or []]
            answer.calls += [one["name"] for one in functions]
            answer.arguments += [json_or_text(one["arguments"]) for one in functions]
            answer.reason = choice["finish_reason"] or answer.reason
        if usage := part.get("usage"):
            answer.tokens, answer.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
    return answer


def responses(answer: Answer, parts: list[Any]) -> Answer:
    """A whole response; a stream's last event has one. Its deltas must give the same text."""
    whole = parts[-1].get("response", parts[-1])
    kinds = {"message": "", "reasoning": ""}
    for item in whole["output"]:
        if item["type"] == "function_call":
            answer.calls.append(item["name"])
            answer.arguments.append(json_or_text(item["arguments"]))
        else:
            kinds[item["type"]] += "".join(part["text"] for part in item["content"])
    answer.text, answer.thinking = kinds["message"], kinds["reasoning"]
    if len(parts) > 1:
        deltas = [one["delta"] for one in parts if one["type"] == "response.output_text.delta"]
        assert "".join(deltas) == answer.text
    answer.incomplete = whole["dflash"].get("incomplete", "")
    answer.reason = whole["status"]
    usage = whole["usage"]
    answer.tokens, answer.prompt_tokens = usage["output_tokens"], usage["input_tokens"]
    return answer


def messages(answer: Answer, parts: list[Any]) -> Answer:
    (whole,) = parts
    for block in whole["content"]:
        answer.text += block.get("text", "")
        answer.thinking += block.get("thinking", "")
        if block["type"] == "tool_use":
            answer.calls.append(block["name"])
            answer.arguments.append(block["input"])
    return ended(answer, whole)


def message_events(answer: Answer, parts: list[Any]) -> Answer:
    for part in parts:
        delta = part.get("delta", {})
        block = part.get("content_block", {})
        answer.text += delta.get("text", "")
        answer.thinking += delta.get("thinking", "")
        answer.calls += [block["name"]] if block.get("type") == "tool_use" else []
    return ended(answer, parts[-2] | parts[-2]["delta"])


def ended(answer: Answer, last: Any) -> Answer:
    answer.reason = last["stop_reason"]
    answer.incomplete = last["dflash"].get("incomplete", "")
    usage = last["usage"]
    answer.tokens = usage["output_tokens"]
    answer.prompt_tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return answer


def ollama(answer: Answer, parts: list[Any]) -> Answer:
    for part in parts:
        message = part["message"]
        answer.text += message["content"]
        answer.thinking += message.get("thinking", "")
        functions = [call["function"] for call in message.get("tool_calls", [])]
        answer.calls += [one["name"] for one in functions]
        answer.arguments += [one["arguments"] for one in functions]
    last = parts[-1]
    answer.reason = last["done_reason"]
    answer.incomplete = last["dflash"].get("incomplete", "")
    answer.tokens, answer.prompt_tokens = last["eval_count"], last["prompt_eval_count"]
    return answer


def json_or_text(arguments: str) -> Any:
    """Arguments of a call; those that are cut stay a text."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


READ: dict[str, Any] = {CHAT: chat, RESPONSES: responses, MESSAGES: messages, OLLAMA: ollama}
