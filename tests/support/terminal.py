"""A program in a real terminal: a pty whose other end is pyte's screen, keys in and screens out."""

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

from screen import Screen

SLOWED = Path(__file__).with_name("slowed.py")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\a]*\a|\x1b[=>78]")
PATIENCE = 60.0  # seconds; only a failing test waits that long


class Terminal:
    """A child process and the terminal it runs in.

    `raw` is all that it wrote. `wait_for` looks at what came since the last `send` and, when it
    finds something, after that.
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
        """`stdout` instead of the terminal; `ignores`: signals that are ignored, as under nohup."""
        self.master, slave = pty.openpty()
        self._set_size(columns, rows)
        self.screen = Screen(columns or 80, rows or 24)
        # what a terminal answers, for example where its cursor is
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
        self._slave = slave  # open, so that its settings can be read when the child is gone

    # Keys -----------------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        """Type; what is waited for from now on comes after this."""
        self.pump(0)
        self._from = len(self.raw)
        self._write(text.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.send("\x03")

    def paste(self, text: str) -> None:
        """Paste as a terminal does that was asked to mark it."""
        self.send("\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~")

    def resize(self, columns: int, rows: int) -> None:
        """Another window size; the kernel tells the program by SIGWINCH."""
        self.pump(0)
        self.screen.resize(columns, rows)
        self._set_size(columns, rows)

    def hang_up(self) -> None:
        """Close the window."""
        self._open = False
        os.close(self._slave)
        os.close(self.master)

    def forget(self) -> None:
        """Ctrl-L, and nothing is remembered of what scrolled away."""
        self.send("\x0c")
        self.wait_until(lambda: self.screen.cursor[1] == 0, "cleared")
        self.settle()
        self.screen._screen.history.top.clear()

    def close(self) -> None:
        """End what still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._open:
            self.hang_up()

    # Screens --------------------------------------------------------------------------------------

    def pump(self, seconds: float) -> bool:
        """Take in what is there, waiting up to `seconds` for it; whether there was something."""
        if not self._open or not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # nobody is at the other end any more
            return False
        text = self._decoder.decode(data)
        self.raw += text
        self.screen.write(text)
        if not self._typing:
            self._answer()
        return True

    def wait_for(self, pattern: str, timeout: float = PATIENCE) -> re.Match[str]:
        """Until the program writes something, escape codes left out."""
        end = time.monotonic() + timeout
        while True:
            plain, places = without_escapes(self.raw, self._from)
            if found := re.search(pattern, plain):
                self._from = places[found.end()]
                return found
            if time.monotonic() > end or (not self.pump(0.05) and self.process.poll() is not None):
                raise AssertionError(f"no {pattern!r} in {plain!r} on\n{self.screen_text()}")

    def wait_until(self, holds: Any, what: str, timeout: float = PATIENCE) -> None:
        """Until a condition of the screen holds."""
        end = time.monotonic() + timeout
        while not holds():
            if time.monotonic() > end or (not self.pump(0.05) and self.process.poll() is not None):
                raise AssertionError(f"never {what}, on\n{self.screen_text()}")

    def settle(self, seconds: float = 0.3) -> None:
        """Until nothing comes for a moment."""
        while self.pump(seconds):
            pass

    def prompted(self, typed: str = "") -> None:
        """Until the prompt is there with what is typed in it, the cursor in its line."""
        line = f"› {typed}".rstrip()
        self.wait_until(lambda: self.cursor_line() == line, f"prompted with {typed!r}")

    def cursor_line(self) -> str:
        """The line the cursor is in."""
        screen = self.screen._screen
        return screen.display[screen.cursor.y].rstrip()

    def screen_text(self) -> str:
        """What can be seen, and what was scrolled away."""
        return self.screen.text()

    # The program ----------------------------------------------------------------------------------

    def ends(self, timeout: float = PATIENCE) -> int:
        """The exit code of the program, whose output is read until then: else it could not end."""
        end = time.monotonic() + timeout
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise AssertionError(f"it is still there, on\n{self.screen_text()}")
            if not self.pump(0.05):
                time.sleep(0.01)
        self.settle(0)
        return self.process.returncode

    def leaves(self, code: int, timeout: float = PATIENCE) -> None:
        """The program ends with an exit code, and the terminal is as it was."""
        assert self.ends(timeout) == code, self.screen_text()
        if self._open:
            assert self.echoes(), "what is typed is not shown any more"
            assert not self.screen.cursor_hidden
            assert self.raw.rfind("\x1b[?2004h") <= self.raw.rfind("\x1b[?2004l")

    def echoes(self) -> bool:
        """Whether the terminal is as a shell wants it: lines, shown as they are typed."""
        flags = termios.tcgetattr(self._slave)
        return bool(
            flags[3] & termios.ECHO and flags[3] & termios.ICANON and flags[0] & termios.ICRNL
        )

    def reads_keys(self) -> bool:
        """Whether somebody reads key by key, Enter included."""
        return not termios.tcgetattr(self._slave)[0] & termios.ICRNL

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _write(self, data: bytes) -> None:
        self._typing = True  # a terminal's own answers come before or after a paste
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
    """`dflash chat --demo` in a terminal, as slow and as talkative as a test wants it."""

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
        """How the next answers come; see slowed.py."""
        self.script.write_text(json.dumps(how))

    def ask(self, prompt: str) -> str:
        """Send a prompt, wait for the prompt after the answer; the line of numbers."""
        self.send(prompt + "\r")
        line = self.wait_for(r"\d+ tokens?[^,][\s\S]*?prompt [\d,]+ new[^\n]*").group()
        self.prompted()
        return line

    def command(self, text: str, shows: str) -> None:
        """Type a command, wait for what it shows and for the next prompt."""
        self.send(text + "\r")
        self.wait_for(shows)
        self.prompted()


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The variables of a program that must not see whoever runs the tests."""
    kept = {name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ}
    return kept | {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OPENBLAS_NUM_THREADS": "1",
        "DFLASH_MODE": "dflash",  # what the default measures on a busy machine is another thing
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "SLOWED": str(folder / "slowed.json"),
        **more,
    }


def without_escapes(text: str, start: int) -> tuple[str, list[int]]:
    """A text from a place on without escape codes, and where each of its characters stood."""
    parts, places = [], []
    for found in ESCAPES.finditer(text, start):
        parts.append(text[start : found.start()])
        places += range(start, found.start())
        start = found.end()
    parts.append(text[start:])
    places += range(start, len(text) + 1)
    return "".join(parts), places
