"""Markdown as lines for a terminal: no boxes, no centring, code without decoration.

Knows blocks and columns, not where the lines go. A line of code is never broken, so that what is
copied from the screen is the code; the terminal wraps it.
"""

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .dialect import language_of, parse, parser
from .highlight import Highlighter
from .pieces import Piece
from .tables import alignment, table_lines

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode as Node
    from rich.text import Text

INLINE = {"strong": "bold", "em": "italic", "s": "strike"}
NARROW = 8  # columns that nested text has at least
SIGNS = {"bullet": "•", "quote": "│", "rule": "─"}
ASCII_SIGNS = {"bullet": "*", "quote": "|", "rule": "-"}


class Renderer:
    """Turns pieces into lines; NO_COLOR leaves bold, dim and the like."""

    def __init__(self, *, ascii: bool = False):
        from rich.console import Console

        self._console = Console(
            file=io.StringIO(), force_terminal=True, color_system="standard", legacy_windows=False
        )
        self._signs = ASCII_SIGNS if ascii else SIGNS
        self._code_style = "bold" if self._console.no_color else "cyan"
        self._parser = parser()
        self._code = Highlighter("")

    def lines(self, piece: Piece, width: int) -> list[str]:
        """A piece's lines with their escape sequences; lines of code may be wider than `width`."""
        return [self._ansi(text) for text in self._texts(piece, width)]

    def preview(self, pieces: Iterable[Piece], width: int) -> list[str]:
        """Lines of what is not finished, none of them wider than `width`; gaps in between."""
        code, found = self._code.copy(), []
        for piece in pieces:
            texts = self._texts(piece, width)
            found += [""] * (piece.gap and bool(found) and bool(texts))
            for text in texts:
                found += [self._ansi(line) for line in self._wrap(text, width)]
        self._code = code
        return found

    def _texts(self, piece: Piece, width: int) -> list["Text"]:
        from rich.text import Text

        if piece.kind == "code":
            if piece.first:
                self._code = Highlighter(piece.language)
            return [self._code.line(piece.source)]
        if piece.kind == "text":
            return self._wrap(Text(piece.source, "dim" if piece.dim else ""), width)
        return self._block_texts(piece, width)

    def _block_texts(self, piece: Piece, width: int) -> list["Text"]:
        from markdown_it.tree import SyntaxTreeNode

        root = SyntaxTreeNode(parse(self._parser, piece.source))
        return self._blocks(root.children, piece.source.split("\n"), width, piece.number)

    def _ansi(self, text: "Text") -> str:
        from rich.color import ColorSystem

        text.rstrip()
        text.stylize_before(text.style)
        parts = []
        for part in text.render(self._console):
            style = part.style
            if style is not None and self._console.no_color:
                style = style.without_color
            shown = style.render(part.text, color_system=ColorSystem.STANDARD) if style else None
            parts.append(shown or part.text)
        return "".join(parts)

    def _wrap(self, text: "Text", width: int) -> list["Text"]:
        return list(text.wrap(self._console, max(width, 1), overflow="fold", tab_size=4))

    def _blocks(
        self, nodes: Sequence["Node"], lines: Sequence[str], width: int, number: int | None = None
    ) -> list["Text"]:
        """Blocks one below the other, with an empty line where the source has one."""
        from rich.text import Text

        found: list[Text] = []
        for node in nodes:
            texts = self._block(node, lines, max(width, NARROW), number)
            if found and texts and is_spaced(node, lines):
                found.append(Text())
            found += texts
        return found

    def _block(
        self, node: "Node", lines: Sequence[str], width: int, number: int | None
    ) -> list["Text"]:
        from rich.text import Text

        match node.type:
            case "paragraph":
                return self._wrap(self._inline(node.children), width)
            case "heading":
                style = "bold underline" if node.tag == "h1" else "bold"
                text = self._inline(node.children, style)
                return self._wrap(text, width) if text else []
            case "fence" | "code_block":
                code = Highlighter(language_of(node.info))
                return [code.line(line) for line in trimmed(node.content.split("\n"))]
            case "math_block":
                return [
                    text for line in node.content.split("\n") for text in self._plain(line, width)
                ]
            case "blockquote":
                inner = self._blocks(node.children, lines, width - 2)
                return prefixed(inner, (self._signs["quote"] + " ", "dim"))
            case "bullet_list" | "ordered_list":
                return self._list(node, lines, width, number)
            case "hr":
                return [Text(self._signs["rule"] * min(width, 40), "dim")]
            case "table":
                rows = [
                    [(self._inline(cell.children), alignment(cell)) for cell in row.children]
                    for part in node.children
                    for row in part.children
                ]
                return table_lines(self._console, rows, width, self._signs["rule"])
        raise AssertionError(node.type)

    def _plain(self, line: str, width: int) -> list["Text"]:
        from rich.text import Text

        return self._wrap(Text(line), width)

    def _list(
        self, node: "Node", lines: Sequence[str], width: int, number: int | None
    ) -> list["Text"]:
        from rich.text import Text

        number = int(node.attrs.get("start", 1)) if number is None else number
        found: list[Text] = []
        for place, item in enumerate(node.children):
            if node.type == "bullet_list":
                sign = f" {self._signs['bullet']} "
            else:
                sign = f"{number + place:2}{node.markup} "
            inner = self._blocks(item.children, lines, width - len(sign)) or [Text()]
            if place and is_spaced(item, lines):
                found.append(Text())
            found += prefixed(inner, (" " * len(sign), ""), first=(sign, ""))
        return found

    def _inline(self, nodes: Iterable["Node"], style: str = "") -> "Text":
        from rich.text import Text

        text = Text()
        for node in nodes:
            match node.type:
                case "inline":
                    text.append_text(self._inline(node.children, style))
                case "text":
                    text.append(node.content, style)
                case "softbreak" | "hardbreak":  # models break lines where they want them broken
                    text.append("\n")
                case "code_inline":
                    text.append(node.content, f"{style} {self._code_style}".strip())
                case "link":
                    label, url = self._inline(node.children, style), str(node.attrs.get("href", ""))
                    text.append_text(label)
                    if url.removeprefix("mailto:") != label.plain:
                        text.append(f" ({url})", "dim")
                case "image":
                    text.append(f"{node.content} ({node.attrs.get('src', '')})".lstrip(), style)
                case kind:
                    text.append_text(self._inline(node.children, f"{style} {INLINE[kind]}".strip()))
        return text


def prefixed(
    texts: Iterable["Text"], prefix: tuple[str, str], first: tuple[str, str] | None = None
) -> list["Text"]:
    """Lines with a sign before each, and maybe another before the first."""
    from rich.text import Text

    return [
        Text.assemble(first if first and not place else prefix, text)
        for place, text in enumerate(texts)
    ]


def is_spaced(node: "Node", lines: Sequence[str]) -> bool:
    """Whether the source has an empty line before a block; a quote's empty lines have a sign."""
    return bool(node.map and node.map[0] and not lines[node.map[0] - 1].strip(" \t>"))


def trimmed(lines: list[str]) -> list[str]:
    """Lines without empty ones at both ends."""
    filled = [place for place, line in enumerate(lines) if line.strip()]
    return lines[filled[0] : filled[-1] + 1] if filled else []
