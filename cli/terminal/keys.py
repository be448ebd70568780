"""A thread that reads what is typed while nobody else reads the terminal."""

import codecs
import os
import re
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock, Thread
from types import FrameType, TracebackType
from typing import Any

from .live_region import truncate
from .output import strip_control

# Prompts of several lines from keys that every terminal has

QUOTES = '"""'


def continued(text: str) -> str | None:
    """The text with another line begun, where Enter after it means that; otherwise None.

    A backslash at the end becomes the new line; a text that begins with quotes goes on until the
    next ones.
    """
    if opens_block(text):
        return text + "\n"
    return text[:-1] + "\n" if text.endswith("\\") else None


def opens_block(text: str) -> bool:
    """Whether a text begins with quotes that no others have closed yet."""
    return text.lstrip().startswith(QUOTES) and text.count(QUOTES) == 1


def unquoted(text: str) -> str:
    """The text without the quotes around it."""
    inner = text.strip()
    if len(inner) >= 2 * len(QUOTES) and inner.startswith(QUOTES) and inner.endswith(QUOTES):
        return inner[len(QUOTES) : -len(QUOTES)].strip("\n")
    return text


# What is typed while no prompt is read

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
    """Messages in the order they were sent, a draft, and whether Ctrl-D was typed after them.

    Any thread may call its methods. `held`: messages come back to the prompt instead of being sent.
    """

    def __init__(self) -> None:
        self.messages: deque[str] = deque()
        self.draft = ""
        self.leaves = self.held = False
        self._rest = ""  # the beginning of a key or of a paste
        self._lock = RLock()

    # Keys -----------------------------------------------------------------------------------------

    @property
    def in_paste(self) -> bool:
        """Whether the end of a paste has yet to come."""
        return self._rest.startswith(PASTE_BEGINS)

    @property
    def waits(self) -> bool:
        """Whether the rest of a key or of a paste has yet to come."""
        return bool(self._rest)

    def feed(self, text: str, *, all_there: bool = False) -> None:
        """Take in what was typed; `all_there`: what looks like the start of a key is one."""
        with self._lock:
            text = self._rest + text
            at = 0
            while found := KEY.match(text, at):
                at = found.end()
                self._press(found)
            self._rest = text[at:]
            if all_there and not self.in_paste:
                self._rest = ""

    def _press(self, found: re.Match[str]) -> None:
        key = found.group()
        if (pasted := found["paste"]) is not None:
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
        if (more := continued(self.draft)) is not None:
            self.draft = more
        elif self.draft.strip():
            self.messages.append(self.draft)
            self.draft = ""

    # Messages -------------------------------------------------------------------------------------

    def take_back(self) -> None:
        """Make the message that was sent last the draft, if nothing else is in it."""
        with self._lock:
            self.leaves = False
            if self.messages and not self.draft:
                self.draft = self.messages.pop()

    def hold(self) -> int:
        """From now on messages come back to the prompt, one after another; how many there are."""
        with self._lock:
            self.held = bool(self.messages)
            self.leaves = False
            return len(self.messages)

    def drop(self) -> None:
        """Forget all messages, not the draft."""
        with self._lock:
            self.messages.clear()
            self.held = False

    def next_message(self) -> str | None:
        """The next message to send, if there is one and it need not be seen first."""
        with self._lock:
            return self.messages.popleft() if self.messages and not self.held else None

    def take_draft(self) -> str:
        """What the next prompt begins with: a message that is held, or the draft."""
        with self._lock:
            if self.held and self.messages:
                return self.messages.popleft()
            self.held = False
            draft = self.draft
            self.draft = ""
            return draft

    # Lines ----------------------------------------------------------------------------------------

    def lines(self, columns: int, rows: int, *, ascii: bool = False) -> list[str]:
        """What is waiting, in at most `rows` dim lines; none when nothing was typed."""
        with self._lock:
            texts = ["queued  " + one_row(message) for message in self.messages]
            draft = self.draft
            leaves = self.leaves
        if leaves:
            texts.append("queued  leave")
        shown = []
        if draft:
            rows -= 1
            cursor = "_" if ascii else "█"
            arrow = "> " if ascii else "› "
            shown = [arrow + end_of(one_row(draft), columns - 4) + cursor]
        if texts and rows > 0:
            hint = "  (Up takes it back)"
            if not draft and len(texts[-1]) + len(hint) + 2 <= columns:
                texts[-1] += hint
            left_out = max(len(texts) - rows, 0)
            if left_out and rows > 1:
                texts = [f"queued  {left_out + 1} more, and", *texts[left_out + 1 :]]
            else:
                texts = texts[left_out:]
            shown = [*(truncate(f"  {text}", columns) for text in texts), *shown]
        return [f"\x1b[2m{line}\x1b[0m" for line in shown]


def one_row(text: str) -> str:
    """A text on one line, without what a terminal would obey."""
    return strip_control(text.replace("\t", " ")).replace("\n", " / ")


def end_of(text: str, columns: int) -> str:
    """The last characters of a text that fit in a number of columns."""
    from rich.cells import get_character_cell_size

    used = 0
    at = len(text)
    while at and (used := used + get_character_cell_size(text[at - 1])) <= columns:
        at -= 1
    return text[at:]


KEY_TIMEOUT = 0.1  # seconds within which the rest of a key's sequence comes
PASTE_TIMEOUT = 1.0  # seconds that the rest of a paste is waited for
# Bracketed paste: the terminal puts marks around pasted text.
MARKS_ON = "\x1b[?2004h"
MARKS_OFF = "\x1b[?2004l"


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
        self._changed = changed
        self._write = write
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
        waits = None
        ended = False
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


# Handles Ctrl-C


class LeaveChat(Exception):
    """Raised to leave a chat; `code` is the exit code."""

    def __init__(self, code: int = 0):
        super().__init__()
        self.code = code


class Interrupt:
    """Catches SIGINT inside its context; `requested` and `requested_twice` count Ctrl-C.

    A second Ctrl-C counts only within `window` seconds of the one before. With `terminate` SIGTERM
    counts as Ctrl-C does. A signal that was ignored before stays ignored.
    """

    def __init__(self, window: float = float("inf"), *, terminate: bool = False) -> None:
        self.requested = self.requested_twice = False
        self.last_at = float("-inf")  # time.monotonic of the last Ctrl-C
        self._window = window
        self._deferred = False
        self._signals = (signal.SIGINT, signal.SIGTERM) if terminate else (signal.SIGINT,)
        self._previous_handlers: dict[int, Any] = {}
        self.exit_code = 0  # that of a program which the last signal ended; 0 without one

    def __enter__(self) -> "Interrupt":
        for number in self._signals:
            if signal.getsignal(number) is not signal.SIG_IGN:  # a background job's SIGINT
                self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt after Ctrl-C."""
        if self.requested:
            raise KeyboardInterrupt

    def defer(self, deferred: bool = True) -> None:
        """While deferred, a second Ctrl-C only sets `requested_twice`; saving can then finish."""
        self._deferred = deferred

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        previous = self.last_at
        self.last_at = time.monotonic()
        if self.requested and self.last_at - previous <= self._window:
            self.requested_twice = True
            if not self._deferred:
                raise KeyboardInterrupt
        self.requested = True


# The terminal on standard input

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


# Ctrl-Z


@contextmanager
def suspendable(before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-Z first calls `before`, which removes what would be redrawn; `fg` calls `after`.

    A shell without job control ignores Ctrl-Z as before.
    """
    if signal.getsignal(signal.SIGTSTP) == signal.SIG_IGN:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        before()
        with seen_lines():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # returns after `fg`
            signal.signal(number, stop)
        after()

    previous = signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, previous)
