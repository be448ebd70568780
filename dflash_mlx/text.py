"""Text as Unicode has it."""


def whole_text(text: str) -> str:
    """A text with U+FFFD for each half of a character (a lone surrogate), which is no Unicode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
