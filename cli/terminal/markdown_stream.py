"""Splits streaming Markdown into fragments that later text cannot change, and an open tail.

The fragments depend on the text alone, not on the chunks it arrived in. Knows neither colours nor
terminals.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .fragments import Fragment
from .markdown_rules import fence_language, make_parser

if TYPE_CHECKING:
    from markdown_it.token import Token

AMBIGUOUS_LINE = re.compile(r"[ \t]*(?:[-=*+_#>|`~: \t]+|\d{1,9}[.)]?|\$\$?|\\\[?)[ \t]*")
LIST_TYPES = ("bullet_list_open", "ordered_list_open")
ENDS_AT_BLANK = ("paragraph_open", "table_open", "blockquote_open", "math_block")
SINGLE_LINE = ("heading_open", "hr")


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code block.

    `blank_lines` counts the empty lines held back; `unstarted`: no line was emitted yet.
    """

    markers: str
    indent: int
    language: str
    blank_lines: int = 0
    unstarted: bool = True

    def closed_by(self, line: str) -> bool:
        """Whether the line closes the block."""
        markers = line.strip(" \t")
        return (
            len(markers) >= len(self.markers)
            and set(markers) == {self.markers[0]}
            and re.match(r" {0,3}[`~]", line) is not None
        )


@dataclass(frozen=True, slots=True)
class Position:
    """The context of the first line that was not emitted.

    It holds the open code block, or the open list with its next number, and whether an empty line
    precedes the line.
    """

    fence: Fence | None = None
    list: tuple[str, str] | None = None
    number: int = 1
    after_blank: bool = False


class MarkdownStream:
    """Takes Markdown in chunks and returns finished fragments."""

    def __init__(self) -> None:
        self._parser = make_parser(blocks_only=True)
        self._lines: list[str] = []  # complete, but not emitted
        self._parts: list[str] = []  # of the incomplete line
        self._position = Position()
        self._parse_at = 1  # number of lines that triggers the next parse

    def feed(self, text: str) -> list[Fragment]:
        """Add text; return the fragments that it finished."""
        if "\n" not in text:
            self._parts.append(text)
            return []
        *lines, rest = ("".join(self._parts) + text).split("\n")
        self._lines += lines
        self._parts = [rest]
        if self._position.fence is None and len(self._lines) < self._parse_at:
            return []
        fragments, self._position, used = self._split(self._lines, self._position, final=False)
        del self._lines[:used]
        self._parse_at = len(self._lines) + max(1, len(self._lines) // 10)
        return fragments

    def tail(self) -> list[Fragment]:
        """The unfinished text as it looks now, without a last line whose meaning is still open."""
        rest = "".join(self._parts)
        lines = self._lines if AMBIGUOUS_LINE.fullmatch(rest) else [*self._lines, rest]
        return self._split(lines, self._position, final=True)[0]

    def finish(self) -> list[Fragment]:
        """End the text; return the remaining fragments."""
        lines = [*self._lines, "".join(self._parts)]
        fragments, self._position, _ = self._split(lines, self._position, final=True)
        self._lines, self._parts = [], []
        return fragments

    @property
    def in_code(self) -> bool:
        """Whether the next line continues a code block."""
        return self._position.fence is not None and not self._position.fence.unstarted

    def _split(
        self, lines: Sequence[str], position: Position, *, final: bool
    ) -> tuple[list[Fragment], Position, int]:
        """Fragments, the position after them, and the number of lines they use."""
        fragments: list[Fragment] = []
        used = 0
        if position.fence:
            used, position = split_code(lines, 0, position, fragments)
        tokens = self._parser.parse("\n".join(lines[used:])) if used < len(lines) else []
        base = used
        blocks = [token for token in tokens if not token.level and token.nesting >= 0 and token.map]
        for index, block in enumerate(blocks):
            last = index == len(blocks) - 1
            start, stop = (base + line for line in block.map or ())
            after = len(lines) if last else base + first_line(blocks[index + 1])
            if block.type == "fence":
                position = Position(open_fence(block, lines[start]))
                used, position = split_code(lines, start + 1, position, fragments)
            elif block.type in LIST_TYPES:
                items = [base + first_line(token) for token in tokens if is_item(token, block)]
                hold_last = last and not final
                used, position = split_items(
                    lines, block, items, after, hold_last, position, fragments
                )
            elif last and not final and not is_closed(block, lines, stop):
                break
            else:
                fragments.append(Fragment("block", join_lines(lines[start:after]), gap=True))
                used, position = after, Position()
        return fragments, position, used


def join_lines(lines: Sequence[str]) -> str:
    """Join lines and drop empty ones at the end."""
    return re.sub(r"(\n[ \t]*)+\Z", "", "\n".join(lines))


def first_line(token: "Token") -> int:
    """The line where a block begins."""
    return token.map[0] if token.map else 0


def is_item(token: "Token", block: "Token") -> bool:
    """Whether a token opens an item of this top-level list."""
    if token.type != "list_item_open" or token.level != 1 or not (token.map and block.map):
        return False
    return block.map[0] <= token.map[0] < block.map[1]


def is_closed(block: "Token", lines: Sequence[str], stop: int) -> bool:
    """Whether later text cannot extend the last block, which ends before line `stop`."""
    return block.type in SINGLE_LINE or (
        block.type in ENDS_AT_BLANK and stop < len(lines) and not lines[stop].strip(" \t")
    )


def split_items(
    lines: Sequence[str],
    block: "Token",
    starts: list[int],
    after: int,
    hold_last: bool,
    position: Position,
    fragments: list[Fragment],
) -> tuple[int, Position]:
    """Emit a list's items, except the last one with `hold_last`; return lines used and position."""
    list_kind = (block.type, block.markup)
    continues = position.list == list_kind
    number = position.number if continues else int(block.attrs.get("start", 1))
    ends = [*starts[1:], after]
    for start, end in list(zip(starts, ends, strict=True))[: len(starts) - hold_last]:
        after_blank = not lines[start - 1].strip(" \t") if start else position.after_blank
        fragments.append(
            Fragment(
                "block",
                join_lines(lines[start:end]),
                gap=after_blank or not continues,
                number=number if block.type == "ordered_list_open" else None,
            )
        )
        continues, number = True, number + 1
        position = Position(
            list=list_kind, number=number, after_blank=not lines[end - 1].strip(" \t")
        )
    return (starts[-1] if hold_last else after), position


def open_fence(block: "Token", line: str) -> Fence:
    """The code block that a line opens."""
    indent = len(line) - len(line.lstrip(" "))
    return Fence(block.markup, indent, fence_language(block.info))


def split_code(
    lines: Sequence[str], start: int, position: Position, fragments: list[Fragment]
) -> tuple[int, Position]:
    """Emit the lines of a code block; return lines used and position.

    Empty lines wait for the next line with text.
    """
    fence = position.fence
    assert fence is not None
    for index in range(start, len(lines)):
        line = lines[index]
        if fence.closed_by(line):
            return index + 1, Position()
        line = line[min(fence.indent, len(line) - len(line.lstrip(" "))) :]
        if not line.strip():
            fence = replace(fence, blank_lines=fence.blank_lines + 1)
            continue
        if not fence.unstarted:
            fragments += [Fragment("code", "", language=fence.language)] * fence.blank_lines
        fragments.append(
            Fragment("code", line, fence.unstarted, language=fence.language, first=fence.unstarted)
        )
        fence = replace(fence, blank_lines=0, unstarted=False)
    return len(lines), Position(fence)
