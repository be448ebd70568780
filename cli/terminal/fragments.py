"""Fragments of an answer, the units in which it is printed; and a splitter for plain text.

Knows neither Markdown nor terminals.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Fragment:
    """One unit of output: a Markdown block, a list item, or a line.

    `gap`: print an empty line before it, unless it comes first. `number`: of a numbered item.
    `language` and `first` apply to lines of code: the first one begins a new block.
    """

    kind: Literal["block", "code", "text"]
    source: str
    gap: bool = False
    number: int | None = None
    language: str = ""
    first: bool = False
    dim: bool = False


class PlainTextStream:
    """Splits plain text into one fragment a line."""

    in_code = False

    def __init__(self, *, dim: bool = False):
        self._parts: list[str] = []
        self._dim, self._first = dim, True

    def feed(self, text: str) -> list[Fragment]:
        """Add text; return the lines that it finished."""
        if "\n" not in text:
            self._parts.append(text)
            return []
        *lines, rest = ("".join(self._parts) + text).split("\n")
        self._parts = [rest]
        return [self._fragment(line) for line in lines]

    def tail(self) -> list[Fragment]:
        """The unfinished line."""
        rest = "".join(self._parts)
        return [Fragment("text", rest, gap=self._first, dim=self._dim)] if rest else []

    def finish(self) -> list[Fragment]:
        """End the text; return the remaining line."""
        rest = "".join(self._parts)
        self._parts = []
        return [self._fragment(rest)] if rest else []

    def _fragment(self, line: str) -> Fragment:
        gap, self._first = self._first, False
        return Fragment("text", line, gap=gap, dim=self._dim)
