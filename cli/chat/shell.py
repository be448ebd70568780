"""`!command` in a chat: runs it in the shell, shows its output and keeps it for the next prompt."""

import os
import re
import subprocess
from contextlib import suppress

from dflash_mlx.errors import DFlashError

from ..attachments import Attachment, Attachments
from .files import described
from .state import ChatState

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\a\x1b]*(?:\a|\x1b\\)")
MAX_OUTPUT = 100_000  # characters that are kept, the last ones


def is_shell_command(text: str) -> bool:
    """Whether a text is an exclamation mark and a command; with a space before it, it is text."""
    return text.startswith("!") and bool(text[1:].strip())


def run_in_shell(state: ChatState, text: str) -> None:
    """Run a command without input, show what it prints, and attach that to the next prompt.

    Ctrl-C ends the command. DFlashError when there is no shell.
    """
    command = text[1:].strip()
    parts, stopped = [], False
    try:
        process = subprocess.Popen(
            [os.environ.get("SHELL") or "/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise DFlashError(
            f"the shell cannot be run ({error.strerror}).", hint="set SHELL to the one you use"
        ) from None
    assert process.stdout is not None
    with process, state.terminal_for_others():
        try:
            for line in process.stdout:
                line = ESCAPES.sub("", line)  # colours
                parts.append(line)
                state.print_line(f"  {line.rstrip()}", "dim")
        except KeyboardInterrupt:  # the command got it, too
            stopped = True
            with suppress(ProcessLookupError):
                process.terminate()
    if stopped or process.returncode:
        state.print_line("  stopped" if stopped else f"  exit code {process.returncode}", "warning")
    if output := "".join(parts).strip("\n"):
        kept = Attachment(f"$ {command}", output[-MAX_OUTPUT:], "text")
        tokens = described(state, Attachments((kept,)))
        state.outputs.append(kept)
        state.print_line(f"  {tokens}: with the next prompt; /read off drops it", "dim")
