"""Writes data to stdout and everything else to stderr, sanitised for a terminal or raw for a pipe.

A pipe gets the answer's bytes unchanged; a terminal gets no control characters from a model.
"""

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, Literal

from dflash_mlx.text import whole_text

from .live_region import STYLE_SEQUENCE

if TYPE_CHECKING:
    from rich.console import Console

    from .live_region import LiveRegion

THEME = {"dim": "dim", "bold": "bold", "accent": "cyan", "warning": "yellow", "error": "bold red"}
ASCII_FALLBACKS = {
    "·": "|", "τ": "tau", "×": "x", "–": "-", "∴": "*", "›": ">", "±": "+-", "…": "...", "→": "->",
    "│": "|",
}  # fmt: skip
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
AGE_UNITS = ((86400, "day", "days"), (3600, "hour", "hours"), (60, "minute", "minutes"))


def strip_control(text: str) -> str:
    """Remove control characters except newline and tab, so that text cannot control a terminal."""
    return CONTROL_CHARACTERS.sub("", text)


def is_utf8(stream: IO[str]) -> bool:
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") in ("utf8", "utf8sig")


class Output:
    """The streams of a command. stdout_live, stderr_live: whether lines may be redrawn."""

    def __init__(self, *, quiet: bool = False, plain: bool = False):
        self.quiet = quiet
        self.stdout_is_tty = sys.stdout.isatty()
        self.stderr_is_tty = sys.stderr.isatty()
        self.plain = plain
        capable = not plain and os.environ.get("TERM") not in ("dumb", "unknown")
        self.styled = self.stderr_is_tty and capable
        self.stderr_live = self.styled and not quiet and stderr_columns() > 0
        self.stdout_live = self.stdout_is_tty and capable and not quiet and stdout_size() > (0, 0)
        self.ascii = (
            plain or not is_utf8(sys.stderr) or (self.stdout_is_tty and not is_utf8(sys.stdout))
        )
        self._at_line_start = True
        self._has_status = False
        self.region: LiveRegion | None = None  # the region of the last view
        # Returns the text that the user types during an answer, in at most (columns, rows).
        self.footer: Callable[[int, int], list[str]] = lambda columns, rows: []
        self.redraw: Callable[[], None] | None = None  # redraws the running view
        self.on_error: Callable[[str, str], None] = lambda message, hint: None

    @cached_property
    def console(self) -> "Console":
        """A Rich console on stderr with the theme; NO_COLOR keeps dim and bold."""
        from rich.console import Console
        from rich.theme import Theme

        return Console(
            stderr=True,
            theme=Theme(THEME),
            force_terminal=self.styled,
            color_system="auto" if self.styled else None,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def ascii_fallback(self, text: str) -> str:
        """Replace symbols by ASCII where the terminal may not show them."""
        if self.ascii:
            for symbol, stand_in in ASCII_FALLBACKS.items():
                text = text.replace(symbol, stand_in)
        return text

    def write(self, text: str) -> None:
        """Write data to stdout. BrokenPipeError when the reader has closed the pipe."""
        if self.stdout_is_tty:
            self.draw(strip_control(text))
        else:
            sys.stdout.buffer.write(whole_text(text).encode())
            sys.stdout.flush()
        self._at_line_start = text.endswith("\n") if text else self._at_line_start

    def write_json(self, document: Any) -> None:
        """Write a JSON document on one line to stdout; a terminal gets ASCII only."""
        self.write(json.dumps(document, ensure_ascii=self.stdout_is_tty) + "\n")

    def write_table(
        self, rows: Sequence[Sequence[str]], lines: Sequence[str] | None = None
    ) -> None:
        """Write rows to stdout: with tabs for a pipe; in columns, or as `lines`, for a terminal."""
        if not self.stdout_is_tty:
            self.write("".join("\t".join(row) + "\n" for row in rows))
            return
        for line in align_columns(rows) if lines is None else lines:
            self.write(self.ascii_fallback(line.rstrip()) + "\n")

    def draw(self, text: str) -> None:
        """Write text to the terminal on stdout unchanged, control characters included."""
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()

    def end_line(self) -> None:
        if not self._at_line_start:
            self.write("\n")

    def info(self, text: str, style: str = "", end: str = "\n", *, wraps: bool = True) -> None:
        """Print on stderr, terminal or not; a terminal gets lines broken between words.

        Without `wraps` a long line stays whole, so that it can be copied.
        """
        wraps = wraps and self.stderr_live and end == "\n"
        self.console.print(
            self.ascii_fallback(strip_control(text)),
            style=style or None,
            end=end,
            soft_wrap=not wraps,
        )

    def note(self, text: str, style: str = "dim", *, wraps: bool = True) -> None:
        """Print on stderr, but only on a terminal, and not with --quiet."""
        if self.stderr_is_tty and not self.quiet:
            self.info(text, style, wraps=wraps)

    def warn(self, *texts: str) -> None:
        """Print warnings on stderr, terminal or not; not with --quiet."""
        for text in () if self.quiet else texts:
            self.info(text, "warning")

    def error(self, message: str, hint: str = "") -> None:
        """Print an error and a hint; calls `on_error` first."""
        self.on_error(message, hint)
        from rich.text import Text

        lines = [("Error: ", "error", message)] + ([("Hint:  ", "dim", hint)] if hint else [])
        for start, style, text in lines:
            text = self.ascii_fallback(strip_control(text))
            if self.stderr_live:
                rows = textwrap.wrap(text, max(stderr_columns() - 8, 12), break_on_hyphens=False)
                text = ("\n" + " " * len(start)).join(rows)
            self.console.print(Text.assemble((start, style), text), soft_wrap=True)

    def status(self, text: str) -> None:
        """Show a status line, and the text being typed, on a terminal that can redraw lines."""
        if self.stderr_live:
            self.clear_status()
            width = stderr_columns() - 1
            typed = "  ".join(STYLE_SEQUENCE.sub("", line) for line in self.footer(width // 2, 1))
            text = self.ascii_fallback(text)[: width - screen_width(typed) - 2 * bool(typed)]
            self.info(f"{text}  {typed}" if typed else text, "dim", end="")
            self._has_status = True

    def clear_status(self) -> None:
        if self._has_status:
            self._has_status = False
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def erase_live(self) -> None:
        """Erase moving lines until they are drawn again. Signal handlers may call it."""
        # A signal may come while a stream's buffer is in use, so this writes past the buffers.
        if self._has_status:
            self._has_status = False
            os.write(sys.stderr.fileno(), b"\r\x1b[2K")
        if self.region is not None:
            os.write(sys.stdout.fileno(), self.region.hide().encode())


NotifyKind = Literal["auto", "bell", "osc9", "off"]
LONG_SECONDS = 20.0  # of an answer; after a shorter one the user is still here
# The terminals, by TERM_PROGRAM, that show OSC 9 as a notification of the system. tmux has a name
# of its own there, and passes only the bell on.
WITH_NOTIFICATIONS = ("iTerm.app", "WezTerm", "ghostty")


def notify(out: Output, kind: NotifyKind, seconds: float, text: str) -> None:
    """Notify of an answer that took so long; nothing for a short one, and without a terminal."""
    if kind == "off" or seconds < LONG_SECONDS or out.quiet or not out.stderr_is_tty:
        return
    if kind == "auto":
        kind = "osc9" if os.environ.get("TERM_PROGRAM") in WITH_NOTIFICATIONS else "bell"
    if kind == "osc9" and out.styled:
        sys.stderr.write(f"\x1b]9;{' '.join(strip_control(text).split())}\a")
    else:
        sys.stderr.write("\a")
    sys.stderr.flush()


def format_bytes(count: int) -> str:
    """Such as "1.5 GB", in units of 1000."""
    from rich.filesize import decimal

    return decimal(count)


def screen_width(text: str) -> int:
    """The columns of a text without styles; Chinese characters take two."""
    from rich.cells import cell_len

    return cell_len(text)


def format_count(number: int, singular: str, plural: str) -> str:
    return f"{number:,} {singular if number == 1 else plural}"


def format_age(seconds: float) -> str:
    for size, singular, plural in AGE_UNITS:
        if seconds >= size:
            return f"{format_count(int(seconds // size), singular, plural)} ago"
    return "just now"


def pad(text: str, width: int, *, left: bool = False) -> str:
    """The text with blanks behind it, or `left` of it, up to `width` columns of the screen."""
    blanks = " " * (width - screen_width(text))
    return blanks + text if left else text + blanks


def align_columns(
    rows: Sequence[Sequence[str]], right: Sequence[int] = (), gap: str = "  "
) -> list[str]:
    """Lines of the same width. right: the numbers of columns that are aligned at their right."""
    widths = [max(map(screen_width, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            pad(cell, width, left=number in right)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def stderr_columns() -> int:
    """Columns of the terminal on stderr; 0 when unknown."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 0


def stdout_size() -> tuple[int, int]:
    """Columns and rows of the terminal on stdout; both 0 when unknown."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return 0, 0
    return (columns, rows) if columns and rows else (0, 0)


# The standard streams at the start of the program


def open_closed_streams() -> None:
    """Open closed standard streams as /dev/null, so that no other file gets their descriptors.

    Writes to such a stderr are lost. A write to such a stdout raises OSError, because the answer
    would be lost. A closed stdin stays None.
    """
    streams = ((sys.stdin, os.O_RDONLY), (sys.stdout, os.O_RDONLY), (sys.stderr, os.O_WRONLY))
    for number, (stream, flags) in enumerate(streams):
        if stream is None:
            empty = os.open(os.devnull, flags)
            if empty != number:
                os.dup2(empty, number)
                os.close(empty)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
