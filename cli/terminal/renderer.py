"""Renders Markdown as terminal lines: no boxes, no centring, no decoration around code.

Never breaks a line of code, so that text copied from the screen is the code; the terminal wraps it.
"""

import io
from collections.abc import Iterable, Sequence
from copy import copy
from functools import lru_cache

from markdown_it.tree import SyntaxTreeNode as Node
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token, string_to_tokentype
from pygments.util import ClassNotFound
from rich.box import Box
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.syntax import ANSISyntaxTheme
from rich.table import Table
from rich.text import Text

from .markdown import Fragment, fence_language, make_parser, parse_markdown

# Syntax highlighting line by line

# Few colours, all readable on black and on white.
TOKEN_STYLES = {
    "Comment": "dim",
    "Comment.Preproc": "magenta",
    "Comment.PreprocFile": "green",
    "Keyword": "magenta",
    "Operator.Word": "magenta",
    "Name.Tag": "magenta",
    "Name.Decorator": "cyan",
    "Name.Attribute": "cyan",
    "Name.Variable": "cyan",
    "Literal.Number": "cyan",
    "Literal.String": "green",
    "Literal.String.Interpol": "cyan",
    "Generic.Deleted": "red",
    "Generic.Inserted": "green",
    "Generic.Heading": "bold",
    "Generic.Subheading": "cyan",
    "Generic.Prompt": "dim",
    "Generic.Output": "dim",
    "Generic.Strong": "bold",
    "Generic.Emph": "italic",
}
THEME = ANSISyntaxTheme(
    {string_to_tokentype(name): Style.parse(style) for name, style in TOKEN_STYLES.items()}
)
MAX_LINE_LENGTH = 1000  # a longer line is data, not code
# The lexer reads earlier lines again. It starts anew at a line without indentation after this many
# lines, unless in a string or comment, and anywhere after the maximum.
RESTART_LINES = 8
MAX_CONTEXT_LINES = 80


class Highlighter:
    def __init__(self, language: str):
        self._lexer = find_lexer(language)
        self._context: tuple[str, ...] = ()  # earlier lines, lexed together with the next one
        self._inside = False  # of a string or a comment

    def line(self, line: str) -> Text:
        if self._lexer is None or len(line) > MAX_LINE_LENGTH:
            return Text(line)
        starts_block = line[:1].strip() and len(self._context) >= RESTART_LINES
        if len(self._context) >= MAX_CONTEXT_LINES or (starts_block and not self._inside):
            self._context = ()
        self._context = (*self._context, line)
        code = "\n".join(self._context) + "\n"
        start = len(code) - len(line) - 1
        end = len(code) - 1
        # Many lexers need the end of a comment.
        code += ("*/\n" if "/*" in code else "") + ("-->\n" if "<!--" in code else "")
        text = Text()
        position = 0
        for token_type, token_text in self._lexer.get_tokens(code):
            visible = token_text[max(start - position, 0) : max(end - position, 0)]
            position += len(token_text)
            if visible:
                text.append(visible, THEME.get_style_for_token(token_type))
            if position > end:
                self._inside = token_text != "\n" and (
                    token_type in Token.Literal.String or token_type in Token.Comment
                )
                break
        return text if text.plain == line else Text(line)


@lru_cache(maxsize=16)
def find_lexer(language: str) -> Lexer | None:
    """The lexer of a language; None when the language is unknown or empty."""
    if not language:
        return None
    try:
        return get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


# Tables for a terminal

MIN_COLUMN_WIDTH = 10  # cells; less if all words of a column are shorter
COLUMN_GAP = 3  # cells between two columns


def table_lines(
    console: Console, rows: Sequence[Sequence[Text]], width: int, rule: str
) -> list[Text]:
    """Lines of a table; the first row is its header, `rule` the character that underlines it."""
    head, *body = rows
    word_widths = [max(map(longest_word, column)) for column in zip(*rows, strict=True)]
    column_widths = [min(word_width, MIN_COLUMN_WIDTH) for word_width in word_widths]
    min_width = sum(column_widths) + COLUMN_GAP * (len(head) - 1)
    if body and min_width > width:
        return record_lines(console, head, body, width)
    blank = "    \n"
    box = Box(blank * 2 + f" {rule * 2} \n" + blank * 5, ascii=True)
    table = Table(box=box, show_edge=False, pad_edge=False, header_style="bold", border_style="dim")
    for text in head:
        table.add_column(text, overflow="fold")
    for row in body:
        table.add_row(*row)
    lines = console.render_lines(table, console.options.update(width=width), pad=False)
    return [Text.assemble(*((part.text, part.style or "") for part in line)) for line in lines]


def record_lines(
    console: Console, head: Sequence[Text], body: Iterable[Sequence[Text]], width: int
) -> list[Text]:
    """A table as records: each cell on its own line after its column's name."""
    lines: list[Text] = []
    for row in body:
        lines += [Text()] if lines else []
        for name, text in zip(head, row, strict=True):
            label = (f"{name.plain}: ", "bold") if name.plain else ""
            lines += Text.assemble(label, text).wrap(console, width, overflow="fold")
    return lines


def longest_word(text: Text) -> int:
    return max(map(cell_len, text.plain.split()), default=0)


INLINE_STYLES = {"strong": "bold", "em": "italic", "s": "strike"}
MIN_WIDTH = 8  # columns; nested text is never narrower
SYMBOLS = {"bullet": "•", "quote": "│", "rule": "─"}
ASCII_SYMBOLS = {"bullet": "*", "quote": "|", "rule": "-"}


class Renderer:
    """Renders fragments as lines; NO_COLOR keeps bold, dim and the like."""

    def __init__(self, *, ascii: bool = False):
        self._console = Console(
            file=io.StringIO(), force_terminal=True, color_system="standard", legacy_windows=False
        )
        self._symbols = ASCII_SYMBOLS if ascii else SYMBOLS
        self._code_style = "bold" if self._console.no_color else "cyan"
        self._parser = make_parser()
        self._highlighter = Highlighter("")

    def lines(
        self, fragments: Iterable[Fragment], width: int, *, gap: bool = False, wraps: bool = False
    ) -> list[str]:
        """Lines with escape sequences. Those of code may be wider than `width`, unless `wraps`.

        gap: whether there may be one before the first fragment, too.
        """
        rows: list[str] = []
        for fragment in fragments:
            texts = self._texts(fragment, width)
            rows += [""] * (fragment.gap and (gap or bool(rows)) and bool(texts))
            for text in texts:
                rows += map(self._ansi, self._wrap(text, width) if wraps else [text])
        return rows

    def preview(self, fragments: Iterable[Fragment], width: int) -> list[str]:
        """Lines of unfinished fragments, none wider than `width`."""
        highlighter = copy(self._highlighter)
        rows = self.lines(fragments, width, wraps=True)
        self._highlighter = highlighter
        return rows

    def _texts(self, fragment: Fragment, width: int) -> list[Text]:
        if fragment.kind == "code":
            if fragment.first:
                self._highlighter = Highlighter(fragment.language)
            return [self._highlighter.line(fragment.source)]
        if fragment.kind == "text":
            text = Text(fragment.source, "dim" if fragment.dim else "")
            for start, end, style in fragment.spans:
                text.stylize(style, start, end)
            return self._wrap(text, width)
        root = Node(parse_markdown(self._parser, fragment.source))
        return self._blocks(root.children, fragment.source.split("\n"), width, fragment.number)

    def _ansi(self, text: Text) -> str:
        """The text with escape sequences; tabs stay, which `Console.print` would expand."""
        text.rstrip()
        text.stylize_before(text.style)
        parts = []
        for part in text.render(self._console):
            style = part.style or Style.null()
            style = style.without_color if self._console.no_color else style
            parts.append(style.render(part.text, color_system=ColorSystem.STANDARD))
        return "".join(parts)

    def _wrap(self, text: Text, width: int) -> list[Text]:
        return list(text.wrap(self._console, max(width, 1), overflow="fold", tab_size=4))

    def _blocks(
        self, nodes: Sequence[Node], lines: Sequence[str], width: int, number: int | None = None
    ) -> list[Text]:
        """Blocks one below the other; an empty line only where the source has one."""
        rows: list[Text] = []
        for node in nodes:
            texts = self._block(node, lines, max(width, MIN_WIDTH), number)
            if rows and texts and follows_blank(node, lines):
                rows.append(Text())
            rows += texts
        return rows

    def _block(
        self, node: Node, lines: Sequence[str], width: int, number: int | None
    ) -> list[Text]:
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
                return self._wrap(Text(node.content), width)
            case "blockquote":
                inner = self._blocks(node.children, lines, width - 2)
                quote = (self._symbols["quote"] + " ", "dim")
                return prefixed(inner, quote, quote)
            case "bullet_list" | "ordered_list":
                return self._list(node, lines, width, number)
            case "hr":
                return [Text(self._symbols["rule"] * min(width, 40), "dim")]
            case "table":
                rows = [
                    [self._cell(cell) for cell in row.children]
                    for part in node.children
                    for row in part.children
                ]
                return table_lines(self._console, rows, width, self._symbols["rule"])
        raise AssertionError(node.type)

    def _cell(self, node: Node) -> Text:
        text = self._inline(node.children)
        text.justify = str(node.attrs.get("style", "")).removeprefix("text-align:") or "left"  # type: ignore[assignment]
        return text

    def _list(self, node: Node, lines: Sequence[str], width: int, number: int | None) -> list[Text]:
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
            rows += prefixed(inner, (marker, ""), (" " * len(marker), ""))
        return rows

    def _inline(self, nodes: Iterable[Node], style: str = "") -> Text:
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
                    label = self._inline(node.children, style)
                    url = str(node.attrs.get("href", ""))
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


def prefixed(texts: Iterable[Text], first: tuple[str, str], rest: tuple[str, str]) -> list[Text]:
    """Put a marker before each line: `first`, then `rest`."""
    return [Text.assemble(rest if index else first, text) for index, text in enumerate(texts)]


def follows_blank(node: Node, lines: Sequence[str]) -> bool:
    """Whether an empty line precedes a block; in a quote such a line has a marker."""
    return bool(node.map and node.map[0] and not lines[node.map[0] - 1].strip(" \t>"))


def strip_blank_lines(lines: list[str]) -> list[str]:
    filled = [index for index, line in enumerate(lines) if line.strip()]
    return lines[filled[0] : filled[-1] + 1] if filled else []
