"""Renders Markdown as terminal lines: no boxes, no centring, no decoration around code.

Knows blocks and columns, not where the lines go. Never breaks a line of code, so that text copied
from the screen is the code; the terminal wraps it.
"""

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .fragments import Fragment
from .highlight import Highlighter
from .markdown_rules import fence_language, make_parser, parse_markdown
from .tables import cell_alignment, table_lines

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode as Node
    from rich.text import Text

INLINE_STYLES = {"strong": "bold", "em": "italic", "s": "strike"}
MIN_WIDTH = 8  # columns; nested text is never narrower
SYMBOLS = {"bullet": "•", "quote": "│", "rule": "─"}
ASCII_SYMBOLS = {"bullet": "*", "quote": "|", "rule": "-"}


class Renderer:
    """Renders fragments as lines; NO_COLOR keeps bold, dim and the like."""

    def __init__(self, *, ascii: bool = False):
        from rich.console import Console

        self._console = Console(
            file=io.StringIO(), force_terminal=True, color_system="standard", legacy_windows=False
        )
        self._symbols = ASCII_SYMBOLS if ascii else SYMBOLS
        self._code_style = "bold" if self._console.no_color else "cyan"
        self._parser = make_parser()
        self._highlighter = Highlighter("")

    def lines(self, fragment: Fragment, width: int) -> list[str]:
        """A fragment's lines with escape sequences; lines of code may be wider than `width`."""
        return [self._ansi(text) for text in self._texts(fragment, width)]

    def preview(self, fragments: Iterable[Fragment], width: int) -> list[str]:
        """Lines of unfinished fragments with gaps between them, none wider than `width`."""
        highlighter, rows = self._highlighter.copy(), []
        for fragment in fragments:
            texts = self._texts(fragment, width)
            rows += [""] * (fragment.gap and bool(rows) and bool(texts))
            for text in texts:
                rows += [self._ansi(line) for line in self._wrap(text, width)]
        self._highlighter = highlighter
        return rows

    def _texts(self, fragment: Fragment, width: int) -> list["Text"]:
        from rich.text import Text

        if fragment.kind == "code":
            if fragment.first:
                self._highlighter = Highlighter(fragment.language)
            return [self._highlighter.line(fragment.source)]
        if fragment.kind == "text":
            return self._wrap(Text(fragment.source, "dim" if fragment.dim else ""), width)
        return self._block_texts(fragment, width)

    def _block_texts(self, fragment: Fragment, width: int) -> list["Text"]:
        from markdown_it.tree import SyntaxTreeNode

        root = SyntaxTreeNode(parse_markdown(self._parser, fragment.source))
        return self._blocks(root.children, fragment.source.split("\n"), width, fragment.number)

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
        """Blocks one below the other; an empty line only where the source has one."""
        from rich.text import Text

        rows: list[Text] = []
        for node in nodes:
            texts = self._block(node, lines, max(width, MIN_WIDTH), number)
            if rows and texts and follows_blank(node, lines):
                rows.append(Text())
            rows += texts
        return rows

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
                highlighter = Highlighter(fence_language(node.info))
                return [
                    highlighter.line(line) for line in strip_blank_lines(node.content.split("\n"))
                ]
            case "math_block":
                return [
                    text for line in node.content.split("\n") for text in self._plain(line, width)
                ]
            case "blockquote":
                inner = self._blocks(node.children, lines, width - 2)
                return prefixed(inner, (self._symbols["quote"] + " ", "dim"))
            case "bullet_list" | "ordered_list":
                return self._list(node, lines, width, number)
            case "hr":
                return [Text(self._symbols["rule"] * min(width, 40), "dim")]
            case "table":
                rows = [
                    [(self._inline(cell.children), cell_alignment(cell)) for cell in row.children]
                    for part in node.children
                    for row in part.children
                ]
                return table_lines(self._console, rows, width, self._symbols["rule"])
        raise AssertionError(node.type)

    def _plain(self, line: str, width: int) -> list["Text"]:
        from rich.text import Text

        return self._wrap(Text(line), width)

    def _list(
        self, node: "Node", lines: Sequence[str], width: int, number: int | None
    ) -> list["Text"]:
        from rich.text import Text

        number = int(node.attrs.get("start", 1)) if number is None else number
        rows: list[Text] = []
        for index, item in enumerate(node.children):
            if node.type == "bullet_list":
                marker = f" {self._symbols['bullet']} "
            else:
                marker = f"{number + index:2}{node.markup} "
            inner = self._blocks(item.children, lines, width - len(marker)) or [Text()]
            if index and follows_blank(item, lines):
                rows.append(Text())
            rows += prefixed(inner, (" " * len(marker), ""), first=(marker, ""))
        return rows

    def _inline(self, nodes: Iterable["Node"], style: str = "") -> "Text":
        from rich.text import Text

        text = Text()
        for node in nodes:
            match node.type:
                case "inline":
                    text.append_text(self._inline(node.children, style))
                case "text":
                    text.append(node.content, style)
                case "softbreak" | "hardbreak":  # models mean their line breaks
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
                    text.append_text(
                        self._inline(node.children, f"{style} {INLINE_STYLES[kind]}".strip())
                    )
        return text


def prefixed(
    texts: Iterable["Text"], prefix: tuple[str, str], first: tuple[str, str] | None = None
) -> list["Text"]:
    """Put a marker before each line; `first` replaces it on the first line."""
    from rich.text import Text

    return [
        Text.assemble(first if first and not index else prefix, text)
        for index, text in enumerate(texts)
    ]


def follows_blank(node: "Node", lines: Sequence[str]) -> bool:
    """Whether an empty line precedes a block; the empty lines of a quote have a marker."""
    return bool(node.map and node.map[0] and not lines[node.map[0] - 1].strip(" \t>"))


def strip_blank_lines(lines: list[str]) -> list[str]:
    """Remove empty lines at both ends."""
    filled = [index for index, line in enumerate(lines) if line.strip()]
    return lines[filled[0] : filled[-1] + 1] if filled else []
