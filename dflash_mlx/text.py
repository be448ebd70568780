"""Text as Unicode has it, and names that are near to another."""

import difflib
from collections.abc import Iterable


def whole_text(text: str) -> str:
    """A text with U+FFFD for each half of a character (a lone surrogate), which is no Unicode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def did_you_mean(name: str, known: Iterable[str], form: str = "'{}'") -> str:
    """A question with the known name that is nearest, in this form; empty if none is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {form.format(near[0])}?" if near else ""
