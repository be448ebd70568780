"""The end of `dflash launch`, however it comes: each rank notices it by a pipe, and ends too.

Knows the pipe and signals; does not know ranks' work.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from .places import LAUNCHER

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
