"""Keeps a Mac awake while a command runs for long."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def awake() -> Iterator[None]:
    """Keep macOS from sleeping while idle, by its `caffeinate`. Does nothing on other systems."""
    program = shutil.which("caffeinate") if sys.platform == "darwin" else None
    if program is None:
        yield
        return
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    # With -w it ends also when this process is killed. Ctrl-C is not for it: a run may go on.
    line = [program, "-i", "-w", str(os.getpid())]
    with subprocess.Popen(line, start_new_session=True, **pipes) as process:
        try:
            yield
        finally:
            process.terminate()
