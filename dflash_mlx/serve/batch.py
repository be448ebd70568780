"""Answers the lines of a batch file with one pair, many at once, as the server does."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.pair import Pair

from .access_log import AccessLog
from .batch_file import Line
from .models import Models
from .protocol import Problem, Settings
from .runner import Metrics, Runner


def batch_runner(pair: Pair, settings: Settings) -> Runner:
    """What answers with a pair, and these settings for all that a request leaves out."""
    models = Models(settings, Metrics(), AccessLog())
    served = models.add(settings.names[0], pair, settings.options, stays=True)
    mlx_thread().call(models.share_memory)
    return served.runner


async def answer_lines(
    lines: Iterable[Line],
    runner: Runner,
    on_answer: Callable[[dict[str, Any], int], None],
    on_failure: Callable[[Line, Problem], None],
) -> None:
    """Answer all lines, as many at once as the runner admits.

    `on_answer(answer, tokens)` gets each line of the answers as soon as it is complete, also one
    that says why a prompt cannot be answered. `on_failure` gets the lines that failed for another
    reason than the prompt, which a later run may answer. Both are called in the event loop. When
    this is cancelled, running answers stop after their round.
    """
    waiting = iter(lines)

    async def work() -> None:
        for line in waiting:
            try:
                answer, tokens = await line.answer(runner)
                on_answer(answer, tokens)
            except Problem as problem:
                if problem.status == 400:
                    on_answer(line.refused(problem), 0)
                else:
                    on_failure(line, problem)

    tasks = [asyncio.create_task(work()) for _ in range(runner.admission.max_running)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
