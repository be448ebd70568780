"""Takes a text apart while it streams: pieces that no later word can change, and an open tail.

What is handed out follows from the text alone, never from how it was cut on its way. Knows
neither colours nor terminals.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .dialect import language_of, parser
from .pieces import Piece

if TYPE_CHECKING:
    from markdown_it.token import Token

MARKS = re.compile(r"[ \t]*(?:[-=*+_#>|`~: \t]+|\d{1,9}[.)]?|\$\$?|\\\[?)[ \t]*")
LISTS = ("bullet_list_open", "ordered_list_open")
UNTIL_EMPTY = ("paragraph_open", "table_open", "blockquote_open", "math_block")
AT_ONCE = ("heading_open", "hr")


@dataclass(frozen=True, slots=True)
class Fence:
    """A block of code that is open; `empty` counts the empty lines held back, `fresh` says that
    none of it was handed out."""

    marks: str
    indent: int
    language: str
    empty: int = 0
    fresh: bool = True

    def closed_by(self, line: str) -> bool:
        """Whether the line ends the block."""
        marks = line.strip(" \t")
        return (
            len(marks) >= len(self.marks)
            and set(marks) == {self.marks[0]}
            and re.match(r" {0,3}[`~]", line) is not None
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where the first line stands that is not handed out: in which fence, after an item of which
    list with which number to follow, and whether after an empty line."""

    fence: Fence | None = None
    list: tuple[str, str] | None = None
    number: int = 1
    spaced: bool = False


class Stream:
    """Markdown comes in as it streams, finished pieces go out."""

    def __init__(self) -> None:
        self._parser = parser(blocks_only=True)
        self._lines: list[str] = []  # whole, but not handed out
        self._parts: list[str] = []  # of the line that is not whole
        self._place = Place()
        self._enough = 1  # lines that make parsing again worth while

    def feed(self, text: str) -> list[Piece]:
        """Take in text; the pieces it finished."""
        if "\n" not in text:
            self._parts.append(text)
            return []
        *lines, rest = ("".join(self._parts) + text).split("\n")
        self._lines += lines
        self._parts = [rest]
        if self._place.fence is None and len(self._lines) < self._enough:
            return []
        pieces, self._place, used = self._split(self._lines, self._place, final=False)
        del self._lines[:used]
        self._enough = len(self._lines) + max(1, len(self._lines) // 10)
        return pieces

    def tail(self) -> list[Piece]:
        """What is not finished, as it looks by now; signs that may become anything are left out."""
        rest = "".join(self._parts)
        lines = self._lines if MARKS.fullmatch(rest) else [*self._lines, rest]
        return self._split(lines, self._place, final=True)[0]

    def finish(self) -> list[Piece]:
        """The text is over: the pieces that are left."""
        lines = [*self._lines, "".join(self._parts)]
        pieces, self._place, _ = self._split(lines, self._place, final=True)
        self._lines, self._parts = [], []
        return pieces

    @property
    def in_code(self) -> bool:
        """Whether the next line is one of a block of code that has begun."""
        return self._place.fence is not None and not self._place.fence.fresh

    def _split(
        self, lines: Sequence[str], place: Place, *, final: bool
    ) -> tuple[list[Piece], Place, int]:
        """Pieces, the place after them, and how many lines they use."""
        pieces: list[Piece] = []
        used = 0
        if place.fence:
            used, place = take_code(lines, 0, place, pieces)
        tokens = self._parser.parse("\n".join(lines[used:])) if used < len(lines) else []
        base = used
        blocks = [token for token in tokens if not token.level and token.nesting >= 0 and token.map]
        for index, block in enumerate(blocks):
            last = index == len(blocks) - 1
            start, stop = (base + line for line in block.map or ())
            after = len(lines) if last else base + first_line(blocks[index + 1])
            if block.type == "fence":
                place = Place(open_fence(block, lines[start]))
                used, place = take_code(lines, start + 1, place, pieces)
            elif block.type in LISTS:
                items = [base + first_line(token) for token in tokens if is_item(token, block)]
                keep = last and not final
                used, place = take_items(lines, block, items, after, keep, place, pieces)
            elif last and not final and not is_closed(block, lines, stop):
                break
            else:
                pieces.append(Piece("block", joined(lines[start:after]), gap=True))
                used, place = after, Place()
        return pieces, place, used


def joined(lines: Sequence[str]) -> str:
    """Lines as a text, without empty ones at its end."""
    return re.sub(r"(\n[ \t]*)+\Z", "", "\n".join(lines))


def first_line(token: "Token") -> int:
    """The line a block begins in."""
    return token.map[0] if token.map else 0


def is_item(token: "Token", block: "Token") -> bool:
    """Whether a token opens an item of a list that no other list is around."""
    if token.type != "list_item_open" or token.level != 1 or not (token.map and block.map):
        return False
    return block.map[0] <= token.map[0] < block.map[1]


def is_closed(block: "Token", lines: Sequence[str], stop: int) -> bool:
    """Whether nothing that comes can belong to the last block, which ends before line `stop`."""
    return block.type in AT_ONCE or (
        block.type in UNTIL_EMPTY and stop < len(lines) and not lines[stop].strip(" \t")
    )


def take_items(
    lines: Sequence[str],
    block: "Token",
    starts: list[int],
    after: int,
    keep: bool,
    place: Place,
    pieces: list[Piece],
) -> tuple[int, Place]:
    """Hand out a list's items, but not the last when it is to be kept; lines used, place after."""
    this = (block.type, block.markup)
    follows = place.list == this
    number = place.number if follows else int(block.attrs.get("start", 1))
    ends = [*starts[1:], after]
    for start, end in list(zip(starts, ends, strict=True))[: len(starts) - keep]:
        spaced = not lines[start - 1].strip(" \t") if start else place.spaced
        pieces.append(
            Piece(
                "block",
                joined(lines[start:end]),
                gap=spaced or not follows,
                number=number if block.type == "ordered_list_open" else None,
            )
        )
        follows, number = True, number + 1
        place = Place(list=this, number=number, spaced=not lines[end - 1].strip(" \t"))
    return (starts[-1] if keep else after), place


def open_fence(block: "Token", line: str) -> Fence:
    """The fence that begins with a line."""
    indent = len(line) - len(line.lstrip(" "))
    return Fence(block.markup, indent, language_of(block.info))


def take_code(
    lines: Sequence[str], start: int, place: Place, pieces: list[Piece]
) -> tuple[int, Place]:
    """Hand out the lines of a block of code; lines used, place after. Empty ones wait for more."""
    fence = place.fence
    assert fence is not None
    for index in range(start, len(lines)):
        line = lines[index]
        if fence.closed_by(line):
            return index + 1, Place()
        line = line[min(fence.indent, len(line) - len(line.lstrip(" "))) :]
        if not line.strip():
            fence = replace(fence, empty=fence.empty + 1)
            continue
        if not fence.fresh:
            pieces += [Piece("code", "", language=fence.language)] * fence.empty
        pieces.append(Piece("code", line, fence.fresh, language=fence.language, first=fence.fresh))
        fence = replace(fence, empty=0, fresh=False)
    return len(lines), Place(fence)
