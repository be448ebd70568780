"""Where text goes: data to stdout, everything else to stderr, each made fit for what reads it.

A pipe gets the answer's bytes as they are; a terminal gets no control characters of a model's.
Knows terminals, not models.
"""

import os
import re
import sys
import textwrap
from functools import cached_property
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"dim": "dim", "bold": "bold", "accent": "cyan", "warning": "yellow", "error": "bold red"}
ASCII = {
    "·": "|", "τ": "tau", "×": "x", "–": "-", "∴": "*", "›": ">", "±": "+-", "…": "...", "→": "->"
}  # fmt: skip
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """Text without control characters except newline and tab: it cannot steer a terminal."""
    return CONTROL.sub("", text)


def is_utf8(stream: IO[str]) -> bool:
    """Whether a stream can show every character."""
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") in ("utf8", "utf8sig")


class Output:
    """The two streams of one command.

    `answers` and `talks` say whether stdout and stderr are terminals; `live` whether lines on
    stderr may move, `draws` whether lines on stdout may.
    """

    def __init__(self, *, quiet: bool = False, plain: bool = False):
        self.quiet = quiet
        self.answers, self.talks = sys.stdout.isatty(), sys.stderr.isatty()
        able = not plain and os.environ.get("TERM") not in ("dumb", "unknown")
        self.styled = self.talks and able
        self.live = self.styled and not quiet and columns() > 0
        self.draws = self.answers and able and not quiet and screen_size() > (0, 0)
        self.ascii = plain or not is_utf8(sys.stderr) or (self.answers and not is_utf8(sys.stdout))
        self._ends_line = True
        self._has_status = False

    @cached_property
    def console(self) -> "Console":
        """Rich on stderr, in the theme's few styles; NO_COLOR leaves dim and bold."""
        from rich.console import Console
        from rich.theme import Theme

        return Console(
            stderr=True,
            theme=Theme(STYLES),
            force_terminal=self.styled,
            color_system="auto" if self.styled else None,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def glyphs(self, text: str) -> str:
        """The text with plain stand-ins for its symbols where they might not show."""
        if self.ascii:
            for symbol, stand_in in ASCII.items():
                text = text.replace(symbol, stand_in)
        return text

    def write(self, text: str) -> None:
        """A part of the data on stdout. BrokenPipeError when nobody reads it any more."""
        if self.answers:
            self.draw(clean(text))
        else:
            sys.stdout.buffer.write(text.encode("utf-8", "replace"))
            sys.stdout.flush()
        self._ends_line = text.endswith("\n") if text else self._ends_line

    def draw(self, text: str) -> None:
        """Text for the terminal on stdout as it is, control characters and all."""
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()

    def end_line(self) -> None:
        """A newline on stdout, unless it stands at the start of a line."""
        if not self._ends_line:
            self.write("\n")

    def tell(self, text: str, style: str = "", end: str = "\n") -> None:
        """Text on stderr, whoever reads it; lines are broken between words on a terminal."""
        whole = self.live and end == "\n"
        self.console.print(
            self.glyphs(clean(text)), style=style or None, end=end, soft_wrap=not whole
        )

    def note(self, text: str, style: str = "dim") -> None:
        """A line for a person who watches: only on a terminal, and not when quiet."""
        if self.talks and not self.quiet:
            self.tell(text, style)

    def warn(self, *texts: str) -> None:
        """Lines on stderr that a script's log should have too; not when quiet."""
        for text in () if self.quiet else texts:
            self.tell(text, "warning")

    def error(self, message: str, hint: str = "") -> None:
        """What is wrong and what to do about it."""
        from rich.text import Text

        lines = [("Error: ", "error", message)] + ([("Hint:  ", "dim", hint)] if hint else [])
        for start, style, text in lines:
            text = self.glyphs(clean(text))
            if self.live:
                rows = textwrap.wrap(text, max(columns() - 8, 12), break_on_hyphens=False)
                text = ("\n" + " " * len(start)).join(rows)
            self.console.print(Text.assemble((start, style), text), soft_wrap=True)

    def status(self, text: str) -> None:
        """Show a line that the next one replaces; nothing where lines cannot move."""
        if self.live:
            self.erase()
            self.tell(self.glyphs(text)[: columns() - 1], "dim", end="")
            self._has_status = True

    def erase(self) -> None:
        """Take the status line away, if there is one."""
        if self._has_status:
            self._has_status = False
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def size(count: int) -> str:
    """Bytes for a person."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def columns() -> int:
    """Width of the terminal on stderr; 0 when it is not known."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 0


def screen_size() -> tuple[int, int]:
    """Columns and rows of the terminal on stdout; both 0 when one is not known."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return 0, 0
    return (columns, rows) if columns and rows else (0, 0)
