"""Steps of an answer as messages that chat templates read."""

import json
from collections.abc import Iterable
from typing import Any

from dflash_mlx.chat.messages import Messages

from .call import Call, Step


def step_messages(steps: Iterable[Step], before: Messages) -> Messages:
    """What the steps said and called, and what came of it, behind the messages `before` them.

    A step without calls is the answer itself.
    """
    number = sum(len(message.get("tool_calls") or ()) for message in before)
    found: Messages = []
    for step in steps:
        said: dict[str, Any] = {"role": "assistant", "content": step.text}
        if step.thinking and step.calls:
            said["reasoning_content"] = step.thinking
            if not step.text:
                said["thinking"] = step.thinking  # gpt-oss's name; it refuses a text beside it
        found.append(said)
        results = []
        for call in step.calls:
            number += 1
            name = call_id(number)
            function = {"name": call.name, "arguments": arguments_of(call) or {}}
            calls = said.setdefault("tool_calls", [])
            calls.append({"type": "function", "id": name, "function": function})
            results.append(
                {
                    "role": "tool",
                    "name": call.name,
                    "tool_call_id": name,
                    "content": "not run" if call.state == "open" else call.result,
                }
            )
        found += results
    return found


def call_id(number: int) -> str:
    """The id of a conversation's call: nine letters and digits, as Mistral's templates want it."""
    return f"call{number:05d}"


def arguments_of(call: Call) -> dict[str, Any] | None:
    """A call's arguments; None where they are no JSON object."""
    try:
        found = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
