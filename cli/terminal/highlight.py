"""Syntax highlighting line by line: earlier lines alone determine the colours of a line.

Knows programming languages (through Pygments), not terminals.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygments.lexer import Lexer
    from rich.text import Text

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
MAX_LINE_LENGTH = 1000  # a longer line is data, not code
# Limits of the earlier lines that the lexer sees: outside strings and comments, and anywhere.
RESTART_LINES, MAX_CONTEXT_LINES = 8, 80


class Highlighter:
    """Highlights one code block, a line at a time."""

    def __init__(self, language: str):
        self._lexer = find_lexer(language)
        self._context: list[str] = []  # earlier lines, lexed together with the next one
        self._inside = False  # of a string or a comment

    def copy(self) -> "Highlighter":
        """A second highlighter in the same state."""
        other = Highlighter("")
        other._lexer, other._inside = self._lexer, self._inside
        other._context = list(self._context)
        return other

    def line(self, line: str) -> "Text":
        """Highlight the next line."""
        from rich.text import Text

        if self._lexer is None or len(line) > MAX_LINE_LENGTH:
            return Text(line)
        starts_block = line[:1].strip() and len(self._context) >= RESTART_LINES
        if len(self._context) >= MAX_CONTEXT_LINES or (starts_block and not self._inside):
            self._context.clear()
        self._context.append(line)
        code = "\n".join(self._context) + "\n"
        start, end = len(code) - len(line) - 1, len(code) - 1
        text, position = Text(), 0
        for token_type, token_text in self._lexer.get_tokens(code + comment_ends(code)):
            visible = token_text[max(start - position, 0) : max(end - position, 0)]
            position += len(token_text)
            if visible:
                text.append(visible, token_style(token_type))
            if position > end:
                self._inside = token_type[0:2] == ("Literal", "String") or token_type[0:1] == (
                    "Comment",
                )
                self._inside = self._inside and token_text != "\n"
                break
        return text if text.plain == line else Text(line)


def comment_ends(code: str) -> str:
    """Closing marks for comments that may be open; many lexers need the end of a comment."""
    return ("*/\n" if "/*" in code else "") + ("-->\n" if "<!--" in code else "")


def token_style(token_type: tuple[str, ...]) -> str:
    """The style of a token type or of its nearest parent type."""
    for length in range(len(token_type), 0, -1):
        if style := TOKEN_STYLES.get(".".join(token_type[:length])):
            return style
    return ""


@lru_cache(maxsize=16)
def find_lexer(language: str) -> "Lexer | None":
    """The lexer of a language; None when the language is unknown or empty."""
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    if not language:
        return None
    try:
        return get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
