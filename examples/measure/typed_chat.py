"""Types lines into a program in a pseudo-terminal and reads what the program shows.

The program must run with `--plain` and TERM=dumb: then a prompt is a line that ends with "> " or
"› ", and nothing on the screen moves.
"""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\a]*\a|\x1b[=>78]")
PROMPT = re.compile(r"[>›] $")
SILENCE = 0.03  # seconds without output after which a prompt counts
PATIENCE = 60.0  # seconds
COLUMNS = 100


class Keyboard:
    """The controlling end of a pseudo-terminal; `slave` is the program's end."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        size = struct.pack("HHHH", 40, COLUMNS, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, seconds: float) -> str:
        """Return the output within `seconds`; "" if there is none."""
        if not select.select([self.master], [], [], seconds)[0]:
            return ""
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other end was closed
            time.sleep(seconds)
            return ""
        if b"\x1b[6n" in data:  # the program's query for the position of the cursor
            os.write(self.master, b"\x1b[1;1R")
        return self._decoder.decode(data)

    def until_prompt(self, patience: float = PATIENCE) -> str:
        """Return the output up to the next prompt. Raises TimeoutError without one."""
        shown = ""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            more = self.read(SILENCE)
            shown += more
            if not more and PROMPT.search(plain(shown)):
                return plain(shown)
        raise TimeoutError(f"no prompt after {plain(shown)[-2000:]!r}")

    def type(self, text: str) -> None:
        """Type a text and Enter."""
        os.write(self.master, text.encode() + b"\r")

    def close(self) -> None:
        """Close both ends."""
        os.close(self.slave)
        os.close(self.master)


def plain(text: str) -> str:
    """Return a text without escape codes and carriage returns."""
    return ESCAPES.sub("", text).replace("\r", "")


def take_terminal() -> None:
    """Make the terminal on standard input the controlling one of this process."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def run_typed(
    command: Sequence[str], lines: Sequence[str], env: Mapping[str, str], folder: Path
) -> tuple[int, list[str]]:
    """Run a program and type lines at its prompts; returns the exit code and the outputs.

    The first output came before any line was typed. The last line must end the program.
    """
    keyboard = Keyboard()
    process = subprocess.Popen(
        command,
        stdin=keyboard.slave,
        stdout=keyboard.slave,
        stderr=keyboard.slave,
        env=dict(env),
        cwd=folder,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    shown = []
    try:
        for line in lines:
            shown.append(keyboard.until_prompt())
            keyboard.type(line)
        end = time.monotonic() + PATIENCE
        rest = ""
        while process.poll() is None and time.monotonic() < end:
            rest += keyboard.read(SILENCE)
        while more := keyboard.read(0):
            rest += more
        shown.append(plain(rest))
    finally:
        process.kill()
        process.wait()
        keyboard.close()
    return process.returncode, shown
