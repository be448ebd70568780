"""Ranks that fail or lose their launcher before they can notice each other."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from ranks import free_ports

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


WAITING = """
from dflash_mlx.distributed import group
group.EXIT_SECONDS = 0.0
group.JOIN = {join}
group.world()
"""


@pytest.mark.parametrize(
    ("rank", "join", "said"),
    [
        (0, 60, "the launcher of this rank has ended.\n"),
        (1, 60, "the launcher of this rank has ended.\n"),
        (1, 1, "not all ranks have come within 1 seconds.\n"),
    ],
)
def test_a_rank_that_waits_in_mlx_is_ended(tmp_path: Path, rank: int, join: int, said: str) -> None:
    """MLX holds the GIL while it waits for other ranks, so no thread of the rank could end it."""
    ports = free_ports(2)
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
    env = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts), "DFLASH_LAUNCHER": "0"}
    pipes: Any = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    line = [sys.executable, "-c", WAITING.format(join=join)]
    with subprocess.Popen(line, env={**os.environ, **env}, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        if said.startswith("the launcher"):
            meet(rank, ports[0])
            process.stdin.close()
        assert process.wait(60) == -signal.SIGTERM
        assert process.stderr.read() == said  # which also ends with the watcher


def meet(rank: int, port: int) -> None:
    """Be the neighbour that a rank's MLX waits for first: rank 0 accepts, rank 1 connects."""
    if rank:
        with socket.create_server(("127.0.0.1", port)) as server:
            server.settimeout(60)
            server.accept()[0].close()
        return
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port)).close()
        time.sleep(0.02)
    pytest.fail("rank 0 does not listen")
