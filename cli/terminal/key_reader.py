"""A thread that reads what is typed while nobody else reads the terminal.

Knows standard input and its bytes, not what keys mean.
"""

import codecs
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from .type_ahead import TypeAhead

KEY_TIMEOUT = 0.1  # seconds within which the rest of a key's sequence comes
PASTE_TIMEOUT = 1.0  # seconds that the rest of a paste is waited for
MARKS_ON, MARKS_OFF = "\x1b[?2004h", "\x1b[?2004l"  # of pastes


class KeyReader:
    """Feeds a `TypeAhead` from standard input, which must give its keys at once.

    `changed` is called after keys; `write` switches the marks of pastes, where the terminal may be
    told to make them.
    """

    def __init__(
        self,
        typed: TypeAhead,
        changed: Callable[[], None],
        write: Callable[[str], None] | None = None,
    ):
        self.typed = typed
        self._changed, self._write = changed, write
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._wake: int | None = None  # writing end of the pipe that ends the thread
        self._thread: Thread | None = None

    def take_echoed(self) -> bool:
        """Take in what was typed and echoed before the keys were unseen; whether there was any.

        The terminal has made \\n of its Enters.
        """
        keys = sys.stdin.fileno()
        if not select.select([keys], [], [], 0)[0]:
            return False
        text = self._decoder.decode(os.read(keys, 65536))
        self.typed.feed(text.replace("\n", "\r"))
        return True

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read inside."""
        self._start()
        try:
            yield
        finally:
            self._stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Somebody else reads the terminal inside."""
        running = self._thread is not None
        self._stop()
        try:
            yield
        finally:
            if running:
                self._start()

    def mark_pastes(self, on: bool = True) -> None:
        """Ask the terminal to mark what is pasted, or not to; nothing while nobody reads."""
        if self._write is not None and self._thread is not None:
            self._write(MARKS_ON if on else MARKS_OFF)

    def _start(self) -> None:
        woken, self._wake = os.pipe()
        self._thread = Thread(target=self._read, args=(sys.stdin.fileno(), woken), daemon=True)
        self.mark_pastes(True)
        self._thread.start()

    def _stop(self) -> None:
        if self._thread is None or self._wake is None:
            return
        os.close(self._wake)
        self._thread.join()
        with suppress(OSError):  # the terminal is gone
            self.mark_pastes(False)
        self._thread = self._wake = None

    def _read(self, keys: int, woken: int) -> None:
        """Until the pipe is closed, and a paste that has begun is there."""
        waits, ended = None, False
        try:
            while True:
                sources = [keys] if ended else [keys, woken]
                ready = select.select(sources, [], [], waits)[0]
                ended = ended or woken in ready
                if keys in ready and not in_foreground(keys):
                    time.sleep(KEY_TIMEOUT)
                elif keys in ready:
                    data = os.read(keys, 65536)
                    if not data:
                        return  # the terminal is gone
                    self.typed.feed(self._decoder.decode(data))
                    self._changed()
                elif not ready:
                    self.typed.feed("", all_there=True)
                if ended and not (self.typed.in_paste and ready):
                    return
                waits = PASTE_TIMEOUT if self.typed.in_paste else KEY_TIMEOUT
                waits = waits if self.typed.waits or ended else None
        except OSError:  # the terminal is gone
            return
        finally:
            os.close(woken)


def in_foreground(terminal: int) -> bool:
    """Whether this program may read the terminal: a job in the background is stopped for that."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return True  # no terminal of this session's: whoever gave it lets us read
