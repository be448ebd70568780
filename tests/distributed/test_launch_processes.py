"""`dflash launch` notices a rank that is stopped before the ranks can notice each other."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from threading import Timer
from typing import Any

import pytest

from dflash_mlx.errors import DFlashError

processes = import_module("dflash_mlx.cli.launch")


@pytest.fixture
def ranks() -> Iterator[list[Any]]:
    """Three processes that wait."""
    line = [sys.executable, "-c", "input()"]
    found = [subprocess.Popen(line, stdin=subprocess.PIPE) for _ in range(3)]
    late = Timer(60, lambda: [one.kill() for one in found])  # what waits for ever fails then
    late.start()
    yield found
    late.cancel()
    for one in found:
        one.kill()
        one.wait()


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_stopped_rank_ends_all(
    ranks: list[Any], victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 waited a minute for it to come, and for ever if it was rank 0 that was stopped."""
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.02)
    os.kill(ranks[victim].pid, signal.SIGSTOP)
    with pytest.raises(DFlashError, match=f"rank {victim} was stopped"):
        processes.wait_for_ranks(ranks[0], ranks[1:])
    assert ranks[0].returncode == -signal.SIGTERM
    processes.end_all(ranks[1:])
    assert all(one.returncode is not None for one in ranks)


def test_a_rank_that_goes_on_is_not_lost(ranks: list[Any]) -> None:
    """Ctrl-Z and fg, or a debugger's stop."""
    one, looks = ranks[0], 0

    def look_until(wanted: int) -> None:
        nonlocal looks
        until = time.monotonic() + 20
        while looks != wanted and time.monotonic() < until:
            looks = processes.count_stopped_polls(one, looks)
        assert looks == wanted

    for _ in range(2):
        os.kill(one.pid, signal.SIGSTOP)
        look_until(3)
        os.kill(one.pid, signal.SIGCONT)
        look_until(0)
    os.kill(one.pid, signal.SIGSTOP)
    look_until(1)
    one.kill()
    look_until(0)
    assert one.wait() == -signal.SIGKILL
