"""The messages of OpenAI's chat API in the form of chat templates."""

from typing import Any

from dflash_mlx.chat.call_json import read_arguments
from dflash_mlx.chat.messages import Messages

from .protocol import Problem

ROLES = ("system", "developer", "user", "assistant", "tool")


def template_messages(messages: list[Any]) -> Messages:
    """Raises Problem 400 that names the wrong message and field.

    System messages at the start become one, because many templates allow only one.
    """
    if not messages:
        raise Problem(400, "messages is empty.", param="messages")
    result: Messages = []
    for number, body_message in enumerate(messages):
        message = read_message(body_message, f"messages.{number}")
        is_system = message["role"] == "system"
        if is_system and result and all(earlier["role"] == "system" for earlier in result):
            result[0]["content"] += "\n\n" + message["content"]
        else:
            result.append(message)
    return result


def read_message(message: Any, place: str) -> dict[str, Any]:
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
    result: dict[str, Any] = {"role": role, "content": content or ""}
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str):
            result["reasoning_content"] = reasoning
        if calls:
            result["tool_calls"] = read_calls(calls, f"{place}.tool_calls")
            if isinstance(reasoning, str) and not content:
                result["thinking"] = reasoning  # gpt-oss's template refuses it beside content
    for name in ("name", "tool_call_id"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    if role == "tool" and "tool_call_id" not in result:
        raise Problem(400, f"{place}.tool_call_id is missing.", f"{place}.tool_call_id")
    return result


def read_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    """The calls of an assistant's message, with their arguments as objects."""
    result = []
    for number, call in enumerate(calls if isinstance(calls, list) else [None]):
        call = call if isinstance(call, dict) else {}
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Problem(400, f"{place}.{number} is no call of a function.", place)
        arguments = function.get("arguments") or "{}"
        if isinstance(arguments, str):
            try:
                arguments = read_arguments(arguments)
            except (ValueError, RecursionError):
                raise Problem(
                    400, f"{place}.{number}.function.arguments is not JSON.", place
                ) from None
        result.append(
            {
                "type": "function",
                "id": str(call.get("id", "")),
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return result


def text_of(content: Any, place: str) -> str | None:
    """A content as text; None without one. Raises Problem 400 for images and other parts."""
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
