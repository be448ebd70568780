"""Runs a program in a pseudo-terminal whose output goes to a pyte screen."""

import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from devices import PROGRAM_VARIABLES
from screen import Screen

SLOWED = Path(__file__).with_name("slowed.py")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\a]*\a|\x1b[=>78]")
PATIENCE = 60.0  # seconds; only a failing test waits that long

# The numbers of an answer, up to its seconds; the prompt's follow where the window has room.
NUMBERS = r"\d+ tokens?\s+[·|][\s\S]*?[\s·|]+[\d.]+\ss(?=\s)"


class Terminal:
    """A child process and its terminal.

    `raw`: all output so far. `wait_for` searches the output since the last `send`; a later call
    continues after the match.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        columns: int = 80,
        rows: int = 24,
        *,
        stdout: IO[bytes] | None = None,
        ignores: Sequence[int] = (),
    ):
        """`stdout` replaces the terminal; `ignores`: signals to ignore, as under nohup."""
        self.master, slave = pty.openpty()
        self._set_size(columns, rows)
        self.screen = Screen(columns or 80, rows or 24)
        # a terminal's replies, for example the position of the cursor
        self._replies: list[str] = []
        self.screen._screen.write_process_input = lambda data: self._replies.append(data)
        self._typing = False
        self.raw, self._from = "", 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._open = True

        def own_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
            for number in ignores:
                signal.signal(number, signal.SIG_IGN)

        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=stdout or slave,
            stderr=slave,
            env=dict(env),
            start_new_session=True,
            preexec_fn=own_terminal,
        )
        self._slave = slave  # kept open to read the terminal's settings after the child has ended

    # Keys -----------------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        """Type a text; the next `wait_for` searches the output after it."""
        self.pump(0)
        self._from = len(self.raw)
        self._write(text.encode())

    def interrupt(self) -> None:
        self.send("\x03")

    def paste(self, text: str) -> None:
        self.send("\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~")

    def resize(self, columns: int, rows: int) -> None:
        self.pump(0)
        self.screen.resize(columns, rows)
        self._set_size(columns, rows)

    def hang_up(self) -> None:
        self._open = False
        os.close(self._slave)
        os.close(self.master)

    def forget(self) -> None:
        """Press Ctrl-L, and drop the rows that scrolled away."""
        self.send("\x0c")
        self.wait_until(lambda: self.screen.cursor[1] == 0, "cleared")
        self.settle()
        self.screen._screen.history.top.clear()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._open:
            self.hang_up()

    # Screens --------------------------------------------------------------------------------------

    def pump(self, seconds: float) -> bool:
        """Read the output, waiting up to `seconds` for it; returns whether there was any."""
        if not self._open or not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other end was closed
            return False
        text = self._decoder.decode(data)
        self.raw += text
        self.screen.write(text)
        if not self._typing:
            self._answer()
        return True

    def wait_for(self, pattern: str, timeout: float = PATIENCE) -> re.Match[str]:
        """Wait until the output without escape codes matches a pattern."""
        end = time.monotonic() + timeout
        while True:
            plain, places = without_escapes(self.raw, self._from)
            if found := re.search(pattern, plain):
                self._from = places[found.end()]
                return found
            if time.monotonic() > end or (not self.pump(0.05) and self.process.poll() is not None):
                raise AssertionError(f"no {pattern!r} in {plain!r} on\n{self.screen_text()}")

    def wait_until(self, holds: Any, what: str, timeout: float = PATIENCE) -> None:
        end = time.monotonic() + timeout
        while not holds():
            if time.monotonic() > end or (not self.pump(0.05) and self.process.poll() is not None):
                raise AssertionError(f"never {what}, on\n{self.screen_text()}")

    def settle(self, seconds: float = 0.3) -> None:
        while self.pump(seconds):
            pass

    def prompted(self, typed: str = "") -> None:
        line = f"› {typed}".rstrip()
        self.wait_until(lambda: self.cursor_line() == line, f"prompted with {typed!r}")

    def cursor_line(self) -> str:
        screen = self.screen._screen
        return screen.display[screen.cursor.y].rstrip()

    def screen_text(self) -> str:
        return self.screen.text()

    # The program ----------------------------------------------------------------------------------

    def ends(self, timeout: float = PATIENCE) -> int:
        """Wait for the end of the program; returns its exit code. Reads the output meanwhile."""
        end = time.monotonic() + timeout
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise AssertionError(f"it is still there, on\n{self.screen_text()}")
            if not self.pump(0.05):
                time.sleep(0.01)
        self.settle(0)
        return self.process.returncode

    def leaves(self, code: int, timeout: float = PATIENCE) -> None:
        assert self.ends(timeout) == code, self.screen_text()
        if self._open:
            assert self.echoes(), "what is typed is not shown any more"
            assert not self.screen.cursor_hidden
            assert self.raw.rfind("\x1b[?2004h") <= self.raw.rfind("\x1b[?2004l")

    def echoes(self) -> bool:
        """Whether the terminal is in a shell's mode: it reads lines and echoes keys."""
        flags = termios.tcgetattr(self._slave)
        return bool(
            flags[3] & termios.ECHO and flags[3] & termios.ICANON and flags[0] & termios.ICRNL
        )

    def reads_keys(self) -> bool:
        """Whether a program reads single keys, Enter included."""
        return not termios.tcgetattr(self._slave)[0] & termios.ICRNL

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _write(self, data: bytes) -> None:
        self._typing = True  # hold back the terminal's replies, so that they do not split a paste
        while data:
            _, ready, _ = select.select([], [self.master], [], 0.05)
            if ready:
                data = data[os.write(self.master, data[:512]) :]
            self.pump(0)
        self._typing = False
        self._answer()

    def _answer(self) -> None:
        replies, self._replies = self._replies, []
        os.write(self.master, "".join(replies).encode())


class ChatTerminal(Terminal):
    """`dflash chat --demo` in a terminal, with the speed and answers of slowed.py."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        **extra: Any,
    ):
        self.script = folder / "slowed.json"
        self.answers()
        command = [sys.executable, "-P", str(SLOWED), "chat", "--demo", *arguments]
        super().__init__(command, environment(folder, **(env or {})), columns, rows, **extra)

    def answers(self, **how: Any) -> None:
        self.script.write_text(json.dumps(how))

    def ask(self, prompt: str) -> str:
        """Send a prompt and wait for the next one; returns the line of statistics."""
        self.send(prompt + "\r")
        line = self.wait_for(NUMBERS + r"[^\n]*").group()
        self.prompted()
        return line

    def command(self, text: str, shows: str) -> None:
        self.send(text + "\r")
        self.wait_for(shows)
        self.prompted()


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Environment variables that hide the user's settings from the program."""
    kept = {name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ}
    return kept | {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OPENBLAS_NUM_THREADS": "1",
        "DFLASH_MODE": "dflash",  # what the default mode does depends on the clock
        **PROGRAM_VARIABLES,
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "SLOWED": str(folder / "slowed.json"),
        **more,
    }


def without_escapes(text: str, start: int) -> tuple[str, list[int]]:
    """The text from `start` on without escape codes, and the index of each character."""
    parts, places = [], []
    for found in ESCAPES.finditer(text, start):
        parts.append(text[start : found.start()])
        places += range(start, found.start())
        start = found.end()
    parts.append(text[start:])
    places += range(start, len(text) + 1)
    return "".join(parts), places
