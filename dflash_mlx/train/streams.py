"""Independent MLX graphs computed at the same time: one stream per core, evaluated by one thread.

On a CPU a stream of MLX keeps one core busy. Several threads would wait for each other, because MLX
limits how much all of them together have started. On a GPU one stream is enough.
`cpu.blas.use_all_cores` prepares the process.
"""

import os
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

import mlx.core as mx

from dflash_mlx.kernels.dispatch import on_cpu

Result = TypeVar("Result")
Task = Generator[Any, None, Result]  # yields arrays that must be evaluated before it continues


def stream_count() -> int:
    """The number of cores, at most 8, if MLX computes on the CPU; else 1."""
    return min(8, os.cpu_count() or 1) if on_cpu() else 1


class Streams:
    """`count` streams of the default device, for the thread that made this."""

    def __init__(self, count: int | None = None):
        self.count = count or stream_count()
        device = mx.default_device()
        more = [mx.new_stream(device) for _ in range(self.count - 1)]
        self.streams = [mx.default_stream(device), *more]

    def together(self, tasks: Iterable[Task[Result]]) -> Generator[list[Result]]:
        """Run tasks, `count` at once; yields the results of the finished ones, round by round.

        The arrays that all tasks need are evaluated together; between two yields only one task
        runs. The order of the results does not depend on time.
        """
        waiting = iter(tasks)
        running: list[Task[Result] | None] = [None] * self.count
        while True:
            finished = list[Result]()
            needed = list[Any]()
            for place, stream in enumerate(self.streams):
                with mx.stream(stream):
                    while (task := running[place] or next(waiting, None)) is not None:
                        running[place] = task
                        try:
                            needed.append(next(task))
                            break
                        except StopIteration as end:
                            finished.append(end.value)
                            running[place] = None
            mx.eval(needed)
            yield finished
            if not needed:
                return
