"""Turns and chats, and their JSON. Knows no files and no models."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from dflash_mlx.tools.call import CALL_STATES, Call, Step

FORMAT_VERSION = 2  # 1 has no steps; it is still written where there are none


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt and its answer; `finish_reason` is stop, length, interrupted or calls.

    `steps` are what the model said and called before its answer; with `calls` it did not come to
    one.
    """

    prompt: str
    answer: str
    thinking: str = ""
    finish_reason: str = "stop"
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation as saved; the first `left_out` turns are not sent to the model."""

    turns: tuple[Turn, ...] = ()
    system: str | None = None
    left_out: int = 0
    model: str | None = None
    draft: str | None = None


def chat_json(chat: Chat) -> dict[str, Any]:
    """A chat as a JSON object, of the oldest version that can hold it."""
    document = asdict(chat)
    for turn in document["turns"]:
        if not turn["steps"]:
            del turn["steps"]
    calls = any(turn.steps for turn in chat.turns)
    return {"version": FORMAT_VERSION if calls else 1, **document}


def chat_from_json(document: dict[str, Any]) -> Chat:
    """A chat from its JSON object; KeyError or TypeError when it is not one."""
    turns = tuple(turn_from_json(turn) for turn in document["turns"])
    names = [document["system"], document["model"], document["draft"]]
    check_texts(name for name in names if name is not None)
    if not isinstance(document["left_out"], int):
        raise TypeError
    left_out = min(max(document["left_out"], 0), len(turns))
    return Chat(turns, names[0], left_out, names[1], names[2])


def turn_from_json(turn: dict[str, Any]) -> Turn:
    """A turn from its JSON object; likewise."""
    values = {f.name: turn[f.name] for f in fields(Turn) if f.name != "steps"}
    check_texts(values.values())
    return Turn(**values, steps=tuple(step_from_json(step) for step in turn.get("steps", ())))


def step_from_json(step: dict[str, Any]) -> Step:
    """A step from its JSON object; likewise."""
    values = {f.name: step[f.name] for f in fields(Step) if f.name != "calls"}
    calls = [{f.name: call[f.name] for f in fields(Call)} for call in step["calls"]]
    for texts in (values, *calls):
        check_texts(texts.values())
    if not all(call["state"] in CALL_STATES for call in calls):
        raise TypeError
    return Step(**values, calls=tuple(Call(**call) for call in calls))


def check_texts(values: Any) -> None:
    """TypeError for a value that is no text."""
    if not all(isinstance(value, str) for value in values):
        raise TypeError
