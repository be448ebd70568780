"""The loop of a model that calls tools: it speaks, its calls are run, it reads them and goes on.

Knows neither sessions nor tools: who answers and who runs a call is given.
"""

from collections.abc import Callable
from dataclasses import replace

from dflash_mlx.chat.messages import Messages

from .call import Call, Step
from .call_messages import step_messages

MAX_ROUNDS = 20  # of calls, for one prompt
Steps = tuple[Step, ...]


def no_keeping(steps: Steps) -> None:
    """For who needs no steps before the end."""


def run_rounds(
    answer: Callable[[Messages], Step],
    run: Callable[[Call], Call],
    messages: Messages,
    most: int = MAX_ROUNDS,
    keep: Callable[[Steps], None] = no_keeping,
) -> Steps:
    """All steps until one calls nothing, a call is interrupted, or there were `most` with calls.

    `answer` gives what the model says to messages, `run` a call with its result; neither raises for
    what the model should see. `keep` is told of each change. Calls that are not run any more are
    refused, so that the messages stay a chat that can go on.
    """
    steps: list[Step] = []
    while True:
        step = answer([*messages, *step_messages(steps, messages)])
        steps.append(step)
        keep(tuple(steps))
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
            keep(tuple(steps))
            return tuple(steps)
