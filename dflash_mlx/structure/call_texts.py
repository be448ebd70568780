"""Strings as plain text in a call: what they may be, so that a parser gives them back."""

import re

from .arguments import Argument, cannot
from .call_shapes import Tags

BLANK = r"[ \t\r\n]"


def checked_choices(one: Argument, tags: Tags, place: str) -> tuple[str, ...]:
    """The texts that an argument may be; UsageError where a parser would read another one."""
    for value in one.choices or ():
        lost = not tags.quote and (value != value.strip() or value.lower() in ("", "null"))
        if lost or any(mark in value for mark in tags.never):
            raise cannot(place, f"the value {value!r:.60}")
    return one.choices or ()


def free_text(one: Argument, tags: Tags) -> str:
    """A terminal of Lark: any text of the schema's length and pattern without the format's marks.

    A pattern holds for all of the text from where it has an anchor. `format` is not looked at.
    """
    bare, schema = not tags.quote, one.schema
    marks = "|".join(escaped(mark) for mark in tags.never)
    parts = ["/(?s:.*)/", f"~/(?s:.*)({marks})(?s:.*)/"]
    if bare and tags.reads_null:
        parts.append(f"~/{BLANK}*[nN][uU][lL][lL]{BLANK}*/")
    least, most, pattern = (schema.get(name) for name in ("minLength", "maxLength", "pattern"))
    if least is not None or most is not None:
        parts.append(f"/(?s:.{{{least or 0},{'' if most is None else most}}})/")
    if isinstance(pattern, str):
        lead = "" if pattern.startswith("^") else "(?s:.*)"
        ends = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
        inner = pattern.removeprefix("^")
        inner = re.sub(r"(?<!\\)/", r"\/", inner if ends else inner[:-1]).replace("\n", r"\n")
        parts.append(f"/{lead}({inner}){ends}/")
    if bare and parts[3 if tags.reads_null else 2 :]:  # blanks at the ends get lost
        parts.append(f"~/{BLANK}(?s:.*)/ & ~/(?s:.*){BLANK}/")
    return " & ".join(parts)


def escaped(text: str) -> str:
    """A text in an expression of Lark."""
    return re.sub(r"([\\|\[\](){}.*+?^$/&~])", r"\\\1", text)
