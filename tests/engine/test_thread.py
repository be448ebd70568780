"""The thread that owns MLX: what Ctrl-C does to it, and how it ends."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread, Timer
from types import SimpleNamespace
from typing import Any

import pytest
import tiny

import dflash_mlx
from dflash_mlx.engine import worker_thread
from dflash_mlx.engine.worker_thread import BlockJob, MLXThread, mlx_thread
from dflash_mlx.errors import DFlashError
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("chosen", "seen"), [(None, b"0"), ("1", b"1"), ("0", b"0")])
def test_float32_is_whole(monkeypatch: pytest.MonkeyPatch, chosen: str | None, seen: bytes) -> None:
    """MLX, a library in C++, finds its switch off when it computes, unless the user set it."""
    monkeypatch.delenv("MLX_ENABLE_TF32")
    if chosen is not None:
        monkeypatch.setenv("MLX_ENABLE_TF32", chosen)
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    assert MLXThread().call(getenv, b"MLX_ENABLE_TF32") == seen


def test_ctrl_c_reaches_the_call() -> None:
    """Or a load that nobody waits for would go on; the thread takes the next call."""
    thread, ended = MLXThread(), []

    def long() -> None:
        try:
            Timer(0.1, interrupt).start()
            for _ in range(6000):
                time.sleep(0.01)
        except KeyboardInterrupt:
            ended.append(time.perf_counter())
            raise

    with pytest.raises(KeyboardInterrupt):
        thread.call(long)
    assert thread.call(lambda: 7) == 7
    assert len(ended) == 1


def test_a_call_that_waits_is_dropped() -> None:
    """Ctrl-C before it has begun: it never runs, and what runs is not disturbed."""
    thread, begun, go_on, done = MLXThread(), Event(), Event(), []

    def first() -> None:
        begun.set()
        go_on.wait(60)
        done.append("first")

    def from_elsewhere() -> None:
        thread.call(first)

    Timer(0, from_elsewhere).start()
    assert begun.wait(60)
    Timer(0.1, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        thread.call(done.append, "second")
    go_on.set()
    thread.call(done.append, "third")
    assert done == ["first", "third"]


def test_what_a_call_raises() -> None:
    """It is raised where the result is waited for, and the thread goes on."""
    thread = MLXThread()
    for kind in (ValueError, KeyboardInterrupt, SystemExit):

        def fail(kind: type[BaseException] = kind) -> None:
            raise kind

        with pytest.raises(kind):
            thread.call(fail)
    assert thread.call(lambda: 7) == 7


def test_a_process_ends_while_it_computes() -> None:
    """Guards against MLX's abort where the thread is cut off, and an end that waits for all."""
    script = (
        "import os, signal, threading, time\n"
        "from dflash_mlx.engine.worker_thread import mlx_thread\n"
        "import mlx.core as mx\n"
        "def long():\n"
        "    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "    for _ in range(100000):\n"
        "        x = mx.random.normal((300, 300))\n"
        "        mx.eval(x @ x)\n"
        "try:\n"
        "    mlx_thread().call(long)\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    """One whose thread does not rest for long between answers."""
    monkeypatch.setattr(worker_thread, "QUIET_SECONDS", 0.01)
    target = tiny.make_target("qwen3")
    return tiny.make_pair(target, tiny.random_drafter(target))


def tokens_of(pair: Pair) -> list[int]:
    blocks = Session(pair).stream(tiny.prompt_of(9), max_tokens=40)
    return [token for block in blocks for token in block.tokens]


def test_work_between_answers_waits_for_their_end(pair: Pair) -> None:
    """Not before the first answer, and not while one is generated, however slowly it is read."""
    seen, done = list[int](), Event()

    def work() -> Iterator[None]:
        for number in range(3):
            seen.append(number)
            yield
        done.set()

    pair.engine.between_answers = work()
    blocks = Session(pair).stream(tiny.prompt_of(9), max_tokens=40)
    for _ in range(3):
        next(blocks)
        time.sleep(0.05)
    assert not seen
    list(blocks)
    assert done.wait(60)
    assert seen == [0, 1, 2]


def test_a_request_waits_for_one_step_at_most(pair: Pair) -> None:
    """The rest goes on after the next answer."""
    steps, begun, go_on = list[int](), Event(), Event()

    def work() -> Iterator[None]:
        for number in range(3):
            steps.append(number)
            begun.set()
            go_on.wait(60)
            yield

    pair.engine.between_answers = work()
    session = Session(pair)
    list(session.stream(tiny.prompt_of(9), max_tokens=4))
    assert begun.wait(60)
    Timer(0.05, go_on.set).start()
    assert mlx_thread().call(lambda: [*steps]) == [0]
    list(session.stream(tiny.prompt_of(9), max_tokens=4))
    mlx_thread().call(pair.engine.finish_work)
    assert steps == [0, 1, 2]


def test_work_that_fails_is_said_and_ends_nothing(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> Iterator[None]:
        yield
        raise RuntimeError("[METAL] no memory")

    pair.engine.between_answers = work()
    session = Session(pair)
    list(session.stream(tiny.prompt_of(9), max_tokens=4))
    mlx_thread().call(pair.engine.finish_work)
    assert pair.engine.between_answers is None
    assert "[METAL] no memory" in caplog.text
    assert list(session.stream(tiny.prompt_of(9), max_tokens=4))[-1].finish_reason


def test_a_closed_reply_cancels_its_request() -> None:
    """A round that a reply has asked for in advance is not computed once the reply is closed."""
    target = tiny.make_target("qwen3")
    pair = tiny.make_pair(target, tiny.random_drafter(target))
    session = Session(pair)
    reply = session.begin(session.prepare(tiny.prompt_of(9), GenerationOptions(max_tokens=40)))
    while reply.take(reply.ask().result()) is None:
        pass
    thread_is_busy = Event()
    go_on = Event()

    def wait() -> None:
        thread_is_busy.set()
        go_on.wait(60)

    Thread(target=mlx_thread().call, args=(wait,)).start()
    assert thread_is_busy.wait(60)
    passes = pair.engine.passes
    assert reply.ask().cancel()  # the next round; the one after it is asked for, too
    Timer(1, go_on.set).start()
    reply.close()
    mlx_thread().call(lambda: None)
    assert pair.engine.passes == passes


class Endless:
    answer = SimpleNamespace(finish_reason=None)


class Restless:
    """An engine whose sequence wants its next block before a round has ended."""

    def __init__(self, thread: MLXThread):
        self.thread = thread
        self.rounds = 0
        self.ended = False

    def step(self, sequences: list[Any]) -> list[Any]:
        self.rounds += 1
        if not self.ended:
            self.thread._jobs.put(BlockJob(self, sequences[0]))  # type: ignore[arg-type]
        return [DFlashError("no block")] * len(sequences)

    def work_between_answers(self) -> bool:
        return False


def test_a_call_that_pauses_goes_on_beside_answers() -> None:
    """A load ends while others stream, however fast they ask."""
    thread = MLXThread()
    engine = Restless(thread)
    rounds: list[int] = []

    def long() -> None:
        for _ in range(5):
            time.sleep(0.06)
            thread.pause()
            rounds.append(engine.rounds)

    thread.ask(engine, Endless())  # type: ignore[arg-type]
    loading = Thread(target=thread.call, args=(long,))
    loading.start()
    loading.join(20)
    engine.ended = True
    assert not loading.is_alive()
    assert [after - before for before, after in pairwise(rounds)] == [1] * 4


@contextmanager
def beside_a_paused_call(thread: MLXThread) -> Iterator[None]:
    """Run the block while another call is in the thread, which pauses soon; it ends whole."""
    begun, go_on, results = Event(), Event(), list[str]()

    def paused() -> str:
        begun.set()
        go_on.wait(60)
        thread.pause()
        return "whole"

    loading = Thread(target=lambda: results.append(thread.call(paused)))
    loading.start()
    assert begun.wait(60)
    Timer(0.05, go_on.set).start()
    yield
    loading.join(60)
    assert results == ["whole"]


def test_a_call_within_a_pause_fails_alone() -> None:
    """Ctrl-C reaches the call that runs in the pause, and the paused one goes on."""

    def long() -> None:
        Timer(0.1, interrupt).start()
        for _ in range(6000):
            time.sleep(0.01)

    thread = MLXThread()
    with beside_a_paused_call(thread), pytest.raises(KeyboardInterrupt):
        thread.call(long)
    assert thread.call(lambda: 7) == 7


def test_the_thread_ends_after_a_paused_call() -> None:
    """A process that ends while a model is loaded waits for the load, then ends."""
    thread = MLXThread()
    with beside_a_paused_call(thread):
        thread._end()  # at exit


def test_a_load_pauses(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within it a whole answer of another pair is generated."""
    target, _ = tiny.save_pair(tmp_path, tiny.draft_settings)
    paused, answered = Event(), Event()
    honest = MLXThread.pause

    def pause(self: MLXThread) -> None:
        paused.set()
        while not answered.is_set():
            time.sleep(0.001)
            honest(self)

    monkeypatch.setattr(MLXThread, "pause", pause)
    loading = Thread(target=dflash_mlx.load, args=(target,), kwargs={"no_draft": True})
    loading.start()
    try:
        assert paused.wait(20)
        assert len(tokens_of(pair)) == 40
    finally:
        answered.set()
        loading.join(60)
