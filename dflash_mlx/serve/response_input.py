"""The input items of OpenAI's responses API as messages of its chat API."""

from typing import Any

from dflash_mlx.chat.call_json import read_arguments

from .chat_messages import text_of
from .protocol import Problem
from .response_tools import ClientTools, text

ROLES = ("user", "assistant", "system", "developer")
# The order of the fields in an assistant's turn
TURN_FIELDS = ("reasoning_content", "content", "tool_calls")


def chat_messages(
    instructions: str | None, body_input: Any, tools: ClientTools
) -> list[dict[str, Any]]:
    """Raises Problem 400 that names the item that is wrong or not supported."""
    history = History(tools)
    if instructions:
        history.messages.append({"role": "system", "content": instructions})
    if isinstance(body_input, str):
        body_input = [{"role": "user", "content": body_input}]
    if not body_input:
        raise Problem(400, "input is empty.", "input")
    for number, item in enumerate(body_input):
        if not isinstance(item, dict):
            raise Problem(400, f"input.{number} is not an object.", f"input.{number}")
        history.add(item, f"input.{number}")
    return history.messages


class History:
    def __init__(self, tools: ClientTools):
        self.messages: list[dict[str, Any]] = []
        self._tools = tools
        self._names: dict[str, str] = {}  # of tools, by call id

    def add(self, item: dict[str, Any], place: str) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            self._message(item, place)
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            if reasoning := "\n".join(reasoning_texts(parts, place)):
                self._assistant("reasoning_content", reasoning)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, place, is_text=kind == "custom_tool_call")
        elif kind in ("function_call_output", "custom_tool_call_output"):
            call_id = text(item, "call_id", place)
            name = {"name": self._names[call_id]} if call_id in self._names else {}
            output = text_of(item.get("output"), f"{place}.output") or ""
            message = {"role": "tool", "tool_call_id": call_id, **name, "content": output}
            self.messages.append(message)
        else:
            why = "nothing is kept here" if kind == "item_reference" else "it cannot be read"
            raise Problem(400, f"{place} is of the type '{kind!s:.40}': {why}.", place)

    def _message(self, item: dict[str, Any], place: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise Problem(400, f"{place}.role must be one of {', '.join(ROLES)}.", f"{place}.role")
        content = text_of(item.get("content"), f"{place}.content")
        if content is None:
            raise Problem(400, f"{place}.content is missing.", f"{place}.content")
        if role == "assistant":
            self._assistant("content", content)
        else:
            self.messages.append({"role": role, "content": content})

    def _call(self, item: dict[str, Any], place: str, *, is_text: bool) -> None:
        call_id = text(item, "call_id", place)
        name = text(item, "name", place)
        if is_text:
            arguments: Any = {"input": text(item, "input", place)}
        else:
            try:
                arguments = read_arguments(text(item, "arguments", place) or "{}")
            except (ValueError, RecursionError):
                place = f"{place}.arguments"
                raise Problem(400, f"{place} is not JSON.", place) from None
        key = (item.get("namespace"), name)
        model_names = [
            tool.model_name for tool in self._tools.all if (tool.namespace, tool.name) == key
        ]
        self._names[call_id] = model_names[0] if model_names else name
        function = {"name": self._names[call_id], "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._assistant("tool_calls", [call])

    def _assistant(self, field: str, value: Any) -> None:
        """Add to the assistant's turn, or begin a new one if a later field is already there."""
        last = self.messages[-1] if self.messages else {"role": ""}
        later = TURN_FIELDS[TURN_FIELDS.index(field) + 1 :]
        if last["role"] != "assistant" or any(last.get(name) for name in later):
            self.messages.append({"role": "assistant", field: value})
        elif isinstance(value, str) and last.get(field):
            last[field] += "\n" + value
        else:
            last[field] = last.get(field, type(value)()) + value


def reasoning_texts(parts: Any, place: str) -> list[str]:
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise Problem(400, f"{place} must have lists of parts.", place)
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]
