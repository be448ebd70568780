"""Which rank this process is, from the environment that the launcher sets; imports no MLX."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

LOOPBACK = "127.0.0.1"
OWN_INPUT = "DFLASH_LAUNCHED"  # set where rank 0 has the terminal of whoever launched it
LAUNCHER = "DFLASH_LAUNCHER"  # the file descriptor of a pipe that ends with `dflash launch`
LEADER = "DFLASH_LEADER"  # by which address rank 0's machine has reached this one
SPLIT = "DFLASH_SPLIT"  # what the ranks share: every layer's heads, or the layers


def leader_host() -> str | None:
    """The address of rank 0 that all ranks reach; None for a process that is no rank of a group."""
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
    """Addresses at which this rank may reach rank 0, the likeliest first; [] as `leader_host`.

    In a ring of three or more the host file may have only those of cables to a neighbour.
    """
    host = leader_host()
    return [] if host is None else [*dict.fromkeys([os.environ.get(LEADER) or host, host])]


def split() -> str:
    """What the ranks share, as rank 0 was told: "heads" or "layers"."""
    return os.environ.get(SPLIT, "heads")


def wiring() -> str:
    """The backend and the machines that it connects, in order, for a process that is a rank.

    Ports are left out: they are others at each start.
    """
    name, backend = (RING, "ring") if RING in os.environ else (DEVICES, "jaccl")
    parts: list[object] = [backend, os.environ.get(AS_RING, ""), leader_host()]
    with suppress(OSError, ValueError, KeyError), open(os.environ[name], encoding="utf-8") as file:
        parts.append(re.sub(r":\d+(?=\")", "", json.dumps(json.load(file))))
    return repr(parts)


def input_is_shared() -> bool:
    """Whether standard input is a pipe of `mlx.launch`, which every rank has and never ends."""
    return RANK in os.environ and OWN_INPUT not in os.environ


# The end of `dflash launch`, however it comes

GRACE = 4.0  # seconds in which rank 0 saves what it has, and says goodbye to the others
GONE = "the launcher of this rank has ended."


def watch_launcher(rank: int, end: Callable[[str], None]) -> None:
    """From now on call `end` with a sentence when the launcher has ended, if there is one.

    Rank 0 gets a SIGTERM first, and the others its goodbye, which ends them in peace.
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
                os.write(2, f"{GONE}\n".encode())
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        end(GONE)

    Thread(target=wait, name="dflash-launcher", daemon=True).start()


# What a launcher tells a process of its group in the environment

RANK = "MLX_RANK"
RING = "MLX_HOSTFILE"
MESH = "MLX_JACCL_COORDINATOR"
DEVICES = "MLX_IBV_DEVICES"
AS_RING = "MLX_JACCL_RING"
