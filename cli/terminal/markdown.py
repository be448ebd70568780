"""Splits streaming Markdown into fragments that later text cannot change, and an open tail.

The fragments depend on the text alone, not on the chunks it arrived in.
"""

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token


# Fragments of an answer, the units in which it is printed


@dataclass(frozen=True, slots=True)
class Fragment:
    """One unit of output: a Markdown block, a list item, or a line.

    `gap`: print an empty line before it, unless it comes first. `number`: of a numbered item.
    `language` and `first` apply to lines of code: the first one begins a new block. `spans`: start,
    end and style of parts of a line of text.
    """

    kind: Literal["block", "code", "text"]
    source: str
    gap: bool = False
    number: int | None = None
    language: str = ""
    first: bool = False
    dim: bool = False
    spans: tuple[tuple[int, int, str], ...] = ()


# Markdown rules for answers of models

INLINE_MATH = re.compile(
    r"\$\$.{1,2000}?\$\$|\\\(.{1,2000}?\\\)|\\\[.{1,2000}?\\\]"
    r"|\$(?=[^\s$])(?:\\.|[^$\\`\n]){1,500}?(?<=\S)\$(?!\d)",
    re.DOTALL,
)
MATH_DELIMITERS = {"$$": "$$", "\\[": "\\]"}  # opening line -> end of the closing line
ESCAPABLE = frozenset("*_`~#|<>!+-.\"'$&")  # a backslash before others may be a formula
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")
CELL_BORDER = re.compile(r"(?<!\\)\|")
PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def make_parser(*, blocks_only: bool = False) -> "MarkdownIt":
    from markdown_it import MarkdownIt

    md = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    md.disable(["reference", "html_block", "html_inline"])
    if blocks_only:
        md.core.ruler.disable(["inline", "text_join"])
    md.inline.ruler.at("escape", escape_rule)
    md.inline.ruler.before("escape", "math", inline_math_rule)
    md.block.ruler.before(
        "fence", "math_block", math_block_rule, {"alt": ["paragraph", "blockquote", "list"]}
    )
    return md


def parse_markdown(md: "MarkdownIt", text: str) -> list["Token"]:
    """Tokens of a text; surplus cells of a table row are joined into its last cell."""
    tokens = md.parse(text)
    if not any(token.type == "tbody_open" for token in tokens):
        return tokens
    lines = text.split("\n")
    columns = 0
    for token in tokens:
        if token.type == "table_open":
            columns = 0
        elif token.type == "th_open":
            columns += 1
        elif token.type == "tbody_open" and token.map:
            for line in range(*token.map):
                lines[line] = limit_cells(lines[line], columns)
    return md.parse("\n".join(lines))


def limit_cells(line: str, columns: int) -> str:
    """Escape the surplus borders of a table row; a bar inside code is not a border."""
    line = CODE_SPAN.sub(lambda span: CELL_BORDER.sub(r"\\|", span.group()), line)
    bars = [bar.start() for bar in CELL_BORDER.finditer(line)]
    bars = bars[1:] if line.lstrip(" \t>").startswith("|") else bars
    closed = line.rstrip().endswith("|") and len(bars) >= columns
    for position in reversed(bars[columns - 1 : len(bars) - closed]):
        line = line[:position] + "\\" + line[position:]
    return line


def fence_language(info: str) -> str:
    return re.split(r"[\s,:{}]", info.strip().lstrip("{."))[0]


def inline_math_rule(state: "StateInline", silent: bool) -> bool:
    """Inline rule: a formula is plain text, so its stars and underscores are not emphasis."""
    if state.src[state.pos] not in "$\\":
        return False
    match = INLINE_MATH.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        state.pending += match.group()
    state.pos = match.end()
    return True


def escape_rule(state: "StateInline", silent: bool) -> bool:
    """Inline rule: a backslash escapes Markdown characters only; elsewhere it stays visible."""
    if state.src[state.pos] != "\\" or state.pos + 1 >= state.posMax:
        return False
    character = state.src[state.pos + 1]
    if character == "\n":
        if not silent:
            state.push("hardbreak", "br", 0)
    elif character not in PUNCTUATION:
        return False
    elif not silent:
        state.pending += character if character in ESCAPABLE else "\\" + character
    state.pos += 2
    return True


def math_block_rule(state: "StateBlock", start: int, end: int, silent: bool) -> bool:
    """Block rule: lines between `$$` or `\\[ \\]`, each delimiter alone on its line."""
    if state.is_code_block(start):
        return False
    close = MATH_DELIMITERS.get(stripped_line(state, start))
    if close is None:
        return False
    if silent:
        return True
    line = start + 1
    while line < end and not state.isEmpty(line) and state.sCount[line] >= state.blkIndent:
        line += 1
        if stripped_line(state, line - 1).endswith(close):
            break
    state.line = line
    token = state.push("math_block", "", 0)
    token.map = [start, line]
    token.content = state.getLines(start, line, state.sCount[start], False)
    return True


def stripped_line(state: "StateBlock", line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].rstrip()


AMBIGUOUS_LINE = re.compile(r"[ \t]*(?:[-=*+_#>|`~: \t]+|\d{1,9}[.)]?|\$\$?|\\\[?)[ \t]*")
LIST_TYPES = ("bullet_list_open", "ordered_list_open")
ENDS_AT_BLANK = ("paragraph_open", "table_open", "blockquote_open", "math_block")
SINGLE_LINE = ("heading_open", "hr")


class MarkdownStream:
    def __init__(self) -> None:
        self._parser = make_parser(blocks_only=True)
        self._lines: list[str] = []  # complete lines that were not emitted
        self._parts: list[str] = []  # pieces of the incomplete line
        self._parse_at = 1  # number of lines that triggers the next parse
        # The code block that the first of these lines belongs to, or the list that it may continue.
        self._fence: re.Pattern[str] | None = None  # matches the end of the block
        self._indent = 0
        self._language = ""
        self._unstarted = True  # no line of the block was emitted yet
        self._blank_lines = 0  # which wait for the next line with text
        self._list: tuple[str, str] | None = None
        self._number = 1
        self._after_blank = False

    def feed(self, text: str) -> list[Fragment]:
        if "\n" not in text:
            self._parts.append(text)
            return []
        *lines, rest = ("".join(self._parts) + text).split("\n")
        self._lines += lines
        self._parts = [rest]
        if self._fence is None and len(self._lines) < self._parse_at:
            return []
        fragments = self._take(final=False)
        self._parse_at = len(self._lines) + max(1, len(self._lines) // 10)
        return fragments

    def tail(self) -> list[Fragment]:
        """The unfinished text as it looks now, without a last line whose meaning is still open."""
        now = copy(self)
        if AMBIGUOUS_LINE.fullmatch("".join(self._parts)):
            return now._take(final=True)
        return now.finish()

    def finish(self) -> list[Fragment]:
        self._lines = [*self._lines, "".join(self._parts)]
        self._parts = []
        return self._take(final=True)

    @property
    def in_code(self) -> bool:
        return self._fence is not None and not self._unstarted

    def _take(self, *, final: bool) -> list[Fragment]:
        """The fragments of the finished lines, or of all of them; the other lines stay."""
        lines = self._lines
        fragments: list[Fragment] = []
        base = used = self._take_code(0, fragments)
        tokens = self._parser.parse("\n".join(lines[base:])) if base < len(lines) else []
        blocks = [token for token in tokens if not token.level and token.nesting >= 0 and token.map]
        for index, block in enumerate(blocks):
            last = index == len(blocks) - 1
            start, stop = (base + line for line in block.map or ())
            after = len(lines) if last else base + first_line(blocks[index + 1])
            if block.type == "fence":
                self._open_fence(block, lines[start])
                used = self._take_code(start + 1, fragments)
            elif block.type in LIST_TYPES:
                starts = [base + first_line(token) for token in tokens if is_item(token, block)]
                used = self._take_items(block, [*starts, after], last and not final, fragments)
            elif last and not final and not is_closed(block, lines, stop):
                break
            else:
                fragments.append(Fragment("block", join_lines(lines[start:after]), gap=True))
                used = after
                self._list = None
        self._lines = lines[used:]
        return fragments

    def _open_fence(self, block: "Token", line: str) -> None:
        marker = re.escape(block.markup[0])
        self._fence = re.compile(rf" {{0,3}}{marker}{{{len(block.markup)},}}[ \t]*")
        self._indent = len(line) - len(line.lstrip(" "))
        self._language = fence_language(block.info)
        self._unstarted = True
        self._blank_lines = 0
        self._list = None

    def _take_code(self, start: int, fragments: list[Fragment]) -> int:
        """Emit the lines of an open code block from line `start`; return the line after them."""
        if self._fence is None:
            return start
        for index in range(start, len(self._lines)):
            line = self._lines[index]
            if self._fence.fullmatch(line):
                self._fence = None
                return index + 1
            line = line[min(self._indent, len(line) - len(line.lstrip(" "))) :]
            if not line.strip():
                self._blank_lines += 1
                continue
            first = self._unstarted
            if not first:
                fragments += [Fragment("code", "", language=self._language)] * self._blank_lines
            fragments.append(Fragment("code", line, first, language=self._language, first=first))
            self._unstarted = False
            self._blank_lines = 0
        return len(self._lines)

    def _take_items(
        self, block: "Token", starts: list[int], hold_last: bool, fragments: list[Fragment]
    ) -> int:
        """Emit a list's items, except the last one with `hold_last`; return the line after them.

        starts: of the items, and of what follows.
        """
        kind = (block.type, block.markup)
        for start, end in list(pairwise(starts))[: len(starts) - 1 - hold_last]:
            continues = self._list == kind
            if not continues:
                self._number = int(block.attrs.get("start", 1))
            after_blank = is_blank(self._lines[start - 1]) if start else self._after_blank
            fragments.append(
                Fragment(
                    "block",
                    join_lines(self._lines[start:end]),
                    gap=after_blank or not continues,
                    number=self._number if block.type == "ordered_list_open" else None,
                )
            )
            self._list = kind
            self._number += 1
            self._after_blank = is_blank(self._lines[end - 1])
        return starts[-1 - hold_last]


def is_blank(line: str) -> bool:
    return not line.strip(" \t")


def join_lines(lines: Sequence[str]) -> str:
    return re.sub(r"(\n[ \t]*)+\Z", "", "\n".join(lines))


def first_line(token: "Token") -> int:
    return token.map[0] if token.map else 0


def is_item(token: "Token", block: "Token") -> bool:
    """Whether a token opens an item of this top-level list."""
    if token.type != "list_item_open" or token.level != 1 or not (token.map and block.map):
        return False
    return block.map[0] <= token.map[0] < block.map[1]


def is_closed(block: "Token", lines: Sequence[str], stop: int) -> bool:
    """Whether later text cannot extend the last block, which ends before line `stop`."""
    return block.type in SINGLE_LINE or (
        block.type in ENDS_AT_BLANK and stop < len(lines) and is_blank(lines[stop])
    )
