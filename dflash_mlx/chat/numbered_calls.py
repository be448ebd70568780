"""Names of calls in messages, where a family's template writes what a call is named."""

from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .call_formats import call_format
from .messages import Messages


def named_calls(messages: Messages, tokenizer: TokenizerWrapper) -> Messages:
    """The messages with the names of calls that this tokenizer's model gave them."""
    form = call_format(tokenizer)
    return numbered_calls(messages) if form and form.name == "kimi_k2" else messages


def numbered_calls(messages: Messages) -> Messages:
    """The messages with calls named functions.NAME:N in place of their ids, as Kimi's template has
    them: it writes no other name of a call.
    """
    told: dict[str, str] = {}
    found: Messages = []
    number = 0
    for message in messages:
        more: dict[str, Any] = {}
        if message.get("tool_calls"):
            more["tool_calls"] = []
            for call in message["tool_calls"]:
                told[call["id"]] = f"functions.{call['function']['name']}:{number}"
                more["tool_calls"].append({**call, "id": told[call["id"]]})
                number += 1
        if message.get("tool_call_id") in told:
            more["tool_call_id"] = told[message["tool_call_id"]]
        found.append({**message, **more})
    return found
