"""Parallel evaluation of independent MLX graphs by threads.

On a CPU one thread of MLX uses one core, so there is a thread, with its own stream, for each core.
On a GPU one thread is enough.
"""

import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import Any, TypeVar

import mlx.core as mx

from dflash_mlx.cpu.modules import on_cpu

Item = TypeVar("Item")
Result = TypeVar("Result")


def worker_count() -> int:
    """The number of cores, at most 8, if MLX computes on the CPU; else 1."""
    return min(8, os.cpu_count() or 1) if on_cpu() else 1


class Workers:
    """A fixed number of threads; with `count` 1 the calling thread."""

    def __init__(self, count: int | None = None):
        self.count = count or worker_count()
        self._pool: ThreadPoolExecutor | None = None
        self._building = Lock()

    def map(self, build: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Build a graph from each item and evaluate them in parallel; results in order."""

        def task(item: Item) -> Generator[Any, None, Result]:
            result = build(item)
            yield result
            return result

        return self.run(task, items)

    def run(
        self, task: Callable[[Item], Generator[Any, None, Result]], items: Iterable[Item]
    ) -> list[Result]:
        """Run tasks in parallel, each of which yields the arrays to evaluate before it goes on.

        Only one graph is built at a time, because a task may put tracers into a shared model.
        Returns what the tasks return, in order.
        """

        def work(item: Item) -> Result:
            steps = task(item)
            while True:
                with self._building:
                    try:
                        arrays = next(steps)
                    except StopIteration as end:
                        return end.value
                mx.eval(arrays)

        if self.count == 1:
            return list(map(work, items))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count)
        return list(self._pool.map(work, items))

    def close(self) -> None:
        """End the threads; a later `map` starts new ones.

        MLX aborts the process if a thread's streams outlive it, and Python does not wait for the
        end of a thread. So each thread clears its streams while this method waits.
        """
        if self._pool is not None:
            together = Barrier(self.count)

            def leave(number: int) -> None:
                together.wait()  # else one thread may take two items, and another none
                mx.clear_streams()

            list(self._pool.map(leave, range(self.count)))
            self._pool.shutdown()
            self._pool = None
            mx.synchronize()
