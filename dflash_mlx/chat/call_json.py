"""JSON as models write it in calls: where it ends, and as an object if it is nearly JSON.

Mending keeps each value as it is written. A string whose end is not certain is not mended: a
library for it (json_repair) takes `{"text": "a""b"}` for the text `a`.
"""

import json
import re
from typing import Any

# A string, or a bracket outside of strings. Single quotes stand for double ones, outside of them.
STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"' + r"|'[^'\\]*(?:\\.[^'\\]*)*'"
MARKS = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)' + r"|'[^'\\]*(?:\\.[^'\\]*)*(?:'|\\?\Z)|[{}\[\]]"
# What is JSON only after mending: a string, a Python literal, a comma too many.
NEARLY = re.compile(rf"{STRING}|\b(?:True|False|None)\b|,(?=\s*[}}\]])", re.DOTALL)
WORDS = {"True": "true", "False": "false", "None": "null"}
ESCAPES = re.compile(r"""\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])|\\'|["\\]""")
SURROGATE = re.compile("[\ud800-\udfff]")
BRACKETS = {"{": "}", "[": "]"}


def as_json(value: Any) -> str:
    """Raises ValueError for numbers that JSON lacks."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return json.dumps(value) if SURROGATE.search(written) else written


def json_end(text: str, stop: str = "") -> int:
    """The index after the first object or array in a text; -1 if it has not ended.

    The text `stop` outside of strings ends it, too.
    """
    depth = 0
    for mark in re.finditer(rf"{MARKS}|{re.escape(stop)}" if stop else MARKS, text, re.DOTALL):
        if mark[0] == stop:
            return mark.start()
        depth += (mark[0] in "{[") - (mark[0] in "}]")
        if depth <= 0:
            return mark.end()
    return -1


def json_object(text: str) -> str | None:
    """An object that is JSON or nearly so, as JSON; None for any other text."""
    try:
        return text if isinstance(json.loads(text, parse_constant=refuse), dict) else None
    except (ValueError, RecursionError):
        pass
    try:
        value = json.loads(mended(text), strict=False, parse_constant=refuse)
        return as_json(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def refuse(name: str) -> None:
    raise ValueError(f"JSON has no {name}.")


def mended(text: str) -> str:
    """Text with the strings, literals and commas of JSON, and with brackets that were missing."""
    closing = ""
    for mark in re.finditer(MARKS, text, re.DOTALL):
        if mark[0] in BRACKETS:
            closing = BRACKETS[mark[0]] + closing
        elif closing and mark[0] == closing[0]:
            closing = closing[1:]
    return NEARLY.sub(mended_part, text.rstrip() + closing)


def mended_part(part: re.Match[str]) -> str:
    if part[0][0] not in "\"'":
        return WORDS.get(part[0], "")
    is_python = part[0][0] == "'"

    def mended_escape(escape: re.Match[str]) -> str:
        if escape[0] == "\\'":
            return "'" if is_python else "\\\\'"
        return escape[0] if len(escape[0]) > 1 else "\\" + escape[0]

    return f'"{ESCAPES.sub(mended_escape, part[0][1:-1])}"'


def json_calls(text: str, tools: object = None) -> list[Any]:
    """The objects of a text, also of a list of them; raises ValueError for other text."""
    objects = []
    while text := text.strip(" \t\r\n,[]}" if not objects else " \t\r\n,]}"):
        end = json_end(text)
        written = json_object(text if end < 0 else text[:end])
        if not text.startswith("{") or written is None:
            raise ValueError(text)
        objects.append(json.loads(written))
        text = "" if end < 0 else text[end:]
    return objects
