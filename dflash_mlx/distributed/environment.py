"""What the launcher tells a rank in its environment. Does not import MLX."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

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

EXIT_SECONDS = 4.0  # for rank 0 to save its state and to end the other ranks
LAUNCHER_ENDED = "the launcher of this rank has ended."


def watch_launcher(rank: int, end: Callable[[str], None]) -> None:
    """Start a thread that calls `end` with a message after the launcher has ended, if there is one.

    Rank 0 gets a SIGTERM before. It then ends the other ranks, as at the end of any command.
    """
    if LAUNCHER not in os.environ:
        return
    pipe = int(os.environ[LAUNCHER])

    def wait() -> None:
        with suppress(OSError):
            while os.read(pipe, 64):
                pass
        if not rank:
            with suppress(OSError):  # its terminal may be gone
                os.write(2, f"{LAUNCHER_ENDED}\n".encode())
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(EXIT_SECONDS)
        end(LAUNCHER_ENDED)

    Thread(target=wait, name="dflash-launcher", daemon=True).start()
