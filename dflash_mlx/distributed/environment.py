"""What the launcher tells a rank in its environment. Does not import MLX."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"

# Environment variables of MLX's launchers
RANK = "MLX_RANK"
RING = "MLX_HOSTFILE"
MESH = "MLX_JACCL_COORDINATOR"
DEVICES = "MLX_IBV_DEVICES"
AS_RING = "MLX_JACCL_RING"

# Environment variables of `dflash launch`
OWN_INPUT = "DFLASH_LAUNCHED"  # set if rank 0 has the terminal of the launcher
LAUNCHER = "DFLASH_LAUNCHER"  # the file descriptor of a pipe that ends with the launcher
LEADER = "DFLASH_LEADER"  # the address of rank 0's machine, as seen from this one
SPLIT = "DFLASH_SPLIT"  # how the target is split: "heads" (of every layer) or "layers"


def leader_host() -> str | None:
    """The address of rank 0 in the launcher's files; None for a process that is not a rank."""
    if RANK not in os.environ:
        return None
    if coordinator := os.environ.get(MESH):
        return coordinator.rpartition(":")[0].strip("[]")
    with suppress(OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        with open(os.environ[RING], encoding="utf-8") as file:
            ranks = json.load(file)
        if len(ranks) > 1:
            return ranks[0][0].rpartition(":")[0].strip("[]")
    return None


def leader_hosts() -> list[str]:
    """Addresses to try for reaching rank 0, in this order; empty for a process that is not a rank.

    In a ring of three or more machines, the host file may only have the addresses of the cables
    between neighbours.
    """
    host = leader_host()
    return [] if host is None else [*dict.fromkeys([os.environ.get(LEADER) or host, host])]


def own_ports() -> list[str]:
    """The ports at which MLX listens in this rank."""
    rank = int(os.environ[RANK])
    if coordinator := os.environ.get(MESH):
        addresses = [] if rank else [coordinator]
    else:
        with open(os.environ[RING], encoding="utf-8") as file:
            addresses = json.load(file)[rank]
    return [address.rpartition(":")[2] for address in addresses]


def split() -> str:
    """How the target is split: "heads" or "layers". Rank 0 sends it to the other ranks."""
    return os.environ.get(SPLIT, "heads")


def wiring() -> str:
    """The backend and the machines that it connects, in order, as text.

    Ports are left out, because they change with each start.
    """
    name, backend = (RING, "ring") if RING in os.environ else (DEVICES, "jaccl")
    parts: list[object] = [backend, os.environ.get(AS_RING, ""), leader_host()]
    with suppress(OSError, ValueError, KeyError), open(os.environ[name], encoding="utf-8") as file:
        parts.append(re.sub(r":\d+(?=\")", "", json.dumps(json.load(file))))
    return repr(parts)


def input_is_shared() -> bool:
    """Whether standard input is a pipe of `mlx.launch`, which never ends."""
    return RANK in os.environ and OWN_INPUT not in os.environ


# Ending with the launcher

JOIN = 60.0  # seconds for all ranks to join


def start_watcher(join: float, patience: float, launcher: int | None) -> Callable[[], None]:
    """Start a process that ends this one with a sentence; call the result when all have joined.

    It does so if that call does not come within `join` seconds; and after the launcher has ended,
    if this process then does not end by itself within `patience` seconds. launcher: the file
    descriptor of a pipe that ends with the launcher, if there is one.
    """
    read, write = os.pipe()  # ends with this process
    arguments = [str(os.getpid()), str(join), str(patience)]
    pipes = []
    if launcher is not None:
        pipes.append(os.dup(launcher))  # it may be standard input
        arguments.append(str(pipes[0]))
    subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("watcher.py")), *arguments],
        env={},
        stdin=read,
        stdout=subprocess.DEVNULL,
        pass_fds=pipes,
        start_new_session=True,  # Ctrl-C in the terminal is not for it
    )
    for pipe in (read, *pipes):
        os.close(pipe)

    def joined() -> None:
        with suppress(OSError):  # the watcher has just ended this process
            os.write(write, b".")

    return joined
