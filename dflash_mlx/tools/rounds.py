"""The loop of a model that calls tools: it speaks, its calls are run, it reads them and goes on.

Knows neither sessions nor tools nor messages: who answers and who runs a call is given.
"""

from collections.abc import Callable
from dataclasses import replace

from .call import Call, Step

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
