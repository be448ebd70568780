"""JSON as models write it in calls: where it ends, and as an object if it is nearly JSON.

Mending keeps each value as it is written; a string whose end is not certain is not mended. (The
library json_repair takes `{"text": "a""b"}` for the text `a`.)
"""

import json
import re
from typing import Any

from dflash_mlx.text import whole_text

# A string, or a bracket outside of strings.
JSON_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)
ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])|\\')
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # the escape of half a character


def as_json(value: Any) -> str:
    """Raises ValueError for numbers that JSON lacks."""
    return whole_text(json.dumps(value, ensure_ascii=False, allow_nan=False))


def json_end(text: str) -> int:
    """The index after the first object or array in a text; -1 if it has not ended."""
    depth = 0
    for mark in JSON_MARK.finditer(text):
        depth += (mark[0] in "{[") - (mark[0] in "}]")
        if depth <= 0:
            return mark.end()
    return -1


def json_object(text: str) -> str | None:
    """An object that is JSON or nearly so, as JSON; None for any other text.

    In strings, control characters may stand for their escapes, and a backslash for itself. Halves
    of characters are written as `whole_text`.
    """
    escaped = ESCAPE.sub(lambda escape: escape[0] if escape[0][1:] else r"\\", text)
    for written, strict in ((text, True), (escaped, False)):
        try:
            value = json.loads(written, strict=strict)
            again = as_json(value)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return text if strict and not SURROGATE.search(text) else again
    return None


def json_calls(text: str) -> list[Any]:
    """The objects of a text, also of a list of them; raises ValueError for other text."""
    objects: list[Any] = []
    while text := text.lstrip(" \t\r\n,]}" if objects else " \t\r\n["):
        end = json_end(text)
        written = json_object(text[:end]) if text.startswith("{") and end > 0 else None
        if written is None:
            raise ValueError(text)
        objects.append(json.loads(written))
        text = text[end:]
    return objects
