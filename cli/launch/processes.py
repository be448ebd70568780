"""The processes of the ranks that `dflash launch` has started: how they end, or are ended.

Knows processes and signals, no models.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from dflash_mlx.errors import DFlashError

GOODBYE = 1.5  # seconds that the ranks have to end by themselves when one of them has ended
LOOK = 0.2  # seconds between looks
STOPPED = 32  # looks at a stopped rank until it is lost; ranks that have joined see it before
Process = subprocess.Popen[bytes]


def end_of(process: Process, others: Sequence[Process]) -> int:
    """Wait for rank 0: its exit code. Where a rank has failed, rank 0 is made to end.

    It has heard of that by itself, unless it is stopped or still waits for all to come.
    """
    ranks = [process, *others]
    stopped, reason = [0] * len(ranks), ""
    while not reason and not ended(process, LOOK):
        stopped = [looks_stopped(*pair) for pair in zip(ranks, stopped, strict=True)]
        reason = failure(ranks, stopped)
    if reason and not ended(process, 0 if max(stopped) > STOPPED else GOODBYE, signal.SIGCONT):
        if not ended(process, GOODBYE, signal.SIGTERM):
            process.kill()
            process.wait()
        raise DFlashError(reason, hint="start all ranks again")
    if process.returncode in (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV):
        name = signal.Signals(-process.returncode).name
        raise DFlashError(f"rank 0 was ended by {name}.", hint="start all ranks again")
    return process.returncode


def failure(ranks: Sequence[Process], stopped: Sequence[int]) -> str:
    """What is wrong with a rank that has failed, or with one stopped for so many looks; or ""."""
    for rank, (one, looks) in enumerate(zip(ranks, stopped, strict=True)):
        if rank and (code := one.poll()):
            return f"rank {rank} has ended with the exit code {code}, and rank 0 did not notice."
        if looks > STOPPED:
            return f"rank {rank} was stopped for {STOPPED * LOOK:.0f} seconds."
    return ""


def looks_stopped(process: Process, before: int) -> int:
    """For how many looks a process of this machine has been stopped, after so many before this."""
    if process.poll() is not None:
        return 0
    pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
    if not pid:  # no news
        return before + 1 if before else 0
    if os.WIFSTOPPED(status):
        return 1
    if not os.WIFCONTINUED(status):  # it has ended between the two calls
        process.returncode = os.waitstatus_to_exitcode(status)
    return 0


def ended(process: Process, seconds: float, by: int | None = None) -> bool:
    """Whether a process ends in time, after a signal if one is given."""
    if by is not None:
        process.send_signal(by)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


@contextmanager
def leaving_signals_to(process: Process) -> Iterator[None]:
    """Rank 0 has this terminal too, and its Ctrl-C; it is told of SIGTERM and of a hangup."""
    handlers = {
        signal.SIGINT: signal.SIG_IGN,
        signal.SIGTERM: lambda *_: process.terminate(),
        signal.SIGHUP: lambda *_: process.terminate(),
    }
    before = {number: signal.signal(number, one) for number, one in handlers.items()}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


def end_all(processes: Sequence[Process]) -> None:
    """Give the other ranks a little time, all together, and then end them."""
    until = time.monotonic() + GOODBYE
    for process in processes:
        if not ended(process, max(0.0, until - time.monotonic())):
            process.kill()
            process.wait()
