"""Reads keys in a thread during an answer: queued messages and the draft of the next prompt."""

import codecs
import os
import re
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import RLock, Thread

from .live_region import truncate
from .output import strip_control

# Prompts of several lines, with keys that every terminal has

QUOTES = '"""'


def continued(text: str) -> str | None:
    """The text with a newline if Enter continues it, otherwise None.

    Enter continues a text after a backslash, which is removed. It also continues a text that begins
    with quotes until they are closed.
    """
    if text.lstrip().startswith(QUOTES) and text.count(QUOTES) == 1:
        return text + "\n"
    return text[:-1] + "\n" if text.endswith("\\") else None


def unquoted(text: str) -> str:
    inner = text.strip()
    if len(inner) >= 2 * len(QUOTES) and inner.startswith(QUOTES) and inner.endswith(QUOTES):
        return inner[len(QUOTES) : -len(QUOTES)].strip("\n")
    return text


# Keys typed during an answer

PASTE_BEGINS = "\x1b[200~"
PASTE_ENDS = "\x1b[201~"
# Shift-Enter as kitty's protocol and xterm's modifyOtherKeys send it.
SHIFT_ENTER = ("\x1b[13;2u", "\x1b[27;2;13~")
# A paste, a sequence of control characters, Alt and a key, a key, or a run of letters.
KEY = re.compile(
    rf"{re.escape(PASTE_BEGINS)}(?P<paste>.*?){re.escape(PASTE_ENDS)}"
    rf"|(?!{re.escape(PASTE_BEGINS)})\x1b\[[0-9;?<=>]*[ -/]*[@-~]"
    r"|\x1bO.|\x1b[^\[O]|[\x00-\x1a\x1c-\x1f\x7f]|[^\x00-\x1f\x7f]+",
    re.DOTALL,
)
UP = ("\x1b[A", "\x1bOA", "\x10")
NEW_LINE = ("\n", "\x1b\r", *SHIFT_ENTER)
LAST_WORD = re.compile(r"\S*\s*\Z")


class TypeAhead:
    """The queued messages and a draft. Any thread may call the methods.

    leaves: whether Ctrl-D was typed after the messages. held: whether messages come back to the
    prompt instead of being sent.
    """

    def __init__(self) -> None:
        self.messages: deque[str] = deque()
        self.draft = ""
        self.leaves = False
        self.held = False
        self._rest = ""  # an incomplete key or paste
        self._lock = RLock()

    # Keys -----------------------------------------------------------------------------------------

    @property
    def in_paste(self) -> bool:
        return self._rest.startswith(PASTE_BEGINS)

    @property
    def waits(self) -> bool:
        """Whether a key or a paste is incomplete."""
        return bool(self._rest)

    def feed(self, text: str, *, complete: bool = False) -> None:
        """Process typed text. With `complete` no more follows, so the start of a key is dropped."""
        with self._lock:
            text = self._rest + text
            position = 0
            while match := KEY.match(text, position):
                position = match.end()
                self._press(match)
            self._rest = text[position:]
            if complete and not self.in_paste:
                self._rest = ""

    def _press(self, match: re.Match[str]) -> None:
        key = match.group()
        if (pasted := match["paste"]) is not None:
            self.draft += re.sub(r"\r\n?", "\n", pasted)
        elif key == "\r":
            self._enter()
        elif key in NEW_LINE:
            self.draft += "\n"
        elif key in UP:
            self.take_back()
        elif key in ("\x7f", "\b"):
            self.draft = self.draft[:-1]
        elif key == "\x15":  # Ctrl-U
            self.draft = ""
        elif key in ("\x17", "\x1b\x7f"):  # Ctrl-W, Alt-Backspace
            self.draft = LAST_WORD.sub("", self.draft)
        elif key == "\x04" and not self.draft:
            self.leaves = True
        elif key.isprintable():
            self.draft += key

    def _enter(self) -> None:
        if (text := continued(self.draft)) is not None:
            self.draft = text
        elif self.draft.strip():
            self.messages.append(self.draft)
            self.draft = ""

    # Messages -------------------------------------------------------------------------------------

    def take_back(self) -> None:
        """Make the last queued message the draft, if the draft is empty."""
        with self._lock:
            self.leaves = False
            if self.messages and not self.draft:
                self.draft = self.messages.pop()

    def hold(self) -> int:
        """Send no more messages: they come back to the prompt one by one. Returns their number."""
        with self._lock:
            self.held = bool(self.messages)
            self.leaves = False
            return len(self.messages)

    def drop(self) -> None:
        """Drop all messages, but not the draft."""
        with self._lock:
            self.messages.clear()
            self.held = False

    def next_message(self) -> str | None:
        """The next message to send; None if there is none or they are held."""
        with self._lock:
            return self.messages.popleft() if self.messages and not self.held else None

    def take_draft(self) -> str:
        """The text that the next prompt begins with: a held message, or the draft."""
        with self._lock:
            if self.held and self.messages:
                return self.messages.popleft()
            self.held = False
            draft = self.draft
            self.draft = ""
            return draft

    # Lines ----------------------------------------------------------------------------------------

    def lines(self, columns: int, rows: int, *, ascii: bool = False) -> list[str]:
        """The queued messages and the draft, in at most `rows` dim lines."""
        with self._lock:
            texts = ["queued  " + one_row(message) for message in self.messages]
            draft = self.draft
            leaves = self.leaves
        if leaves:
            texts.append("queued  leave")
        lines = []
        if draft:
            rows -= 1
            cursor = "_" if ascii else "█"
            arrow = "> " if ascii else "› "
            lines = [arrow + end_of(one_row(draft), columns - 4) + cursor]
        if texts and rows > 0:
            hint = "  (Up takes it back)"
            if not draft and len(texts[-1]) + len(hint) + 2 <= columns:
                texts[-1] += hint
            left_out = max(len(texts) - rows, 0)
            if left_out and rows > 1:
                texts = [f"queued  {left_out + 1} more, and", *texts[left_out + 1 :]]
            else:
                texts = texts[left_out:]
            lines = [*(truncate(f"  {text}", columns) for text in texts), *lines]
        return [f"\x1b[2m{line}\x1b[0m" for line in lines]


def one_row(text: str) -> str:
    return strip_control(text.replace("\t", " ")).replace("\n", " / ")


def end_of(text: str, columns: int) -> str:
    from rich.cells import get_character_cell_size

    used = 0
    start = len(text)
    while start and (used := used + get_character_cell_size(text[start - 1])) <= columns:
        start -= 1
    return text[start:]


KEY_TIMEOUT = 0.1  # seconds to wait for the rest of a key's sequence
PASTE_TIMEOUT = 1.0  # seconds to wait for the rest of a paste
# Bracketed paste: the terminal puts marks around pasted text.
MARKS_ON = "\x1b[?2004h"
MARKS_OFF = "\x1b[?2004l"


class KeyReader:
    """Feeds a `TypeAhead` from standard input, which must be in cbreak mode.

    on_change: called after keys. write: writes to the terminal to switch the marks of pastes; None
    if it gets no escape codes.
    """

    def __init__(
        self,
        typed: TypeAhead,
        on_change: Callable[[], None],
        write: Callable[[str], None] | None = None,
    ):
        self.typed = typed
        self._on_change = on_change
        self._write = write
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._wake = -1  # writing end of the pipe that ends the thread
        self._thread: Thread | None = None

    def take_echoed(self) -> bool:
        """Process keys typed and echoed before cbreak mode; returns whether there were any.

        The terminal has turned their Enters into \\n.
        """
        keys = sys.stdin.fileno()
        if not select.select([keys], [], [], 0)[0]:
            return False
        text = self._decoder.decode(os.read(keys, 65536))
        self.typed.feed(text.replace("\n", "\r"))
        return True

    @contextmanager
    def reading(self, on: bool = True) -> Iterator[None]:
        """Read keys inside the context, or leave them to another reader."""
        before = self._thread is not None
        self._switch(on)
        try:
            yield
        finally:
            self._switch(before)

    def paused(self) -> AbstractContextManager[None]:
        return self.reading(False)

    def mark_pastes(self, on: bool = True) -> None:
        """Turn the marks of pasted text on or off, if keys are being read."""
        if self._write is not None and self._thread is not None:
            self._write(MARKS_ON if on else MARKS_OFF)

    def end_marks(self) -> None:
        """Turn the marks off, whoever turned them on: a prompt may end before it can."""
        if self._write is not None:
            with suppress(OSError):  # the terminal is gone
                self._write(MARKS_OFF)

    def _switch(self, on: bool) -> None:
        if on and self._thread is None:
            woken, self._wake = os.pipe()
            self._thread = Thread(target=self._read, args=(sys.stdin.fileno(), woken), daemon=True)
            self.mark_pastes(True)
            self._thread.start()
        elif not on and self._thread is not None:
            os.close(self._wake)
            self._thread.join()
            self.end_marks()
            self._thread = None

    def _read(self, keys: int, woken: int) -> None:
        """Read until the pipe is closed and a paste that has begun is complete."""
        timeout = None
        ended = False
        try:
            while True:
                sources = [keys] if ended else [keys, woken]
                ready = select.select(sources, [], [], timeout)[0]
                ended = ended or woken in ready
                # The shell stops a background job that reads its terminal.
                if keys in ready and not in_foreground(keys):
                    time.sleep(KEY_TIMEOUT)
                elif keys in ready:
                    data = os.read(keys, 65536)
                    if not data:
                        return  # the terminal is gone
                    self.typed.feed(self._decoder.decode(data))
                    self._on_change()
                elif not ready:
                    self.typed.feed("", complete=True)
                if ended and not (self.typed.in_paste and ready):
                    return
                timeout = None
                if self.typed.waits or ended:
                    timeout = PASTE_TIMEOUT if self.typed.in_paste else KEY_TIMEOUT
        except OSError:  # the terminal is gone
            return
        finally:
            os.close(woken)


def in_foreground(terminal: int) -> bool:
    """Whether this program may read the terminal; the shell stops a background job that does."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return True  # not the controlling terminal, so nobody stops this program
