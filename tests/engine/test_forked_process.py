"""A process that was forked after MLX had started gets an error, and does not wait for ever."""

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import pytest
import tiny

import dflash_mlx
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError

USES: dict[str, Callable[[Any], object]] = {
    "generate": lambda pair: dflash_mlx.generate(pair, [1, 2], max_tokens=2),
    "stream": lambda pair: list(dflash_mlx.stream(pair, [1, 2], max_tokens=2)),
    "a session": lambda pair: dflash_mlx.Session(pair, mode="baseline").prepare([1, 2]),
    "closing": lambda pair: dflash_mlx.Session(pair, mode="baseline").close(),
    "many prompts": lambda pair: pair.generate([[1, 2]], max_tokens=2),
    "load": lambda pair: dflash_mlx.load(),
}
WITHOUT_MODEL = "a session"


def made() -> Any:
    return mlx_thread().call(lambda: tiny.make_pair(tiny.make_target("qwen3"), None))


def outcome(use: Callable[[Any], object], pair: Any, results: Any) -> None:
    try:
        use(pair)
        results.put("")
    except DFlashError as error:
        results.put(error.message)


@pytest.mark.parametrize("use", USES)
def test_a_child_is_told(use: str) -> None:
    pair = made()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=outcome, args=(USES[use], pair, results))
    child.start()
    child.join(30)
    alive = child.is_alive()
    child.kill()
    assert not alive
    assert ("was forked after" in results.get()) == (use != WITHOUT_MODEL)


def test_a_child_ends() -> None:
    """Also by the end of Python, which calls what was registered for it."""
    made()
    child = os.fork()
    if not child:
        import atexit

        atexit._run_exitfuncs()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert mlx_thread().call(lambda: 5) == 5
