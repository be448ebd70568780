"""What an answer is cut into to be shown: pieces; and plain text as pieces, line by line.

Knows neither Markdown nor terminals.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Piece:
    """What is shown together: a block or an item of a list in Markdown, or one line.

    `gap`: an empty line stands before it, unless it comes first. `number`: of a numbered item.
    `language` and `first` are for lines of code: the first one begins a new block.
    """

    kind: Literal["block", "code", "text"]
    source: str
    gap: bool = False
    number: int | None = None
    language: str = ""
    first: bool = False
    dim: bool = False


class Lines:
    """Text that is no Markdown: each line is a piece."""

    in_code = False

    def __init__(self, *, dim: bool = False):
        self._parts: list[str] = []
        self._dim, self._first = dim, True

    def feed(self, text: str) -> list[Piece]:
        """Take in text; the lines it finished."""
        if "\n" not in text:
            self._parts.append(text)
            return []
        *lines, rest = ("".join(self._parts) + text).split("\n")
        self._parts = [rest]
        return [self._piece(line) for line in lines]

    def tail(self) -> list[Piece]:
        """The line that is not finished."""
        rest = "".join(self._parts)
        return [Piece("text", rest, gap=self._first, dim=self._dim)] if rest else []

    def finish(self) -> list[Piece]:
        """The text is over: the line that is left."""
        rest = "".join(self._parts)
        self._parts = []
        return [self._piece(rest)] if rest else []

    def _piece(self, line: str) -> Piece:
        gap, self._first = self._first, False
        return Piece("text", line, gap=gap, dim=self._dim)
