"""Messages of OpenAI's chat API in the form that chat templates read.

Developers are system messages, system messages at the beginning are one, thinking has one name,
and a call's arguments are an object. Does not know HTTP.
"""

import json
from typing import Any

from dflash_mlx.chat.messages import Messages

from .problem import Problem

ROLES = ("system", "developer", "user", "assistant", "tool")


def template_messages(messages: list[Any]) -> Messages:
    """The messages; Problem 400 names what is wrong with which."""
    if not messages:
        raise Problem(400, "messages is empty.", param="messages")
    found: Messages = []
    for number, message in enumerate(messages):
        place = f"messages.{number}"
        one = read_message(message, place)
        if one["role"] == "system" and found and all(m["role"] == "system" for m in found):
            found[0]["content"] += "\n\n" + one["content"]
        else:
            found.append(one)
    return found


def read_message(message: Any, place: str) -> dict[str, Any]:
    """One message."""
    if not isinstance(message, dict):
        raise Problem(400, f"{place} is not an object.", param=place)
    role = message.get("role")
    if role not in ROLES:
        raise Problem(400, f"{place}.role must be one of {', '.join(ROLES)}.", f"{place}.role")
    if role == "developer":
        role = "system"
    content = text_of(message.get("content"), f"{place}.content")
    calls = message.get("tool_calls") or []
    if content is None and role != "assistant":
        raise Problem(400, f"{place}.content is missing.", f"{place}.content")
    found: dict[str, Any] = {"role": role, "content": content or ""}
    if role == "assistant":
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str):
            found["reasoning_content"] = thought
        if calls:
            found["tool_calls"] = read_calls(calls, f"{place}.tool_calls")
            if isinstance(thought, str) and not content:
                found["thinking"] = thought  # gpt-oss's name; it refuses a text beside it
    for name in ("name", "tool_call_id"):
        if isinstance(message.get(name), str):
            found[name] = message[name]
    if role == "tool" and "tool_call_id" not in found:
        raise Problem(400, f"{place}.tool_call_id is missing.", f"{place}.tool_call_id")
    return found


def read_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    """An assistant's calls, their arguments as objects."""
    found = []
    for number, call in enumerate(calls if isinstance(calls, list) else [None]):
        call = call if isinstance(call, dict) else {}
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Problem(400, f"{place}.{number} is no call of a function.", place)
        arguments = function.get("arguments") or "{}"
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                raise Problem(
                    400, f"{place}.{number}.function.arguments is not JSON.", place
                ) from None
        found.append(
            {
                "type": "function",
                "id": str(call.get("id", "")),
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return found


def text_of(content: Any, place: str) -> str | None:
    """A content as text; None where there is none. Problem 400 for images and other parts."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Problem(400, f"{place} must be a text or a list of parts.", place)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise Problem(
                400,
                f"{place}.{number} is of the type '{kind!s:.40}': this server reads text only.",
                f"{place}.{number}",
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise Problem(400, f"{place}.{number} has no text.", f"{place}.{number}")
        texts.append(text)
    return "\n".join(texts)
