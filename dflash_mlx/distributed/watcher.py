"""Ends a rank from outside: a program of its own, which `environment.start_watcher` starts.

Threads of the rank cannot do it: `mx.distributed.init` holds the GIL while it waits for others.

    python watcher.py RANK JOIN PATIENCE [LAUNCHER]

RANK: its process id. JOIN: seconds for all ranks to join. PATIENCE: seconds for the rank to end by
itself after its launcher has ended. LAUNCHER: the file descriptor of a pipe that ends with the
launcher. Standard input is a pipe from the rank: a byte says that all ranks have joined, the end of
the pipe that the rank has ended.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from select import select

EXIT_SECONDS = 4.0  # for a rank to save its state after a SIGTERM; then it is killed
LAUNCHER_ENDED = "the launcher of this rank has ended."


def reason_to_end(join: float, patience: float, launcher: int | None) -> tuple[str, float] | None:
    """Wait for a reason to end the rank: a sentence, and its patience. None if it has ended."""
    deadline: float | None = time.monotonic() + join
    pipes = [0] if launcher is None else [0, launcher]
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select(pipes, [], [], left)
        if 0 in ready:
            if not os.read(0, 64):
                return None
            deadline = None
        elif launcher in ready:
            if not os.read(launcher, 64):
                return LAUNCHER_ENDED, patience
        else:
            return f"not all ranks have come within {join:.0f} seconds.", 0.0


def ends_within(seconds: float) -> bool:
    """Whether the rank ends within some seconds."""
    deadline = time.monotonic() + seconds
    while select([0], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not os.read(0, 64):
            return True
    return False


def main(rank: int, join: float, patience: float, launcher: int | None = None) -> None:
    """Watch the rank, and end it with a sentence if there is a reason."""
    reason = reason_to_end(join, patience, launcher)
    if reason is None or ends_within(reason[1]):
        return
    with suppress(OSError):  # the terminal may be gone
        os.write(2, f"{reason[0]}\n".encode())
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(rank, signal.SIGTERM)
        if not ends_within(EXIT_SECONDS):
            os.kill(rank, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:]))
