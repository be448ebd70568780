"""Independent pieces of work computed side by side. Knows threads and devices, not the work.

On a CPU one thread of MLX keeps one core busy, so there is a thread for each core; each has a
stream of its own. A GPU is kept busy by one.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import TypeVar

import mlx.core as mx

from dflash_mlx.cpu.modules import on_cpu

Item = TypeVar("Item")
Result = TypeVar("Result")


def worker_count() -> int:
    """One for each core where MLX computes on the CPU, at most 8; else 1."""
    return min(8, os.cpu_count() or 1) if on_cpu() else 1


class Workers:
    """A fixed number of threads, or this thread alone if that number is 1."""

    def __init__(self, count: int | None = None):
        self.count = count or worker_count()
        self._pool: ThreadPoolExecutor | None = None
        self._building = Lock()

    def map(self, build: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Build a graph from each item and evaluate them side by side; results in order.

        Building is done one at a time, because it may put tracers into a shared model.
        """

        def work(item: Item) -> Result:
            with self._building:
                result = build(item)
            mx.eval(result)
            return result

        if self.count == 1:
            return list(map(work, items))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count)
        return list(self._pool.map(work, items))

    def close(self) -> None:
        """End the threads; `map` starts new ones.

        MLX aborts the process if a thread's streams outlive it, and Python does not wait for the
        very end of a thread: so each gives up its streams while it is waited for.
        """
        if self._pool is not None:
            together = Barrier(self.count)

            def leave(number: int) -> None:
                together.wait()  # or one thread would leave twice, and another never
                mx.clear_streams()

            list(self._pool.map(leave, range(self.count)))
            self._pool.shutdown()
            self._pool = None
            mx.synchronize()
