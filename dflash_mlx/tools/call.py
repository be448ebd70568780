"""A call of a tool, what came of it, and the steps of an answer that calls tools."""

from dataclasses import dataclass
from typing import Literal, get_args

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
