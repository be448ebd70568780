"""Ctrl-C while the command `dflash` is imported, and while it ends: no traceback.

Imports only what every Python process has loaded by then, so that hardly a moment comes before it.
A program that imports the package keeps its own Ctrl-C.
"""

import os
import sys
from _signal import SIG_IGN, SIGINT, getsignal, signal  # pyright: ignore[reportMissingImports]

MODULES = ("dflash_mlx", "dflash_mlx.cli")  # that `python -m` starts


def is_command() -> bool:
    """Whether this process is `dflash`, or `python -m` of one of its modules."""
    if sys.argv[:1] == ["-m"]:  # so it is while the packages of such a module are imported
        flag = sys.orig_argv.index("-m") if "-m" in sys.orig_argv else -1
        return flag >= 0 and sys.orig_argv[flag + 1 : flag + 2] in [[name] for name in MODULES]
    return bool(sys.argv) and os.path.basename(sys.argv[0]) == "dflash"


def end_at_interrupt() -> None:
    """Ctrl-C ends the process with exit code 130 from now on, unless it is ignored.

    Not by an exception: some that are raised within an import are printed and forgotten.
    """
    if getsignal(SIGINT) is not SIG_IGN:
        signal(SIGINT, lambda *_: os._exit(130))
