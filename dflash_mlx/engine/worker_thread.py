"""The thread that owns MLX, for callers in any thread.

MLX's streams belong to the thread that made them, and two threads must not evaluate at once. So
one thread of the process loads all models and computes all rounds, and the others wait for its
results. Sequences whose next blocks are wanted at the same time share a round.
"""

import asyncio
import atexit
import ctypes
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet, ref

import mlx.core as mx

from dflash_mlx.device import TF32
from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.dispatch import use_device
from dflash_mlx.types import Block

from .faults import gpu_fault

if TYPE_CHECKING:
    from .engine import Engine
    from .sequence import Sequence


T = TypeVar("T")
PENDING_STEPS = 100  # steps of Python after which an asynchronous exception has arrived
WORK_SECONDS = 0.05  # of a function that pauses, between two rounds
GATHER_SECONDS = 0.001  # how long a round waits for the sequences of the last one
QUIET_SECONDS = 0.2  # without a job, before the engine may work between answers: scripts ask sooner


@dataclass(frozen=True, slots=True, eq=False)
class FunctionJob:
    function: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)


@dataclass(frozen=True, slots=True, eq=False)
class BlockJob:
    engine: "Engine"
    sequence: "Sequence"
    result: Future[Block] = field(default_factory=Future)


class MLXThread:
    """Runs functions one after another, and rounds for all sequences whose blocks are wanted."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._jobs: SimpleQueue[FunctionJob | BlockJob | None] = SimpleQueue()
        self._wanted: list[BlockJob] = []  # for the next round
        self._lock = Lock()
        self._running: list[FunctionJob] = []  # the last one runs in a pause of the one before
        self._interrupted = False
        self._pause_at = 0.0  # the earliest time of the next pause
        self._last_round: WeakSet[Sequence] = WeakSet()  # weak, to let their caches be freed
        self._last_engine: Callable[[], Engine | None] = lambda: None  # that may have work to do
        self._thread = Thread(target=self._run, name="dflash-mlx", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run a function in the thread, and return its result or raise its exception.

        If the caller is interrupted by Ctrl-C, the function is too, between two MLX operations.
        """
        if current_thread() is self._thread:
            return function(*arguments, **options)
        self._check_process()
        job = FunctionJob(lambda: function(*arguments, **options))
        self._jobs.put(job)
        try:
            return job.result.result()
        except BaseException:
            self._interrupt(job)
            raise

    def ask(self, engine: "Engine", sequence: "Sequence") -> Future[Block]:
        """Request the next block of a sequence, from a round that other sequences may share.

        A second request before the block is computed is for the block after it. The future is
        cancelled if the answer has ended.
        """
        self._check_process()
        job = BlockJob(engine, sequence)
        self._jobs.put(job)
        while current_thread() is self._thread and not job.result.done():
            self._next()
        return job.result

    def _check_process(self) -> None:
        """Raise DFlashError in a forked process, which has this object and not its thread."""
        if os.getpid() != self._process:
            raise DFlashError(
                "this process was forked after its parent had started MLX, which does not work.",
                hint="use multiprocessing.get_context('spawn'), and load the models in the new "
                "process",
            )

    def pause(self) -> None:
        """Run what waits by now and one round, within a function that runs in the thread for long.

        Loading a model calls it between layers, so that running answers of others go on. Does
        nothing if the last pause ended less than WORK_SECONDS ago, so that the function goes on,
        too.
        """
        if current_thread() is not self._thread or time.perf_counter() < self._pause_at:
            return
        if not self._run_round():  # the end of the thread, after the function
            self._jobs.put(None)
        self._pause_at = time.perf_counter() + WORK_SECONDS

    def _run(self) -> None:
        os.environ.setdefault(TF32, "0")  # before the first product, which reads it
        while self._next():
            pass
        mx.clear_streams()  # otherwise MLX aborts when the thread ends

    def _next(self) -> bool:
        """Run the next function or round. Returns False at the end of the thread.

        If there is none for QUIET_SECONDS, the last round's engine works between answers until one
        comes.
        """
        if self._wanted:
            return self._run_round()
        quiet = None if self._last_engine() is None else QUIET_SECONDS
        try:
            return self._start(self._jobs.get(timeout=quiet))  # a job may free the last engine
        except Empty:
            engine = self._last_engine()
            while engine is not None and self._jobs.empty():
                if not engine.work_between_answers():
                    self._last_engine = lambda: None
                    break
            return True

    def _start(self, job: FunctionJob | BlockJob | None) -> bool:
        """Run a function now, and keep a block for the next round. False at the thread's end."""
        if isinstance(job, FunctionJob):
            self._run_function(job)
        elif job is not None:
            self._wanted.append(job)
        return job is not None

    def _run_function(self, job: FunctionJob) -> None:
        with self._lock:
            if not job.result.set_running_or_notify_cancel():
                return
            self._running.append(job)
        result = None
        error = None
        try:
            result = job.function()
        except BaseException as raised:
            error = gpu_fault(raised) or raised
        while job in self._running:
            try:  # an interrupt may come until the function is no longer the running one
                self._end_function()
            except KeyboardInterrupt as raised:
                error = error or raised
        settle(job.result, error, result)

    def _end_function(self) -> None:
        with self._lock:
            if self._interrupted:
                self._interrupted = False
                for _ in range(PENDING_STEPS):  # the interrupt arrives here
                    pass
            self._running.pop()

    def _interrupt(self, job: FunctionJob) -> None:
        """Interrupt the function of a caller that has left, or cancel it if it has not started."""
        with self._lock:
            if self._running and self._running[-1] is job:
                self._interrupted = True
                thread = ctypes.c_ulong(self._thread.ident or 0)
                exception = ctypes.py_object(KeyboardInterrupt)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, exception)
            else:
                job.result.cancel()

    def _run_round(self) -> bool:
        """Compute a round for all wanted blocks.

        Waits briefly for the sequences of the last round, so that they stay together. Returns
        False at the end of the thread.
        """
        until = time.perf_counter() + GATHER_SECONDS
        while True:
            while not self._jobs.empty():
                if not self._start(self._jobs.get()):
                    return False
            if not self._wanted:  # a function paused, and they ran then
                return True
            engine = self._wanted[0].engine
            group = {job.sequence: job for job in reversed(self._wanted) if job.engine is engine}
            left = until - time.perf_counter()
            if self._last_round.issubset(group) or left <= 0:
                break
            with suppress(Empty):
                if not self._start(self._jobs.get(timeout=left)):
                    return False
        first = set(group.values())
        self._wanted = [job for job in self._wanted if job not in first]
        group = {sequence: job for sequence, job in group.items() if is_wanted(job)}
        if not group:
            return True
        self._last_engine = ref(engine)
        try:
            blocks = engine.step(list(group))
        except BaseException as raised:
            error = gpu_fault(raised) or raised
            for job in group.values():
                job.result.set_exception(error)
            return True
        for job, block in zip(group.values(), blocks, strict=True):
            settle(job.result, None if isinstance(block, Block) else block, block)
        self._last_round = WeakSet(s for s in group if not s.answer.finish_reason)
        return True

    def _end(self) -> None:
        if os.getpid() != self._process:
            return
        self._jobs.put(None)
        self._thread.join()  # MLX aborts if its running pass is cut off


def settle(future: Future[Any], error: BaseException | None, result: Any = None) -> None:
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def is_wanted(job: BlockJob) -> bool:
    """Whether a block is still wanted. The blocks of an ended answer are cancelled."""
    if job.sequence.answer.finish_reason:
        job.result.cancel()
    return job.result.set_running_or_notify_cancel()


async def uninterrupted(function: Callable[..., T], *arguments: Any) -> T:
    """Run a function that waits for the MLX thread. A cancelled task still waits for its end."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(Exception):
            await task
        raise


@cache
def mlx_thread() -> MLXThread:
    """The thread of this process, started at the first call, with the device of DFLASH_DEVICE."""
    use_device()
    return MLXThread()
