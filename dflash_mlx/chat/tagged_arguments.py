"""Arguments that a model writes one by one between tags, as JSON while they come.

A text comes as it is written, every other value when it has ended, read by mlx-lm's parser. An
argument that comes twice counts once. So do the formats of Qwen3-Coder, GLM and MiniMax; arguments
of Gemma, LFM2 (Python), Muse, MiniCPM5, LongCat and Kimi K3 come in one piece, at a call's end.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .json_arguments import JsonArguments
from .thinking import partial_match

JSON = re.compile(r'\s*(\[\s*[\]\[{"\d\-tfn]|\{\s*["}])')  # and no literal of Python's


@dataclass(frozen=True, slots=True)
class Tagged:
    """A format. head, opens: what begins a call and an argument, the one group its name.

    closes: the text behind a value. ends: what ends a call. one: a call of NAME with one KEY and
    VALUE, as the parser reads it. strips: all white space around a value is none of it, else one
    line break on each side. nulls: the bare text null is no string.
    """

    head: re.Pattern[str]
    opens: re.Pattern[str]
    closes: str
    ends: re.Pattern[str]
    one: str
    strips: bool = True
    nulls: bool = True

    def text(self, value: str) -> str:
        """A string's text, of what stands between the tags."""
        return value.strip() if self.strips else value.removeprefix("\n").removesuffix("\n")


GLM = Tagged(
    re.compile(r"\s*([\w.\-]+)\s*(?=<arg_key>)"),
    re.compile(r"\s*<arg_key>\s*([^<>]*[^<>\s])\s*</arg_key>\s*<arg_value>"),
    "</arg_value>",
    re.compile(r"(?!)"),  # the end of all calls is that of one
    "NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>",
    nulls=False,
)
TAGGED = {
    "glm47": GLM,
    "laguna": GLM,
    "qwen3_coder": Tagged(
        re.compile(r"\s*<function=([^\s<>]+)>"),
        re.compile(r"\s*<parameter=([^\s<>]+)>"),
        "</parameter>",
        re.compile(r"\s*</function>"),
        "<function=NAME><parameter=KEY>VALUE</parameter></function>",
        strips=False,
    ),
    "minimax_m2": Tagged(
        re.compile(r'\s*<invoke name="([^">]+)">'),
        re.compile(r'\s*<parameter name="([^">]+)">'),
        "</parameter>",
        re.compile(r"\s*</invoke>"),
        '<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>',
    ),
}


@dataclass(slots=True)
class TaggedArguments:
    """One call's arguments; `rest` is the text behind them when they have `ended`.

    `end` is the mark behind all calls.
    """

    form: Tagged
    name: str
    parse: Callable[..., Any]
    tools: Sequence[dict[str, Any]]
    end: str
    ended: bool = False
    rest: str = ""
    _text: str = ""  # not yet understood, or the open value
    _key: str | None = None
    _given: str | None = None  # of the open value; None where nothing was
    _json: JsonArguments = field(default_factory=JsonArguments)  # the open value, if it is that
    _scanned: int = 0  # of it
    _keys: set[str] = field(default_factory=set)

    def feed(self, text: str) -> str:
        """More text; the JSON that it makes."""
        self._text += text
        out = ""
        while not self.ended:
            if self._key is not None:
                value, rest = self._value(self._key)
                if rest is None:
                    return out + self._going_on(self._key, value)
                out += self._closed(self._key, value)
                self._key, self._text = None, rest
            elif opened := self.form.opens.match(self._text):
                self._key, self._given = opened[1], None
                self._json, self._scanned = JsonArguments(), 0
                self._text = self._text[opened.end() :]
            elif ended := self.form.ends.match(self._text) or re.search(
                f"(?={re.escape(self.end)})", self._text
            ):
                out += "}" if self._keys else "{}"
                self.ended, self.rest = True, self._text[ended.end() :]
            else:
                break
        return out

    def _value(self, key: str) -> tuple[str, str | None]:
        """The open value, and what stands behind it; None where it may go on.

        Marks in JSON are text; the end of all calls ends a value too.
        """
        text = self._text
        if JSON.match(text) and not self._is_text(key) and not self._json.ended:
            self._scanned = self._scanned or len(text) - len(text.lstrip())
            self._scanned += len(self._json.feed(text[self._scanned :]))
            if not self._json.ended:
                return text, None
        marks = (self.form.closes, self.end)
        found = [(at, mark) for mark in marks if (at := text.find(mark, self._scanned)) >= 0]
        if not found:
            return text[: len(text) - partial_match(text, marks)], None
        at, mark = min(found)
        return text[:at], text[at + len(mark) if mark == self.form.closes else at :]

    def _going_on(self, key: str, value: str) -> str:
        """What is sure of a value that has not ended."""
        if (key in self._keys and self._given is None) or not self._is_text(key):
            return ""
        sure = self.form.text(value)
        if not sure or (self.form.nulls and "null".startswith(sure.lower())):
            return ""
        lead = f'{self._lead(key)}"' if self._given is None else ""
        new, self._given = sure[len(self._given or "") :], sure
        return lead + json.dumps(new, ensure_ascii=False)[1:-1]

    def _closed(self, key: str, value: str) -> str:
        """What is left of a value that has ended."""
        if self._given is not None:
            left = self.form.text(value)[len(self._given) :]
            return json.dumps(left, ensure_ascii=False)[1:]
        if key in self._keys:
            return ""
        found: Any = self.form.text(value)
        try:
            if self.form.closes in value or self.end in value:
                found = json.loads(value)
            else:
                marks = {"NAME": self.name, "KEY": key, "VALUE": value}
                one = re.sub("NAME|KEY|VALUE", lambda mark: marks[mark[0]], self.form.one)
                found = self.parse(one, list(self.tools))["arguments"][key]
        except Exception:  # a parser raises what it likes; then the value is its text
            pass
        return self._lead(key) + json.dumps(found, ensure_ascii=False)

    def _lead(self, key: str) -> str:
        """What stands before a value."""
        lead = f"{', ' if self._keys else '{'}{json.dumps(key, ensure_ascii=False)}: "
        self._keys.add(key)
        return lead

    def _is_text(self, key: str) -> bool:
        """Whether the tool says that an argument is a string, and nothing else."""
        for tool in self.tools:
            function = tool["function"]
            if function["name"] == self.name:
                properties = (function.get("parameters") or {}).get("properties")
                schema = properties.get(key) if isinstance(properties, dict) else None
                mixed = ("enum", "anyOf", "oneOf", "allOf")
                return (
                    isinstance(schema, dict)
                    and schema.get("type") == "string"
                    and not any(word in schema for word in mixed)
                )
        return False
