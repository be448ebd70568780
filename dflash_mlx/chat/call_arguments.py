"""The arguments of a tool call as JSON, also while they are generated.

Arguments that a family writes as JSON stay as they are written, unless they are mended; those
between the tags of `TAGGED_FORMATS` become JSON. A text that ends arguments belongs to a value
unless the format's own structure follows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import regex

from .call_formats import CallFormat, TaggedFormat, marks_of, one_line_break
from .call_json import as_json, json_end, json_object

# The start of an array or object in JSON; Python literals are left to mlx-lm's parser.
JSON_START = re.compile(r'\s*(\[\s*[\]\[{"\d\-tfn]|\{\s*["}])')
CDATA = "<![CDATA["
LONG_NUMBER = re.compile(r"-?[1-9]\d{15,}")  # which is rounded if it is read as a float


def hidden(value: str) -> str:
    """A value without tags of its format, for mlx-lm's parsers; `shown` turns it back."""
    return re.sub("<(?=\ue000*[/|])", "<\ue000", value)


def shown(value: str) -> str:
    return re.sub("<\ue000(?=\ue000*[/|])", "<", value)


@dataclass(frozen=True, slots=True)
class ArgumentsReader:
    """Reads a call's arguments as JSON. header: the text before them. tools: as in `ToolParser`.

    ended: whether the model has ended the answer.
    """

    call_format: CallFormat
    header: regex.Match[str]
    tools: Sequence[dict[str, Any]]
    ended: bool = False

    def read(self, text: str) -> tuple[str, str | None] | None:
        """The JSON and the text after it; the JSON's beginning and None if it has not ended.

        None if the arguments cannot be read.
        """
        if self.call_format.tagged is not None:
            return self._read_tagged(self.call_format.tagged, text)
        end = json_end(text)
        if end < 0:
            return text, None
        arguments = json_object(text[:end])
        return None if arguments is None else (arguments, text[end:])

    def _read_tagged(self, tagged: TaggedFormat, text: str) -> tuple[str, str | None] | None:
        members: dict[str, str] = {}  # JSON by name; the first value of a name counts
        while start := regex.match(tagged.argument_start, text):
            key = start[1]
            value, rest = self._split_value(tagged, {key, *members}, text[start.end() :])
            if rest is None:
                if begun := self._begun_value(tagged, key, value):
                    members.setdefault(key, begun)
                return begun_object(members), None
            if key not in members:
                members[key] = self._whole_value(tagged, start, value)
            text = rest
        whole = (begun_object(members) or "{") + "}"
        if self.ended and members and not text.strip():
            return whole, ""
        after = marks_of(self.call_format).after.match(text, partial=True)
        if after is None:
            return None
        if after.partial:
            return begun_object(members), None
        return whole, text[after.end("close") if after["close"] else after.start("rest") :]

    def _split_value(
        self, tagged: TaggedFormat, given: set[str], text: str
    ) -> tuple[str, str | None]:
        """The value at the start of a text, and what comes after it; None if it may continue.

        given: the names of this argument and of those before it. A call inside of the value belongs
        to it, with its tags, as far as it has an end.
        """
        begin = self._first_end(text)
        marks = marks_of(self.call_format)
        depth = last = 0  # calls that are open, and the index after the last tag in them
        repeated: set[str] = set()  # names of arguments that come later, with all their tags
        for mark in (marks.whole if self.ended else marks.value).finditer(text, begin):
            inner = text[last : mark.start()]
            if mark["open"] or mark["end"]:
                last = mark.end()
            if mark["open"]:
                depth += 1
            elif depth:
                depth -= bool(mark["close"]) and not inner.strip()
            elif mark["end"]:
                return text[: mark.start()], text[mark.end() :]
            elif mark["next"] and self._is_next(tagged, given | repeated, text, mark.start()):
                names = self._names_in(tagged, given, text[mark.start() :])
                if names is None and not self.ended:
                    return text, None
                if names and names.count(names[0]) == 1:
                    return text[: mark.start()], text[mark.start() :]
                repeated |= {*names[:1]} if names else set()
        if self.ended and (end := marks.weak.search(text, begin)):
            return text[: end.start()], text[end.end() :]
        return text, None

    def _names_in(self, tagged: TaggedFormat, given: set[str], text: str) -> list[str] | None:
        """The names of the arguments at the start of a text; None if the last has not ended."""
        names: list[str] = []
        while start := regex.match(tagged.argument_start, text):
            names.append(start[1])
            _, rest = self._split_value(tagged, {*given, *names}, text[start.end() :])
            if rest is None:
                return None
            text = rest
        return names

    def _first_end(self, text: str) -> int:
        """Where a value may end first: after the JSON or the CDATA that it begins with."""
        end = 0
        if JSON_START.match(text):
            end = json_end(text)
        elif text.lstrip().startswith(CDATA):
            end = text.find("]]>")
        # What never ends may be something else.
        return end if end >= 0 else 0 if self.ended else len(text)

    def _is_next(self, tagged: TaggedFormat, given: set[str], text: str, index: int) -> bool:
        """Whether an argument starts here whose predecessor has no end.

        Its tag is alone on its line if that of the predecessor, whose value a text begins with, is.
        """
        start = regex.compile(tagged.argument_start).match(text, index)
        if not start or start[1] in given or self._schema(start[1]) is None:
            return False
        alone = "\n" in text[index : start.end() - len(start[0].lstrip())]
        alone = alone and text.startswith("\n", start.end())
        return alone or tagged.strip is not one_line_break or not text.startswith("\n")

    def _begun_value(self, tagged: TaggedFormat, key: str, value: str) -> str:
        """The beginning of the JSON of a value that has not ended; empty if it is not certain."""
        ends = regex.escape(tagged.argument_end)
        tags = regex.compile(rf"{ends}|{marks_of(self.call_format).value.pattern}")
        end = tags.search(value, partial=True)
        begun = tagged.strip(value[: end.start()] if end else value)
        if "null".startswith(begun.lower()) or not self._is_string(key):
            return ""
        return "" if CDATA.startswith(begun[: len(CDATA)]) else as_json(begun).removesuffix('"')

    def _whole_value(self, tagged: TaggedFormat, start: regex.Match[str], value: str) -> str:
        if LONG_NUMBER.fullmatch(value.strip()) and not self._is_string(start[1]):
            return value.strip()
        text = f"{self.header[0]}{start[0]}{hidden(value)}{tagged.argument_end}{tagged.call_end}"
        try:
            call = self.call_format.parse(text, list(self.tools))
            call = call[0] if isinstance(call, list) else call
            return shown(as_json(call["arguments"][start[1]]))
        except Exception:  # a parser may raise any exception; then the value is its text
            return as_json(tagged.strip(value))

    def _schema(self, key: str) -> Any:
        """The schema of an argument; None if the tool does not name it."""
        for tool in self.tools:
            function = tool["function"]
            if function["name"] == self.header[1]:
                properties = (function.get("parameters") or {}).get("properties")
                return properties.get(key) if isinstance(properties, dict) else None
        return None

    def _is_string(self, key: str) -> bool:
        """Whether the tool's schema allows only strings for an argument, and any string."""
        schema = self._schema(key)
        if not isinstance(schema, dict) or schema.get("type") != "string":
            return False
        return not any(word in schema for word in ("enum", "anyOf", "oneOf", "allOf"))


def begun_object(members: dict[str, str]) -> str:
    """An object without its end, of JSON by name; empty without members."""
    written = ", ".join(f"{as_json(key)}: {value}" for key, value in members.items())
    return written and "{" + written
