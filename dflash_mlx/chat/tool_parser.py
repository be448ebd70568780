"""Tool parsers: split an answer into text and tool calls while it is generated.

The arguments of a call are passed on as they arrive if the family writes them as JSON, or between
the tags of `TAGGED_FORMATS`. In other formats mlx-lm's parser reads a call when it has ended. Text
that looks like a call but cannot be parsed stays text. The start of a call that the answer's end
cuts off is no text.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .messages import Messages
from .reasoning_parser import HARMONY, first_match, partial_match
from .template import Template

# Arguments that are JSON


@dataclass(slots=True)
class JsonScanner:
    """Finds the end of one JSON object or array. rest: the text after it, once it has `ended`."""

    depth: int = 0
    in_string: bool = False
    escaped: bool = False
    ended: bool = False
    rest: str = ""

    def feed(self, text: str) -> str:
        """The part of new text that belongs to the value."""
        for index, char in enumerate(text):
            if self.escaped:
                self.escaped = False
            elif self.in_string:
                self.escaped = char == "\\"
                self.in_string = char != '"'
            elif char == '"':
                self.in_string = True
            else:
                self.depth += (char in "{[") - (char in "}]")
                if not self.depth:
                    self.ended = True
                    self.rest = text[index + 1 :]
                    return text[: index + 1]
        return text


# Arguments that a model writes between tags, converted to JSON

# The start of an array or object in JSON; Python literals are left to mlx-lm's parser.
JSON_START = re.compile(r'\s*(\[\s*[\]\[{"\d\-tfn]|\{\s*["}])')


@dataclass(frozen=True, slots=True)
class TaggedFormat:
    """A format of calls with arguments between tags.

    header: the start of a call; its group is the tool's name.
    argument_start: the text before a value; its group is the argument's name.
    argument_end: the text after a value.
    call_end: the end of a call.
    single_call: a call of NAME with the argument KEY of the VALUE, in the form that mlx-lm's parser
    reads.
    strips_whitespace: whether all whitespace around a value is dropped, else one line break on
    each side.
    reads_null: whether the bare text null is null.
    """

    header: re.Pattern[str]
    argument_start: re.Pattern[str]
    argument_end: str
    call_end: re.Pattern[str]
    single_call: str
    strips_whitespace: bool = True
    reads_null: bool = True

    def strip(self, value: str) -> str:
        """The text between the tags without the whitespace that is not part of the value."""
        if self.strips_whitespace:
            return value.strip()
        return value.removeprefix("\n").removesuffix("\n")


GLM_FORMAT = TaggedFormat(
    re.compile(r"\s*([\w.\-]+)\s*(?=<arg_key>)"),
    re.compile(r"\s*<arg_key>\s*([^<>]*[^<>\s])\s*</arg_key>\s*<arg_value>"),
    "</arg_value>",
    re.compile(r"(?!)"),  # matches nothing: a call ends with the end of all calls
    "NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>",
    reads_null=False,
)
TAGGED_FORMATS = {
    "glm47": GLM_FORMAT,
    "laguna": GLM_FORMAT,
    "qwen3_coder": TaggedFormat(
        re.compile(r"\s*<function=([^\s<>]+)>"),
        re.compile(r"\s*<parameter=([^\s<>]+)>"),
        "</parameter>",
        re.compile(r"\s*</function>"),
        "<function=NAME><parameter=KEY>VALUE</parameter></function>",
        strips_whitespace=False,
    ),
    "minimax_m2": TaggedFormat(
        re.compile(r'\s*<invoke name="([^">]+)">'),
        re.compile(r'\s*<parameter name="([^">]+)">'),
        "</parameter>",
        re.compile(r"\s*</invoke>"),
        '<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>',
    ),
}


@dataclass(slots=True)
class TaggedArguments:
    """Converts one call's arguments to JSON. rest: the text after them, once they have `ended`.

    parse: mlx-lm's parser of this format. calls_end: the text after all calls.
    """

    tagged_format: TaggedFormat
    name: str
    parse: Callable[..., Any]
    tools: Sequence[dict[str, Any]]
    calls_end: str
    ended: bool = False
    rest: str = ""
    _text: str = ""  # unparsed text; inside a value, all of the value so far
    _key: str | None = None  # name of the value that has started
    _sent: str | None = None  # the part of this value that was returned; None if nothing was
    _scanner: JsonScanner = field(default_factory=JsonScanner)  # reads this value if it is JSON
    _scanned: int = 0  # characters of this value that it has read
    _keys: set[str] = field(default_factory=set)

    def feed(self, text: str) -> str:
        """Add text; returns the new part of the arguments' JSON."""
        self._text += text
        json_text = ""
        while not self.ended:
            if self._key is not None:
                value, rest = self._split_value(self._key)
                if rest is None:
                    return json_text + self._partial_value(self._key, value)
                json_text += self._whole_value(self._key, value)
                self._key = None
                self._text = rest
            elif start := self.tagged_format.argument_start.match(self._text):
                self._key = start[1]
                self._sent = None
                self._scanner = JsonScanner()
                self._scanned = 0
                self._text = self._text[start.end() :]
            elif end := self.tagged_format.call_end.match(self._text) or re.search(
                f"(?={re.escape(self.calls_end)})", self._text
            ):
                json_text += "}" if self._keys else "{}"
                self.ended = True
                self.rest = self._text[end.end() :]
            else:
                break
        return json_text

    def _split_value(self, key: str) -> tuple[str, str | None]:
        """The value so far, and the text after it; None if the value may continue.

        End markers inside JSON belong to the value. The end of all calls ends a value, too.
        """
        text = self._text
        if JSON_START.match(text) and not self._is_string(key) and not self._scanner.ended:
            self._scanned = self._scanned or len(text) - len(text.lstrip())
            self._scanned += len(self._scanner.feed(text[self._scanned :]))
            if not self._scanner.ended:
                return text, None
        markers = (self.tagged_format.argument_end, self.calls_end)
        index, marker = first_match(text, markers, self._scanned)
        if index < 0:
            return text[: len(text) - partial_match(text, markers)], None
        if marker == self.calls_end:
            return text[:index], text[index:]
        return text[:index], text[index + len(marker) :]

    def _partial_value(self, key: str, value: str) -> str:
        """The JSON of a string that has not ended, as far as it is certain and new."""
        if (key in self._keys and self._sent is None) or not self._is_string(key):
            return ""
        certain = self.tagged_format.strip(value)
        if not certain:
            return ""
        if self.tagged_format.reads_null and "null".startswith(certain.lower()):
            return ""
        opening = f'{self._member_start(key)}"' if self._sent is None else ""
        new = certain[len(self._sent or "") :]
        self._sent = certain
        return opening + json.dumps(new, ensure_ascii=False)[1:-1]

    def _whole_value(self, key: str, value: str) -> str:
        """The JSON of a value that has ended, without what was returned before."""
        if self._sent is not None:
            remaining = self.tagged_format.strip(value)[len(self._sent) :]
            return json.dumps(remaining, ensure_ascii=False)[1:]
        if key in self._keys:
            return ""
        parsed: Any = self.tagged_format.strip(value)
        try:
            if self.tagged_format.argument_end in value or self.calls_end in value:
                parsed = json.loads(value)
            else:
                fields = {"NAME": self.name, "KEY": key, "VALUE": value}
                template = self.tagged_format.single_call
                call = re.sub("NAME|KEY|VALUE", lambda name: fields[name[0]], template)
                parsed = self.parse(call, list(self.tools))["arguments"][key]
        except Exception:  # a parser may raise any exception; then the value is its text
            pass
        return self._member_start(key) + json.dumps(parsed, ensure_ascii=False)

    def _member_start(self, key: str) -> str:
        """The JSON from the end of the last value to the value of `key`."""
        separator = ", " if self._keys else "{"
        self._keys.add(key)
        return f"{separator}{json.dumps(key, ensure_ascii=False)}: "

    def _is_string(self, key: str) -> bool:
        """Whether the tool's schema allows only strings for an argument, and any string."""
        for tool in self.tools:
            function = tool["function"]
            if function["name"] == self.name:
                properties = (function.get("parameters") or {}).get("properties")
                schema = properties.get(key) if isinstance(properties, dict) else None
                if not isinstance(schema, dict) or schema.get("type") != "string":
                    return False
                return not any(word in schema for word in ("enum", "anyOf", "oneOf", "allOf"))
        return False


# The formats of the families' calls

NAME = r"([\w.\-]+)"
# What comes before arguments that are a JSON object; the group is the tool's name. Each pattern
# also matches directly after another call.
JSON_HEADERS = {
    "json_tools": r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"arguments"\s*:\s*(?=[{\[])',
    "mistral": rf"\s*{NAME}\s*\[ARGS\]\s*(?=\{{)",
    "kimi_k2": r"\s*(?:<\|tool_call_end\|>\s*)?(?:<\|tool_call_begin\|>)?\s*(?:functions\.)?"
    rf"{NAME}:\d+\s*<\|tool_call_argument_begin\|>\s*(?=\{{)",
}
HARMONY_HEADER = re.compile(
    rf"(?:<\|channel\|>\w+\s+)?to=functions\.{NAME}\s*(?:<\|channel\|>\w+\s*)?"
    r"(?:<\|constrain\|>)?\s*(?:\w+\s*)?<\|message\|>\s*(?=\{)"
)


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family's format of tool calls.

    name: that of mlx-lm's parser, or harmony.
    starts: the texts that start calls.
    end: the text after all calls; empty if there is none, and a call ends with its JSON or the
    answer.
    header: the start of a call whose arguments are streamed; its group is the tool's name. It comes
    after a start, or includes the start if `header_has_start`.
    tagged: how streamed arguments are written; None for JSON.
    parse: from the text between start and end to a call {"name", "arguments"} or a list of them;
    None if `header` matches all calls.
    """

    name: str
    starts: tuple[str, ...]
    end: str = ""
    header: re.Pattern[str] | None = None
    header_has_start: bool = False
    tagged: TaggedFormat | None = None
    parse: Callable[..., Any] | None = None


HARMONY_CALLS = CallFormat(
    "harmony", ("<|channel|>", "to=functions."), header=HARMONY_HEADER, header_has_start=True
)


def find_call_format(tokenizer: TokenizerWrapper) -> CallFormat | None:
    """The format of a tokenizer's model; None if it is not known."""
    start = tokenizer.tool_call_start
    parse = tokenizer.tool_parser
    if not start or not parse:
        return HARMONY_CALLS if HARMONY.ids(tokenizer) else None
    name = parse.__module__.rpartition(".")[2]
    tagged = TAGGED_FORMATS.get(name)
    header = None
    if tagged is not None:
        header = tagged.header
    elif name in JSON_HEADERS:
        header = re.compile(JSON_HEADERS[name])
    end = tokenizer.tool_call_end or ""
    return CallFormat(name, (start,), end, header, tagged=tagged, parse=parse)


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A new part of a tool call.

    number: counts the calls of the answer from 0. name: only in the first delta of a call.
    arguments: the next part of their JSON. after: the characters of the text returned together with
    this delta that come before it.
    """

    number: int
    name: str = ""
    arguments: str = ""
    after: int = 0


@dataclass(frozen=True, slots=True)
class ParsedText:
    """New text of an answer without calls, and new parts of calls."""

    text: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


class ArgumentsParser(Protocol):
    """Parses one call's arguments. rest: the text after them, once they have `ended`."""

    ended: bool
    rest: str

    def feed(self, text: str) -> str:
        """Add text; returns the new part of the arguments' JSON."""
        ...


@dataclass(slots=True)
class CallSection:
    """A part of an answer that consists of calls, from `start` on.

    text: what has been read of it. arguments: the parser of a call whose arguments have started.
    streamed: the number of calls whose headers were found. searched: the characters of `text`
    before the next header.
    """

    start: str
    text: str
    arguments: ArgumentsParser | None = None
    streamed: int = 0
    searched: int = 0


LONGEST_PIECE = 3  # characters at the end of a cut answer that are text even if a call starts so


@dataclass(slots=True)
class ToolParser:
    """Splits one answer of a model that was offered `tools` (JSON schemas).

    ends_in_call: whether the answer has ended inside of a call.
    """

    call_format: CallFormat
    tools: Sequence[dict[str, Any]]
    calls_started: int = 0
    calls_ended: int = 0
    ends_in_call: bool = False
    _held: str = ""  # text that is not parsed yet
    _section: CallSection | None = None

    def feed(
        self, text: str, *, final: bool = False, cut: bool = False, stop: str | None = None
    ) -> ParsedText:
        """Add text of the answer; with `final` it has ended, and nothing is held back.

        cut: whether its length or the stop string `stop` has ended it, not the model.
        """
        results: list[ParsedText] = []
        self._held += text
        while self._held:
            section = self._section
            if section is None:
                result = self._outside(final, cut, stop or "")
            elif section.arguments is not None:
                result = self._in_arguments(section, section.arguments)
            else:
                result = self._header(section) or self._inside(section, final)
            if result is None:
                break
            results.append(result)
        if final and self._section is not None:
            results.append(self._cut_section(self._section, cut))
        new_text = ""
        deltas = []
        for result in results:
            deltas += [replace(delta, after=len(new_text)) for delta in result.calls]
            new_text += result.text
        return ParsedText(new_text, tuple(deltas))

    def _outside(self, final: bool, cut: bool, stop: str) -> ParsedText | None:
        """Take text up to the next start of calls; None if all of it may be a part of one."""
        starts = self.call_format.starts
        index, start = first_match(self._held, starts)
        if index < 0:
            index = len(self._held) - partial_match(self._held, starts)
            piece = self._held[index:]
            if final and piece and cut and self._starts_call(piece, stop):
                self._held = self._held[:index]
                self.ends_in_call = True
            elif final:
                index = len(self._held)
            else:
                index = len(self._held[:index].rstrip("\n"))
        text = self._held[:index]
        if start or (final and self.calls_started and not text.strip()):
            text = text.rstrip("\n")  # chat templates write these before calls themselves
        self._held = self._held[index + len(start) :]
        if start:
            section_text = start if self.call_format.header_has_start else ""
            self._section = CallSection(start, section_text)
        return ParsedText(text) if text or start else None

    def _starts_call(self, piece: str, stop: str) -> bool:
        """Whether a piece at the end of a cut answer is from a start of calls, not from text."""
        if len(piece) > LONGEST_PIECE:
            return True
        whole = piece + stop
        return bool(stop) and any(
            start.startswith(whole) or whole.startswith(start) for start in self.call_format.starts
        )

    def _header(self, section: CallSection) -> ParsedText | None:
        """Take the header of a call with streamed arguments; None if there is none."""
        pattern = self.call_format.header
        header = pattern and pattern.match(section.text + self._held, section.searched)
        if not header:
            return None
        name = header[1]
        section.text = header.string[: header.end()]
        self._held = header.string[header.end() :]
        section.arguments = self._arguments_parser(name)
        section.searched = header.end()
        section.streamed += 1
        self.calls_started += 1
        return ParsedText(calls=(ToolCallDelta(self.calls_started - 1, name),))

    def _arguments_parser(self, name: str) -> ArgumentsParser:
        call_format = self.call_format
        tagged = call_format.tagged
        if tagged is None or call_format.parse is None:
            return JsonScanner()
        return TaggedArguments(tagged, name, call_format.parse, self.tools, call_format.end)

    def _in_arguments(self, section: CallSection, parser: ArgumentsParser) -> ParsedText:
        arguments = parser.feed(self._held)
        self._held = parser.rest
        if parser.ended:
            self.calls_ended += 1
            section.text = ""
            section.searched = 0
            section.arguments = None
            if not self.call_format.end:
                self._section = None
        if not arguments:
            return ParsedText()
        return ParsedText(calls=(ToolCallDelta(self.calls_started - 1, arguments=arguments),))

    def _inside(self, section: CallSection, final: bool) -> ParsedText | None:
        """Take text up to the end of the calls; None if the end has not come yet."""
        end = self.call_format.end
        if not end:
            section.text += self._held
            self._held = ""
            return None
        inside, marker, rest = self._held.partition(end)
        if marker:
            section.text += inside
            self._held = rest
            return self._end_section(section)
        kept = len(inside) - (0 if final else partial_match(inside, (end,)))
        section.text += inside[:kept]
        self._held = inside[kept:]
        return None

    def _cut_section(self, section: CallSection, cut: bool) -> ParsedText:
        """End the section in which the answer ends; `cut`: not by the model."""
        if not cut and not self.call_format.end and section.arguments is None:
            return self._end_section(section)  # the answer's end is that of its calls
        self._section = None
        begun = section.arguments is not None or not section.streamed
        # After a call come brackets, or the beginning of another one.
        self.ends_in_call = begun or (cut and bool(re.search(r"\w", section.text)))
        return ParsedText()

    def _end_section(self, section: CallSection) -> ParsedText:
        """Parse calls that were not streamed."""
        self._section = None
        if section.streamed:
            return ParsedText()
        text = section.text
        if self.call_format.header_has_start:
            text = text.removeprefix(section.start)
        parsed: Any = None
        if self.call_format.parse:
            try:
                parsed = self.call_format.parse(text, list(self.tools))
            except Exception:  # a parser may raise any exception for text that it cannot read
                parsed = None
        deltas = []
        for call in parsed if isinstance(parsed, list) else [parsed]:
            if not isinstance(call, dict) or not isinstance(call.get("name"), str):
                return ParsedText(section.start + text + self.call_format.end)
            arguments = call.get("arguments", {})
            json_text = arguments if isinstance(arguments, str) else as_json(arguments)
            deltas.append(ToolCallDelta(self.calls_started + len(deltas), call["name"], json_text))
        self.calls_started += len(deltas)
        self.calls_ended += len(deltas)
        return ParsedText(calls=tuple(deltas))


def make_tool_parser(
    tokenizer: TokenizerWrapper, tools: Sequence[dict[str, Any]]
) -> ToolParser | None:
    """The parser of one answer of this tokenizer's model; None if its format is not known."""
    call_format = find_call_format(tokenizer)
    return None if call_format is None else ToolParser(call_format, tools)


def as_json(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


# The ids of calls in messages


def named_calls(messages: Messages, tokenizer: TokenizerWrapper) -> Messages:
    """The messages with call ids in the form that this tokenizer's model generates."""
    call_format = find_call_format(tokenizer)
    if call_format and call_format.name == "kimi_k2":
        return numbered_calls(messages)
    return messages


def numbered_calls(messages: Messages) -> Messages:
    """The messages with functions.NAME:N as the ids of calls.

    Kimi's template writes only the id of a call, not its name.
    """
    new_ids: dict[str, str] = {}
    numbered: Messages = []
    number = 0
    for message in messages:
        changes: dict[str, Any] = {}
        if message.get("tool_calls"):
            changes["tool_calls"] = []
            for call in message["tool_calls"]:
                new_id = f"functions.{call['function']['name']}:{number}"
                new_ids[call["id"]] = new_id
                changes["tool_calls"].append({**call, "id": new_id})
                number += 1
        if message.get("tool_call_id") in new_ids:
            changes["tool_call_id"] = new_ids[message["tool_call_id"]]
        numbered.append({**message, **changes})
    return numbered


# Whether a model supports tools


def without_tools(template: Template, tokenizer: TokenizerWrapper) -> str | None:
    """Why this model cannot call tools, as the end of a sentence; None if it can."""
    if not template.shows_tools:
        return "does not call tools"
    if find_call_format(tokenizer) is None:
        return "calls tools in a form that cannot be read"
    return None
