"""The terminal on standard input: key by key and unseen, or by lines as the shell has it.

Knows terminal flags and the signals that end a program, not what is typed.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Flags = tuple[int, int]  # those of the input and the local ones


@contextmanager
def unseen_keys() -> Iterator[None]:
    """Each key can be read at once and is not echoed; Enter is \\r and Ctrl-J is \\n.

    SIGTERM and a closed window (SIGHUP, unless ignored) end the program in order, the terminal
    restored.
    """
    from termios import ECHO, ICANON, ICRNL

    ends = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    previous = {number: signal.signal(number, exit_on_signal) for number in ends}
    try:
        with changed_flags(lambda flags: (flags[0] & ~ICRNL, flags[1] & ~(ECHO | ICANON))):
            yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def seen_lines() -> Iterator[None]:
    """The terminal as a shell and line editors such as ed want it."""
    from termios import ECHO, ICANON, ICRNL

    with changed_flags(lambda flags: (flags[0] | ICRNL, flags[1] | ECHO | ICANON)):
        yield


def terminal_as_stdin() -> bool:
    """Make the terminal on stdout standard input, too; False when there is none."""
    try:
        # Not /dev/tty: macOS cannot wait for keys there.
        terminal = os.open(os.ttyname(sys.stdout.fileno()), os.O_RDWR | os.O_NOCTTY)
    except (OSError, ValueError):
        return False
    os.dup2(terminal, 0)
    os.close(terminal)
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="replace", closefd=False)
    return True


def exit_on_signal(number: int, _: Any) -> None:
    """Exit with the code of a signal."""
    raise SystemExit(128 + number)


@contextmanager
def changed_flags(change: Callable[[Flags], Flags]) -> Iterator[None]:
    """Change the flags of the terminal on standard input, and restore them at the end."""
    import termios

    try:
        original = termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):  # not a terminal
        yield
        return
    changed = [*original]
    changed[0], changed[3] = change((original[0], original[3]))
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, original)
