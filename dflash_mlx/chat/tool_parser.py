"""Streaming split of an answer into text and calls of tools, in the form of the model.

A call's arguments come as they are written, where its format is JSON or one of `tagged_arguments`;
else when the call has ended, read by mlx-lm's parser. Text that is no call after all stays text.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.errors import DFlashError

from .messages import Messages
from .reasoning_parser import HARMONY, partial_match
from .template import Template, TemplateOptions

# A JSON value that is read as it is written.


@dataclass(slots=True)
class JsonArguments:
    """One value: how deep it is in, and whether in a string; `rest` is the text behind it."""

    depth: int = 0
    quoted: bool = False
    escaped: bool = False
    ended: bool = False
    rest: str = ""

    def feed(self, text: str) -> str:
        """The part of a text that belongs to the value."""
        for place, mark in enumerate(text):
            if self.escaped:
                self.escaped = False
            elif self.quoted:
                self.escaped = mark == "\\"
                self.quoted = mark != '"'
            elif mark == '"':
                self.quoted = True
            else:
                self.depth += (mark in "{[") - (mark in "}]")
                if not self.depth:
                    self.ended = True
                    self.rest = text[place + 1 :]
                    return text[: place + 1]
        return text


# Arguments that a model writes one by one between tags, as JSON while they come.

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
                self._key = None
                self._text = rest
            elif opened := self.form.opens.match(self._text):
                self._key = opened[1]
                self._given = None
                self._json = JsonArguments()
                self._scanned = 0
                self._text = self._text[opened.end() :]
            elif ended := self.form.ends.match(self._text) or re.search(
                f"(?={re.escape(self.end)})", self._text
            ):
                out += "}" if self._keys else "{}"
                self.ended = True
                self.rest = self._text[ended.end() :]
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
        new = sure[len(self._given or "") :]
        self._given = sure
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


# How families write calls of tools

NAME = r"([\w.\-]+)"
# What stands before arguments that are a JSON object, of formats that have such; one group, the
# name. Each may follow a call before it.
HEADS = {
    "json_tools": r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"arguments"\s*:\s*(?=[{\[])',
    "mistral": rf"\s*{NAME}\s*\[ARGS\]\s*(?=\{{)",
    "kimi_k2": r"\s*(?:<\|tool_call_end\|>\s*)?(?:<\|tool_call_begin\|>)?\s*(?:functions\.)?"
    rf"{NAME}:\d+\s*<\|tool_call_argument_begin\|>\s*(?=\{{)",
}
HARMONY_HEAD = re.compile(
    rf"(?:<\|channel\|>\w+\s+)?to=functions\.{NAME}\s*(?:<\|channel\|>\w+\s*)?"
    r"(?:<\|constrain\|>)?\s*(?:\w+\s*)?<\|message\|>\s*(?=\{)"
)


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family's format.

    name: mlx-lm's of the parser, or harmony. starts: what begins calls. end: what ends them; empty
    where nothing does, and calls are as long as the answer or their JSON. head: found behind a
    start, or with it where `heads_start`; arguments behind it come as they are written: JSON, or
    one by one where `tagged`. parse: text between start and end to a call {"name", "arguments"} or
    several; None where `head` finds all calls.
    """

    name: str
    starts: tuple[str, ...]
    end: str = ""
    head: re.Pattern[str] | None = None
    heads_start: bool = False
    tagged: Tagged | None = None
    parse: Callable[..., Any] | None = None


HARMONY_CALLS = CallFormat(
    "harmony", ("<|channel|>", "to=functions."), head=HARMONY_HEAD, heads_start=True
)


def call_format(tokenizer: TokenizerWrapper) -> CallFormat | None:
    """The format of a tokenizer's model; None where nobody knows how it calls tools."""
    start = tokenizer.tool_call_start
    parse = tokenizer.tool_parser
    if start and parse:
        name = parse.__module__.rpartition(".")[2]
        tagged = TAGGED.get(name)
        head = tagged.head if tagged else re.compile(HEADS[name]) if name in HEADS else None
        end = tokenizer.tool_call_end or ""
        return CallFormat(name, (start,), end, head, tagged=tagged, parse=parse)
    return HARMONY_CALLS if HARMONY.ids(tokenizer) else None


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of a call: its `number` among the answer's; the first part has its `name`.

    `arguments` is the next piece of a JSON text. `after`: how many characters of the text that is
    told with it come before it.
    """

    number: int
    name: str = ""
    arguments: str = ""
    after: int = 0


@dataclass(frozen=True, slots=True)
class ParsedText:
    """New text of an answer, and new parts of calls."""

    text: str = ""
    parts: tuple[ToolCallDelta, ...] = ()


class Arguments(Protocol):
    """One call's arguments; `rest` is the text behind them when they have `ended`."""

    ended: bool
    rest: str

    def feed(self, text: str) -> str:
        """More text; the JSON that it makes."""
        ...


@dataclass(slots=True)
class OpenCall:
    """What has come since `start`; `arguments` of a call in it are open, `begun` calls were found.

    `searched`: characters of `text` that lie before the next call's head.
    """

    start: str
    text: str
    arguments: Arguments | None = None
    begun: int = 0
    searched: int = 0


@dataclass(slots=True)
class ToolParser:
    """Splits one answer of a model that was told of `tools` (JSON schemas).

    `calls` have begun, `closed` of them have ended.
    """

    form: CallFormat
    tools: Sequence[dict[str, Any]]
    calls: int = 0
    closed: int = 0
    _held: str = ""
    _call: OpenCall | None = None

    def read(self, text: str, *, final: bool = False) -> ParsedText:
        """Add text of the answer; with `final` it has ended, and nothing is held back."""
        said: list[ParsedText] = []
        self._held += text
        while self._held:
            call = self._call
            if call is None:
                found = self._outside(final)
            elif call.arguments is not None:
                found = self._in_arguments(call, call.arguments)
            else:
                found = self._begun(call) or self._inside(call, final)
            if found is None:
                break
            said.append(found)
        if final and self._call is not None:
            said.append(self._closed(self._call, whole=not self.form.end))
        told = ""
        parts = []
        for one in said:
            parts += [replace(part, after=len(told)) for part in one.parts]
            told += one.text
        return ParsedText(told, tuple(parts))

    def _outside(self, final: bool) -> ParsedText | None:
        """Text up to the next start; None where all that is left may be one."""
        starts = self.form.starts
        place, start = min(
            ((at, mark) for mark in starts if (at := self._held.find(mark)) >= 0), default=(-1, "")
        )
        if place < 0:
            place = len(self._held) - (0 if final else partial_match(self._held, starts))
        text = self._held[:place]
        self._held = self._held[place + len(start) :]
        if start:
            self._call = OpenCall(start, start if self.form.heads_start else "")
        return ParsedText(text) if text or start else None

    def _begun(self, call: OpenCall) -> ParsedText | None:
        """The name of a call whose arguments begin; None where none does."""
        head = self.form.head
        found = head and head.match(call.text + self._held, call.searched)
        if not found:
            return None
        call.text = found.string[: found.end()]
        self._held = found.string[found.end() :]
        call.arguments = self._arguments(found[1])
        call.searched = found.end()
        call.begun += 1
        self.calls += 1
        return ParsedText(parts=(ToolCallDelta(self.calls - 1, found[1]),))

    def _arguments(self, name: str) -> Arguments:
        form = self.form
        if form.tagged is None or form.parse is None:
            return JsonArguments()
        return TaggedArguments(form.tagged, name, form.parse, self.tools, form.end)

    def _in_arguments(self, call: OpenCall, arguments: Arguments) -> ParsedText:
        """More of the arguments."""
        more = arguments.feed(self._held)
        self._held = arguments.rest
        if arguments.ended:
            self.closed += 1
            call.text = ""
            call.searched = 0
            call.arguments = None
            if not self.form.end:
                self._call = None
        return ParsedText(parts=(ToolCallDelta(self.calls - 1, arguments=more),) if more else ())

    def _inside(self, call: OpenCall, final: bool) -> ParsedText | None:
        """Up to the end of the calls; None where more has to come."""
        end = self.form.end
        inside, found, rest = self._held.partition(end) if end else (self._held, "", "")
        held = 0 if found or final or not end else partial_match(inside, (end,))
        cut = len(inside) - held
        call.text += inside[:cut]
        self._held = rest if found else inside[cut:]
        return self._closed(call) if found else None

    def _closed(self, call: OpenCall, *, whole: bool = True) -> ParsedText:
        """What is left when calls have ended; `whole` is False where the answer was cut in one."""
        self._call = None
        if call.begun:
            return ParsedText()
        text = call.text.removeprefix(call.start) if self.form.heads_start else call.text
        try:
            found = self.form.parse(text, list(self.tools)) if self.form.parse and whole else None
        except Exception:  # a parser raises what it likes for what it cannot read
            found = None
        parts = []
        for one in found if isinstance(found, list) else [found]:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                return ParsedText(call.start + text + (self.form.end if whole else ""))
            arguments = one.get("arguments", {})
            written = arguments if isinstance(arguments, str) else as_json(arguments)
            parts.append(ToolCallDelta(self.calls + len(parts), one["name"], written))
        self.calls += len(parts)
        self.closed += len(parts)
        return ParsedText(parts=tuple(parts))


def make_tool_parser(
    tokenizer: TokenizerWrapper, tools: Sequence[dict[str, Any]]
) -> ToolParser | None:
    """A reader of an answer of this tokenizer's model; None where nobody knows its calls."""
    form = call_format(tokenizer)
    return None if form is None else ToolParser(form, tools)


def as_json(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


# Names of calls in messages, where a family's template writes what a call is named.


def named_calls(messages: Messages, tokenizer: TokenizerWrapper) -> Messages:
    """The messages with the names of calls that this tokenizer's model gave them."""
    form = call_format(tokenizer)
    return numbered_calls(messages) if form and form.name == "kimi_k2" else messages


def numbered_calls(messages: Messages) -> Messages:
    """The messages with calls named functions.NAME:N in place of their ids, as Kimi's template has
    them: it writes no other name of a call.
    """
    told: dict[str, str] = {}
    found: Messages = []
    number = 0
    for message in messages:
        more: dict[str, Any] = {}
        if message.get("tool_calls"):
            more["tool_calls"] = []
            for call in message["tool_calls"]:
                told[call["id"]] = f"functions.{call['function']['name']}:{number}"
                more["tool_calls"].append({**call, "id": told[call["id"]]})
                number += 1
        if message.get("tool_call_id") in told:
            more["tool_call_id"] = told[message["tool_call_id"]]
        found.append({**message, **more})
    return found


# Whether a model can be told of tools, and its calls be read.

TOOL = {"type": "function", "function": {"name": "probe", "description": "?", "parameters": {}}}


def without_tools(template: Template, tokenizer: TokenizerWrapper) -> str | None:
    """Why this model cannot call tools, as the end of a sentence; None where it can."""
    sample = [{"role": "user", "content": "?"}]
    try:
        told = template.write(sample, TemplateOptions(tools=[TOOL]))
        told = told != template.write(sample)
    except DFlashError:
        told = False
    if not told:
        return "does not call tools"
    if call_format(tokenizer) is None:
        return "calls tools in a form that cannot be read"
    return None
