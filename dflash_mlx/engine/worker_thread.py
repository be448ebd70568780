"""The one thread that owns MLX; callers of any thread feed it.

MLX's streams belong to the thread that made them, and two threads must not evaluate at once. So
models are loaded, and rounds computed, in one thread of the process; everybody else waits for what
it gives. Callers that ask for a round at the same time share one.
"""

import atexit
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

import mlx.core as mx

from dflash_mlx.errors import DFlashError
from dflash_mlx.types import Block

if TYPE_CHECKING:
    from .sequence import Sequence


T = TypeVar("T")
PENDING_STEPS = 100  # of Python, by which a raised exception has come
GATHER = 0.001  # seconds in which those who shared the last round may ask for the next


class Steps(Protocol):
    """What computes rounds: the engine."""

    def step(self, sequences: "list[Sequence]") -> list[Block | DFlashError]:
        """One round."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A function to run, and where its result goes."""

    function: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """A sequence whose next block is wanted."""

    engine: Steps
    sequence: "Sequence"
    result: Future[Block] = field(default_factory=Future)


class MLXThread:
    """Runs calls one after another, and rounds for all who ask."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Call | Ask | None] = SimpleQueue()
        self._asked: list[Ask] = []
        self._lock = Lock()
        self._gate = Lock()  # held for a moment only, where a job is taken or all are given up
        self._running: Call | None = None
        self._interrupted = False
        self._stepping: list[Ask] = []
        self._given_up: BaseException | None = None
        self.explain: Callable[[BaseException], BaseException] = lambda error: error
        self._last: WeakSet[Sequence] = WeakSet()  # nobody's caches are kept for it
        self._thread = Thread(target=self._run, name="dflash-mlx", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run a function in the thread and return what it returns, or raise what it raises.

        Ctrl-C while the caller waits is raised in the function too, between two MLX operations.
        """
        if current_thread() is self._thread:
            return function(*arguments, **options)
        if self._given_up is not None:
            raise self._given_up
        job = Call(lambda: function(*arguments, **options))
        self._put(job)
        try:
            return job.result.result()
        except BaseException:
            self._break_off(job)
            raise

    def ask(self, engine: Steps, sequence: "Sequence") -> Future[Block]:
        """The next block of a sequence; rounds are shared with others who ask at the same time.

        May be asked again before it is there: for the block after that one. Cancelled where the
        answer has ended.
        """
        job = Ask(engine, sequence)
        self._put(job)
        while current_thread() is self._thread and not job.result.done():
            self._next()
        return job.result

    def give_up(self, error: BaseException) -> None:
        """The thread waits for what will never come: everybody gets this error, now and later."""
        with self._gate:
            self._given_up = error
            waiting = [job for job in (self._running, *self._stepping, *self._asked) if job]
            while not self._jobs.empty():
                if (job := self._jobs.get()) is not None:
                    waiting.append(job)
        for job in waiting:
            settle(job.result, error)

    def _put(self, job: Call | Ask) -> None:
        """Line a job up, unless all are given up."""
        with self._gate:
            if self._given_up is None:
                self._jobs.put(job)
                return
        settle(job.result, self._given_up)

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Of a function that runs in the thread: no interrupt is raised in this context."""
        with self._lock:
            for _ in range(PENDING_STEPS):  # one that was raised before comes now
                pass
            yield

    def _run(self) -> None:
        # The weights of large models stay where a GPU finds them, as with stock mlx-lm.
        if limit := mx.device_info().get("max_recommended_working_set_size"):
            mx.set_wired_limit(int(limit))
        while self._next():
            pass
        if hasattr(mx, "clear_streams"):  # or MLX aborts when the thread ends
            mx.clear_streams()

    def _next(self) -> bool:
        """Run the next call, or a round; False at the end."""
        return self._gather() if self._asked else self._take(None)

    def _take(self, timeout: float | None) -> bool:
        """Take the next job, if it comes in time, and run a call; False at the end."""
        try:
            job = self._jobs.get(timeout=timeout) if timeout != 0 else self._jobs.get_nowait()
        except Empty:
            return True
        if isinstance(job, Call):
            self._answer(job)
        elif job is not None:
            self._asked.append(job)
        return job is not None

    def _answer(self, job: Call) -> None:
        """Run a call, unless nobody waits for it any more."""
        with self._lock, self._gate:
            if self._given_up is not None:
                settle(job.result, self._given_up)
                return
            if not job.result.set_running_or_notify_cancel():
                return
            self._running = job
        found, error = None, None
        try:
            found = job.function()
        except BaseException as raised:
            error = self.explain(raised)
        while self._running is not None:
            try:  # an interrupt may come until the call is no longer the running one
                self._end_call()
            except KeyboardInterrupt as raised:
                error = error or raised
        settle(job.result, error, found)

    def _end_call(self) -> None:
        with self._lock:
            interrupted, self._interrupted = self._interrupted, False
            for _ in range(PENDING_STEPS * interrupted):
                pass
            self._running = None

    def _break_off(self, job: Call) -> None:
        """End a call that nobody waits for; nothing happens if it has ended."""
        while not self._lock.acquire(timeout=0.2):
            if self._given_up is not None:  # whoever has the lock keeps it for ever
                return
        try:
            if self._running is job:
                self._interrupted = True
                raise_in(self._thread, KeyboardInterrupt)
            else:
                job.result.cancel()
        finally:
            self._lock.release()

    def _gather(self) -> bool:
        """Compute a round for those who ask; wait a little for those who shared the last one."""
        until = time.perf_counter() + GATHER
        while True:
            while not self._jobs.empty():
                if not self._take(0):
                    return False
            engine = self._asked[0].engine
            group = {ask.sequence: ask for ask in reversed(self._asked) if ask.engine is engine}
            left = until - time.perf_counter()
            if self._last.issubset(group) or left <= 0:
                break
            if not self._take(left):
                return False
        first = set(group.values())
        with self._gate:
            if self._given_up is not None:
                for ask in self._asked:
                    settle(ask.result, self._given_up)
                return False
            self._asked = [ask for ask in self._asked if ask not in first]
            group = {s: ask for s, ask in group.items() if is_wanted(ask)}
            self._stepping = list(group.values())
        if not group:
            return True
        try:
            blocks = engine.step(list(group))
        except BaseException as raised:
            error = self.explain(raised)
            for ask in group.values():
                settle(ask.result, error)
            return True
        finally:
            self._stepping = []  # which would keep their caches
        for ask, block in zip(group.values(), blocks, strict=True):
            settle(ask.result, None if isinstance(block, Block) else block, block)
        self._last = WeakSet(s for s in group if not s.now.finish_reason)
        return True

    def _end(self) -> None:
        if self._given_up is not None:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(1)  # MLX would wait for the thread for ever
        self._jobs.put(None)
        self._thread.join()  # the pass that runs; MLX aborts where it is cut off


def settle(result: Future[Any], error: BaseException | None, found: Any = None) -> None:
    """Give a future its result or error, unless it has one."""
    with suppress(InvalidStateError):
        if error is None:
            result.set_result(found)
        else:
            result.set_exception(error)


def is_wanted(ask: Ask) -> bool:
    """Whether somebody waits for the block, and there is one to come."""
    if ask.sequence.now.finish_reason:
        ask.result.cancel()
    return ask.result.set_running_or_notify_cancel()


def raise_in(thread: Thread, kind: type[BaseException]) -> None:
    """Let a thread raise an exception at its next step in Python."""
    exception = ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), exception)


@cache
def mlx_thread() -> MLXThread:
    """The thread of this process, begun when it is first needed."""
    return MLXThread()
