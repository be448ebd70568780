"""The state that slash commands act on: conversation, output and options."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ..options import Options
from ..presets import OptionTables
from ..prompt import Attachment
from ..terminal.keys import KeyReader
from ..terminal.line_editor import edit_externally
from ..terminal.output import Output, stderr_columns, stdout_size
from ..terminal.render import wrap_hanging
from ..terminal.signals import cooked_mode
from .dialogue import Dialogue

MIN_ROWS = 12  # least screen height to assume


@dataclass(slots=True)
class ChatState:
    dialogue: Dialogue
    out: Output
    options: Options  # the loaded pair, and what the chat began with but the target's defaults
    edit: Callable[[str], str] = edit_externally
    attached: list[str] = field(default_factory=list)  # names of files for the next prompt
    outputs: list[Attachment] = field(default_factory=list)  # of shell commands, likewise
    # Of the loaded target, by option name; they override `options`.
    defaults: dict[str, Any] = field(default_factory=dict)
    # --sampling, unless a target's defaults set it; None: recommended where nothing else is given.
    sampling_by: str | None = None
    keys: KeyReader | None = None  # reads what is typed while a command runs

    @property
    def tables(self) -> OptionTables:
        return OptionTables(self.options.ctx)

    def drop_attachments(self) -> None:
        self.attached = []
        self.outputs = []

    @contextmanager
    def terminal_for_others(self) -> Iterator[None]:
        """Inside, another program has the terminal in the state that a shell would give it."""
        with nullcontext() if self.keys is None else self.keys.paused():
            with cooked_mode():
                yield
            if self.keys is not None:
                self.keys.take_echoed()

    def ask_line(self, question: str) -> str:
        """Ask a question and return the line typed after it; empty at the end of the input.

        Discards what was typed before the question.
        """
        import termios

        with self.terminal_for_others():
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
            self.out.info(wrap_hanging(question.rstrip(), stderr_columns()) + " ", end="")
            return os.read(sys.stdin.fileno(), 4096).decode(errors="replace")

    def keep_draft(self, text: str) -> None:
        """Begin the next prompt with what was typed at a question, unless it is a number."""
        if text and not text.isdecimal() and self.keys is not None:
            self.keys.typed.draft = f"{self.keys.typed.draft}\n{text}".lstrip("\n")
            self.print_line("  what you typed is at the prompt again", "dim")

    def print_line(self, text: str, style: str = "") -> None:
        self.dialogue.print_line(text, style)


def screen_rows() -> int:
    return max(stdout_size()[1] or 24, MIN_ROWS)


def shorten(text: str, max_length: int = 50) -> str:
    line = " ".join(text.split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"
