"""Plain text as it streams: which pass wrote each part, and which drafts the target rejected."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .terminal.markdown import Fragment
from .terminal.output import Output, format_count, strip_control

if TYPE_CHECKING:
    from dflash_mlx import Block, Stats

# Readable on black and on white; two passes in a row never have the same.
COLOURS = ("cyan", "magenta", "green")
REJECTED = "dim strike"
MARK = "│"  # between two passes where there are no colours
CONTEXT_TOKENS = 8  # before rejected drafts, because a tokenizer may drop the first blank


def shows_colours(out: Output) -> bool:
    """Whether passes have colours, and rejected drafts are shown for a moment."""
    return out.stdout_live and not os.environ.get("NO_COLOR")


class Passes:
    """The passes of one answer, of which the last one is being shown.

    number: how many there were. style: the last one's colour; empty without colours. rejected: the
    text of its rejected drafts, on one line. Text that waited for the rest of a character or of a
    stop string counts for the pass with which it comes.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], out: Output):
        self.number = 0
        self.style = ""
        self.rejected = ""
        self.coloured = shows_colours(out)
        self._decode = decode
        self._mark = out.ascii_fallback(MARK)
        self._due = ""  # the mark before the next text
        self._context: tuple[int, ...] = ()

    def begin(self, block: "Block") -> None:
        if not block.tokens:
            return
        self.number += 1
        if not self.coloured:
            self._due = self._mark if self.number > 1 else ""
            return
        self.style = COLOURS[self.number % len(COLOURS)]
        self._context = (*self._context, *block.tokens)[-CONTEXT_TOKENS:]
        before = self._decode(self._context)
        text = self._decode((*self._context, *block.rejected)) if block.rejected else before
        self.rejected = " ".join(strip_control(text[len(before) :]).splitlines())

    def marked(self, text: str) -> str:
        """A text, after the mark if it is the first one of its pass and there are no colours."""
        if not text:
            return ""
        mark = self._due
        self._due = ""
        return mark + text

    def legend(self, stats: "Stats") -> str:
        how = "each colour is one" if self.coloured else f"{self._mark} comes after each"
        line = (
            f"  {how} pass of the target: {format_count(self.number, 'pass', 'passes')} for "
            f"{format_count(stats.generated, 'token', 'tokens')}"
        )
        if not stats.drafted:
            return line
        struck = "struck out: " if self.coloured else ""
        rejected = stats.drafted - stats.accepted
        return f"{line} · {struck}rejected drafts, {rejected:,} of {stats.drafted:,}"


class TextStream:
    """Splits plain text into lines; with `passes` each part has the colour of its pass."""

    in_code = False

    def __init__(self, *, dim: bool = False, passes: Passes | None = None):
        self._passes = passes
        self._dim = dim
        self._first = True
        self._line = ""
        self._spans: list[tuple[int, int, str]] = []

    def feed(self, text: str) -> list[Fragment]:
        style = ""
        if self._passes is not None:
            text = self._passes.marked(text)
            style = self._passes.style
        lines = []
        for number, part in enumerate(text.split("\n")):
            if number:
                lines.append(self._take_line())
            start = len(self._line)
            self._line += part
            if part and style:
                self._spans.append((start, len(self._line), style))
        return lines

    def tail(self) -> list[Fragment]:
        """The unfinished line, and behind it the drafts that the last pass rejected."""
        rejected = "" if self._passes is None else self._passes.rejected
        start = len(self._line)
        span = (start, start + len(rejected), REJECTED)
        return [self._fragment(rejected, span)] if self._line or rejected else []

    def finish(self) -> list[Fragment]:
        return [self._take_line()] if self._line else []

    def _take_line(self) -> Fragment:
        fragment = self._fragment()
        self._first = False
        self._line = ""
        self._spans = []
        return fragment

    def _fragment(self, more: str = "", *spans: tuple[int, int, str]) -> Fragment:
        return Fragment(
            "text",
            self._line + more,
            gap=self._first,
            dim=self._dim,
            spans=(*self._spans, *spans),
        )
