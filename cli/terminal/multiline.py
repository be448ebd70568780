'''Prompts of several lines from keys that every terminal has: a backslash at the end of a line,
and `"""` around the whole. Knows text only.
'''

QUOTES = '"""'


def continued(text: str) -> str | None:
    """The text with another line begun, where Enter after it means that; otherwise None.

    A backslash at the end becomes the new line; a text that begins with quotes goes on until the
    next ones.
    """
    if opens_block(text):
        return text + "\n"
    return text[:-1] + "\n" if text.endswith("\\") else None


def opens_block(text: str) -> bool:
    """Whether a text begins with quotes that no others have closed yet."""
    return text.lstrip().startswith(QUOTES) and text.count(QUOTES) == 1


def unquoted(text: str) -> str:
    """The text without the quotes around it."""
    inner = text.strip()
    if len(inner) >= 2 * len(QUOTES) and inner.startswith(QUOTES) and inner.endswith(QUOTES):
        return inner[len(QUOTES) : -len(QUOTES)].strip("\n")
    return text
