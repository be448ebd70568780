"""Input items of OpenAI's responses API as messages of its chat API.

An assistant's reasoning, message and calls are items there and one message here. Does not know
HTTP.
"""

import json
from typing import Any

from .chat_messages import text_of
from .problem import Problem
from .responses_tools import Offers, text

ROLES = ("user", "assistant", "system", "developer")
# The order of an assistant's turn.
RANKS = ("reasoning_content", "content", "tool_calls")


def chat_messages(instructions: str | None, given: Any, offers: Offers) -> list[dict[str, Any]]:
    """The messages; Problem 400 names the item that is wrong or cannot be read."""
    history = History(offers)
    if instructions:
        history.messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not given:
        raise Problem(400, "input is empty.", "input")
    for number, item in enumerate(given):
        if not isinstance(item, dict):
            raise Problem(400, f"input.{number} is not an object.", f"input.{number}")
        history.add(item, f"input.{number}")
    return history.messages


class History:
    """Messages that grow by items."""

    def __init__(self, offers: Offers):
        self.messages: list[dict[str, Any]] = []
        self._offers = offers
        self._names: dict[str, str] = {}  # of calls by their ids

    def add(self, item: dict[str, Any], place: str) -> None:
        """Add one item."""
        kind = item.get("type") or "message"
        if kind == "message":
            self._message(item, place)
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            if thought := "\n".join(thoughts(parts, place)):
                self._assistant("reasoning_content", thought)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, place, is_text=kind == "custom_tool_call")
        elif kind in ("function_call_output", "custom_tool_call_output"):
            number = text(item, "call_id", place)
            name = {"name": self._names[number]} if number in self._names else {}
            output = text_of(item.get("output"), f"{place}.output") or ""
            message = {"role": "tool", "tool_call_id": number, **name, "content": output}
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
        number, name = text(item, "call_id", place), text(item, "name", place)
        if is_text:
            arguments: Any = {"input": text(item, "input", place)}
        else:
            try:
                arguments = json.loads(text(item, "arguments", place) or "{}")
            except (ValueError, RecursionError):
                place = f"{place}.arguments"
                raise Problem(400, f"{place} is not JSON.", place) from None
        key = (item.get("namespace"), name)
        told = [one.told for one in self._offers.all if (one.namespace, one.name) == key]
        self._names[number] = told[0] if told else name
        function = {"name": self._names[number], "arguments": arguments}
        call = {"id": number, "type": "function", "function": function}
        self._assistant("tool_calls", [call])

    def _assistant(self, field: str, value: Any) -> None:
        """Add to the assistant's turn; a new one begins where it would go back in its order."""
        last = self.messages[-1] if self.messages else {"role": ""}
        later = RANKS[RANKS.index(field) + 1 :]
        if last["role"] != "assistant" or any(last.get(name) for name in later):
            self.messages.append({"role": "assistant", field: value})
        elif isinstance(value, str) and last.get(field):
            last[field] += "\n" + value
        else:
            last[field] = last.get(field, type(value)()) + value


def thoughts(parts: Any, place: str) -> list[str]:
    """The texts of a reasoning item's content or summary."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise Problem(400, f"{place} must have lists of parts.", place)
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]
