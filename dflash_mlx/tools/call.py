"""Tool calls, the steps of an answer with tool calls, and their messages."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dflash_mlx.chat.call_json import json_object
from dflash_mlx.chat.messages import Messages, call_id
from dflash_mlx.types import Call


@dataclass(frozen=True, slots=True)
class Step:
    """One generation of the model, with the calls at its end; the last one usually has none.

    finish_reason: "stop", "length" or "interrupted".
    """

    text: str
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    finish_reason: str = "stop"


# Steps as messages for the chat template


def step_messages(steps: Iterable[Step], before: Messages) -> Messages:
    """The steps as messages of the assistant and the tools.

    before: the messages before the steps; call ids continue after their calls.
    """
    calls_before = sum(len(message.get("tool_calls") or ()) for message in before)
    messages: Messages = []
    for step in steps:
        message: dict[str, Any] = {"role": "assistant", "content": step.text}
        if step.thinking and step.calls:
            message["reasoning_content"] = step.thinking
            if not step.text:
                # The key of gpt-oss's template, which refuses content and thinking together.
                message["thinking"] = step.thinking
        if step.calls:
            message["tool_calls"] = []
        messages.append(message)
        for number, call in enumerate(step.calls, calls_before + 1):
            function = {"name": call.name, "arguments": arguments_of(call) or {}}
            message["tool_calls"].append(
                {"type": "function", "id": call_id(number), "function": function}
            )
            messages.append(
                {
                    "role": "tool",
                    "name": call.name,
                    "tool_call_id": call_id(number),
                    "content": "not run" if call.state == "open" else call.result,
                }
            )
        calls_before += len(step.calls)
    return messages


def arguments_of(call: Call) -> dict[str, Any] | None:
    """A call's arguments; None if they are not a JSON object."""
    written = json_object(call.arguments or "{}")
    return None if written is None else json.loads(written)


# The loop of a model that calls tools

MAX_ROUNDS = 20  # steps with calls per prompt
Steps = tuple[Step, ...]


def run_rounds(
    answer: Callable[[Steps], Step],
    run: Callable[[Call], Call],
    max_rounds: int = MAX_ROUNDS,
    keep: Callable[[Steps], None] | None = None,
) -> Steps:
    """All steps until one has no calls, a call is interrupted, or after `max_rounds` with calls.

    answer: generates the step after the given ones. run: returns a call with its result, also if
    it failed. keep: gets all steps after each result. Calls that are not run are refused, because
    every call in a chat needs a result.
    """
    steps: list[Step] = []
    while True:
        step = answer(tuple(steps))
        steps.append(step)
        refusal = ""
        if len(steps) > max_rounds:
            refusal = f"not run: there were {max_rounds} rounds of calls already"
        calls = list(step.calls)
        for index, call in enumerate(calls):
            if refusal:
                calls[index] = replace(call, result=refusal, state="refused")
                continue
            calls[index] = run(call)
            if calls[index].state == "interrupted":
                refusal = "not run: the user interrupted"
            steps[-1] = replace(step, calls=tuple(calls))
            if keep is not None:
                keep(tuple(steps))
        steps[-1] = replace(step, calls=tuple(calls))
        if refusal or not calls:
            return tuple(steps)
