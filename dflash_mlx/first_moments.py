"""Ctrl-C shows no traceback while the command `dflash` is imported, and while it ends.

This imports only modules that every Python process has loaded, so that it takes effect at once. A
program that imports the package keeps its own Ctrl-C.
"""

import os
import sys
from _signal import SIG_IGN, SIGINT, getsignal, signal  # pyright: ignore[reportMissingImports]

MODULES = ("dflash_mlx", "dflash_mlx.cli")  # that `python -m` can start


def is_command() -> bool:
    """Whether this process is `dflash`, or `python -m` of one of its modules."""
    if sys.argv[:1] == ["-m"]:  # while Python imports the packages of such a module
        flag = sys.orig_argv.index("-m") if "-m" in sys.orig_argv else -1
        return flag >= 0 and sys.orig_argv[flag + 1 : flag + 2] in [[name] for name in MODULES]
    return bool(sys.argv) and os.path.basename(sys.argv[0]) == "dflash"


def end_at_interrupt() -> None:
    """From now on, end the process with exit code 130 at Ctrl-C, unless Ctrl-C is ignored.

    An exception would not do: Python prints and drops some that are raised within an import.
    """
    if getsignal(SIGINT) is not SIG_IGN:
        signal(SIGINT, lambda *_: os._exit(130))
