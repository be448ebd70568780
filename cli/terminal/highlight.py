"""Colours for code, line by line: a line's colours follow from the lines before it alone.

Knows programming languages (through Pygments), not terminals.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygments.lexer import Lexer
    from rich.text import Text

# Few colours, all of them to be read on black and on white.
STYLES = {
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
LONG = 1000  # characters of a line from which it is data, not code
ENOUGH, PLENTY = 8, 80  # lines before the one to colour: more only inside something, and never


class Highlighter:
    """One block of code, a line at a time."""

    def __init__(self, language: str):
        self._lexer = find_lexer(language)
        self._before: list[str] = []  # lines that the next one is read with
        self._inside = False  # a string or a comment goes on

    def copy(self) -> "Highlighter":
        """Another one in the same state."""
        other = Highlighter("")
        other._lexer, other._inside = self._lexer, self._inside
        other._before = list(self._before)
        return other

    def line(self, line: str) -> "Text":
        """The next line in colours."""
        from rich.text import Text

        if self._lexer is None or len(line) > LONG:
            return Text(line)
        begins = line[:1].strip() and len(self._before) >= ENOUGH
        if len(self._before) >= PLENTY or (begins and not self._inside):
            self._before.clear()
        self._before.append(line)
        code = "\n".join(self._before) + "\n"
        start, end = len(code) - len(line) - 1, len(code) - 1
        text, at = Text(), 0
        for kind, part in self._lexer.get_tokens(code + closers(code)):
            shown = part[max(start - at, 0) : max(end - at, 0)]
            at += len(part)
            if shown:
                text.append(shown, style_of(kind))
            if at > end:
                self._inside = kind[0:2] == ("Literal", "String") or kind[0:1] == ("Comment",)
                self._inside = self._inside and part != "\n"
                break
        return text if text.plain == line else Text(line)


def closers(code: str) -> str:
    """Ends of comments that may be open: many lexers know no comment without its end."""
    return ("*/\n" if "/*" in code else "") + ("-->\n" if "<!--" in code else "")


def style_of(kind: tuple[str, ...]) -> str:
    """The style of a kind of token or of the nearest wider kind."""
    for length in range(len(kind), 0, -1):
        if style := STYLES.get(".".join(kind[:length])):
            return style
    return ""


@lru_cache(maxsize=16)
def find_lexer(language: str) -> "Lexer | None":
    """The lexer of a language; None when it is unknown or none was named."""
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    if not language:
        return None
    try:
        return get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
