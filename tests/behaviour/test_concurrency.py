"""One thread owns MLX; callers of any thread are safe."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny

import dflash_mlx
from dflash_mlx.engine.worker_thread import mlx_thread

PROMPTS = ["ab", "Hello!", "What?", "x = 1", "The end"]


def answers_of(pair: dflash_mlx.Pair, numbers: range) -> list[list[int]]:
    found = []
    for number in numbers:
        sampling = dflash_mlx.SamplingParams(temperature=number % 2, seed=number)
        mode: Any = ("dflash", "baseline", "ddtree")[number % 3]
        prompt = PROMPTS[number % len(PROMPTS)]
        result = dflash_mlx.generate(
            pair, prompt, mode=mode, sampling=sampling, max_tokens=12, raw=True
        )
        found.append(result.tokens)
    return found


def test_callers_share_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who ask at the same time are packed into one pass."""
    pair = tiny.golden_pair("qwen3_full")
    sizes: list[int] = []
    honest = pair.engine.step

    def step(sequences: Any) -> Any:
        sizes.append(len(sequences))
        time.sleep(0.002)
        return honest(sequences)

    monkeypatch.setattr(pair.engine, "step", step)
    with ThreadPoolExecutor(4) as callers:
        list(callers.map(lambda _: answers_of(pair, range(6)), range(4)))
    assert max(sizes) >= 3


@pytest.mark.parametrize("mode", ["baseline", "dflash", "ddtree"])
def test_a_round_runs_ahead_of_the_caller(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a block is shown the next one is computed; what nobody takes is taken back."""
    pair = tiny.golden_pair("qwen3_full")
    session, rounds, honest = dflash_mlx.Session(pair, mode=mode), [], pair.engine.step

    def step(sequences: Any) -> Any:
        rounds.append(len(sequences))
        return honest(sequences)

    monkeypatch.setattr(pair.engine, "step", step)
    stream = session.stream([5], max_tokens=100)
    said = [token for _ in range(3) for token in next(stream).tokens]
    until = time.monotonic() + 60
    while len(rounds) < 4 and time.monotonic() < until:
        time.sleep(0.001)
    stream.close()
    assert len(rounds) == 4
    assert session.sequence.tokens == [5, *said][:-1]
    went_on = [5, *said, 9]
    wanted = dflash_mlx.generate(pair, went_on, max_tokens=20).tokens
    assert [
        token for block in session.stream(went_on, max_tokens=20) for token in block.tokens
    ] == wanted
    assert session.stats.cached_tokens == len(went_on) - 2


def test_calls_inside_the_thread_do_not_wait_for_themselves() -> None:
    """A function that runs in the thread may call it again."""
    thread = mlx_thread()
    assert thread.call(lambda: thread.call(threading.current_thread)).name == "dflash-mlx"


ASKED_IN_THREADS = """
import threading
import dflash_mlx
pair = dflash_mlx.load("tests/golden/qwen3_full/target", "tests/golden/qwen3_full/draft")
def ask():
    while True:
        dflash_mlx.generate(pair, "ab", raw=True, max_tokens=40)
for _ in range(3):
    threading.Thread(target=ask, daemon=True).start()
print("ready", flush=True)
try:
    while True:
        for block in dflash_mlx.stream(pair, "Hello!", raw=True, max_tokens=40):
            pass
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


def test_interrupt_while_threads_answer() -> None:
    """Ctrl-C reaches the main thread at once, and the process ends in order."""
    run = subprocess.Popen(
        [sys.executable, "-c", ASKED_IN_THREADS],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    time.sleep(0.5)
    os.kill(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=30)
    assert (out, err, run.returncode) == ("stopped\n", "", 0)
