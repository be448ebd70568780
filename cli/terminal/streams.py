"""The standard streams at the start of the program, which a caller may have closed."""

import os
import sys


def open_closed_streams() -> None:
    """Give every closed standard stream its number again, so that no other file gets it.

    What goes to such a stderr is lost; a write to such a stdout raises OSError, as the answer would
    be lost. A closed stdin stays None.
    """
    streams = ((sys.stdin, os.O_RDONLY), (sys.stdout, os.O_RDONLY), (sys.stderr, os.O_WRONLY))
    for number, (stream, flags) in enumerate(streams):
        if stream is None:
            empty = os.open(os.devnull, flags)
            if empty != number:
                os.dup2(empty, number)
                os.close(empty)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
