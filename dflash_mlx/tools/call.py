"""Calls of tools as an answer makes them, the steps they form, and their messages."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from dflash_mlx.chat.messages import Messages

# A call of a tool, what came of it, and the steps of an answer that calls tools.

CallState = Literal["open", "done", "failed", "refused", "interrupted"]
CALL_STATES: tuple[CallState, ...] = get_args(CallState)


@dataclass(frozen=True, slots=True)
class Call:
    """A call: the tool's name, its arguments as JSON, and its result as the model is told it.

    `state` is open until somebody has run or refused it.
    """

    name: str
    arguments: str
    result: str = ""
    state: CallState = "open"


@dataclass(frozen=True, slots=True)
class Step:
    """What a model said in one go, and the calls at its end; the last step of an answer has none.

    `finish_reason` is that of the session: stop, length, or interrupted.
    """

    text: str
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    finish_reason: str = "stop"


# Steps of an answer as messages that chat templates read.


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


# The loop of a model that calls tools

MAX_ROUNDS = 20  # of calls, for one prompt
Steps = tuple[Step, ...]


def no_keeping(steps: Steps) -> None:
    """For who needs no steps before the end."""


def run_rounds(
    answer: Callable[[Steps], Step],
    run: Callable[[Call], Call],
    most: int = MAX_ROUNDS,
    keep: Callable[[Steps], None] = no_keeping,
) -> Steps:
    """All steps until one calls nothing, a call is interrupted, or there were `most` with calls.

    `answer` gives what the model says after the steps so far, `run` a call with its result, also
    where the call went wrong. `keep` is told of each result. Calls that are not run any more are
    refused, so that no call of a chat that goes on is without a result.
    """
    steps: list[Step] = []
    while True:
        step = answer(tuple(steps))
        steps.append(step)
        why = f"not run: there were {most} rounds of calls already" if len(steps) > most else ""
        calls = list(step.calls)
        for number, call in enumerate(calls):
            if why:
                calls[number] = replace(call, result=why, state="refused")
                continue
            calls[number] = run(call)
            if calls[number].state == "interrupted":
                why = "not run: the user interrupted"
            steps[-1] = replace(step, calls=tuple(calls))
            keep(tuple(steps))
        steps[-1] = replace(step, calls=tuple(calls))
        if why or not calls:
            return tuple(steps)
