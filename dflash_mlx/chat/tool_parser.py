"""Tool parsers: split an answer into text and tool calls while it is generated.

A call is found when it is complete. Arguments that a family writes as JSON stay as they are
written; those between the tags of `TAGGED_FORMATS` become JSON. In other formats mlx-lm's parser
reads the calls. Text that looks like a call but cannot be parsed stays text. The start of a call
that the answer's end cuts off is no text. Qwen 2.5 Coder leaves out the tags of its format, and
often writes Markdown instead: so an answer may begin with the JSON of an offered tool's call.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .messages import Messages
from .reasoning_parser import HARMONY, first_match, partial_match
from .template import Template

# The formats of the families' calls

NAME = r"([\w.\-]+)"
UNTAGGED = {"```json": "```", "```": "```", "": "}"}  # what may stand for the tags: start and end
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
class TaggedFormat:
    """A format of calls with arguments between tags.

    header: the start of a call; its group is the tool's name.
    argument_start: the text before a value; its group is the argument's name.
    argument_end: the text after a value.
    call_end: the text after a call; empty if a call ends with the end of all calls.
    strips_whitespace: whether all whitespace around a value is dropped, else one line break on
    each side.
    """

    header: str
    argument_start: str
    argument_end: str
    call_end: str
    strips_whitespace: bool = True

    def strip(self, value: str) -> str:
        if self.strips_whitespace:
            return value.strip()
        return value.removeprefix("\n").removesuffix("\n")


TAGGED_FORMATS = {
    "glm47": TaggedFormat(
        r"\s*([\w.\-]+)\s*(?=<arg_key>)",
        r"\s*<arg_key>\s*([^<>]*[^<>\s])\s*</arg_key>\s*<arg_value>",
        "</arg_value>",
        "",
    ),
    "qwen3_coder": TaggedFormat(
        r"\s*<function=([^\s<>]+)>",
        r"\s*<parameter=([^\s<>]+)>",
        "</parameter>",
        "</function>",
        strips_whitespace=False,
    ),
    "minimax_m2": TaggedFormat(
        r'\s*<invoke name="([^">]+)">',
        r'\s*<parameter name="([^">]+)">',
        "</parameter>",
        "</invoke>",
    ),
}


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family's format of tool calls.

    name: that of mlx-lm's parser, or harmony. starts: the texts that start calls. end: the text
    after all calls; empty if a call ends with its JSON or the answer. header: the start of a call
    whose arguments are read here; its group is the tool's name. It comes after a start, or includes
    the start if `header_has_start`. tagged: how these arguments are written; None for JSON.
    parse: from the text between start and end to a call {"name", "arguments"} or a list of them.
    """

    name: str
    starts: tuple[str, ...]
    end: str = ""
    header: re.Pattern[str] | None = None
    header_has_start: bool = False
    tagged: TaggedFormat | None = None
    parse: Callable[..., Any] = lambda text, tools: None


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
    pattern = tagged.header if tagged else JSON_HEADERS.get(name)
    header = re.compile(pattern) if pattern else None
    end = tokenizer.tool_call_end or ""
    return CallFormat(name, (start,), end, header, tagged=tagged, parse=parse)


# The arguments of a call

# A string, or a bracket outside of strings.
JSON_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)
# The start of an array or object in JSON; Python literals are left to mlx-lm's parser.
JSON_START = re.compile(r'\s*(\[\s*[\]\[{"\d\-tfn]|\{\s*["}])')


def json_end(text: str) -> int:
    """The index after the first object or array in a text; -1 if it has not ended."""
    depth = 0
    for mark in JSON_MARK.finditer(text):
        depth += (mark[0] in "{[") - (mark[0] in "}]")
        if not depth:
            return mark.end()
    return -1


@dataclass(frozen=True, slots=True)
class ArgumentsReader:
    """Reads a call's arguments as JSON. header: the text before them. tools: as in `ToolParser`."""

    call_format: CallFormat
    header: re.Match[str]
    tools: Sequence[dict[str, Any]]

    def read(self, text: str) -> tuple[str, str | None]:
        """The JSON and the text after it; the JSON's beginning and None if it has not ended."""
        if self.call_format.tagged is not None:
            return self._read_tagged(self.call_format.tagged, text)
        end = json_end(text)
        return (text, None) if end < 0 else (text[:end], text[end:])

    def _read_tagged(self, tagged: TaggedFormat, text: str) -> tuple[str, str | None]:
        members: dict[str, str] = {}  # JSON by name; the first value of a name counts
        while start := re.match(tagged.argument_start, text):
            value, rest = self._split_value(tagged, start[1], text[start.end() :])
            if rest is None:
                if begun := self._begun_value(tagged, start[1], value):
                    members.setdefault(start[1], begun)
                return begun_object(members), None
            if start[1] not in members:
                members[start[1]] = self._whole_value(tagged, start, value)
            text = rest
        whole = (begun_object(members) or "{") + "}"
        if tagged.call_end and text.lstrip().startswith(tagged.call_end):
            return whole, text.lstrip().removeprefix(tagged.call_end)
        index = text.find(self.call_format.end)
        return (begun_object(members), None) if index < 0 else (whole, text[index:])

    def _split_value(self, tagged: TaggedFormat, key: str, text: str) -> tuple[str, str | None]:
        """The value at the start of a text, and what comes after it; None if it may continue.

        End markers inside JSON belong to the value. The end of all calls ends a value, too.
        """
        begin = 0
        if JSON_START.match(text) and not self._is_string(key):
            begin = json_end(text)
            if begin < 0:
                return text, None
        markers = (tagged.argument_end, self.call_format.end)
        index, marker = first_match(text, markers, begin)
        if index < 0:
            return text[: len(text) - partial_match(text, markers)], None
        if marker == self.call_format.end:
            return text[:index], text[index:]
        return text[:index], text[index + len(marker) :]

    def _begun_value(self, tagged: TaggedFormat, key: str, value: str) -> str:
        """The beginning of the JSON of a value that has not ended; empty if it is not certain."""
        begun = tagged.strip(value)
        if "null".startswith(begun.lower()) or not self._is_string(key):
            return ""
        return as_json(begun).removesuffix('"')

    def _whole_value(self, tagged: TaggedFormat, start: re.Match[str], value: str) -> str:
        """The JSON of a value. start: the text before it."""
        try:
            if tagged.argument_end in value or self.call_format.end in value:
                return as_json(json.loads(value))
            call = f"{self.header[0]}{start[0]}{value}{tagged.argument_end}{tagged.call_end}"
            return as_json(self.call_format.parse(call, list(self.tools))["arguments"][start[1]])
        except Exception:  # a parser may raise any exception; then the value is its text
            return as_json(tagged.strip(value))

    def _is_string(self, key: str) -> bool:
        """Whether the tool's schema allows only strings for an argument, and any string."""
        for tool in self.tools:
            function = tool["function"]
            if function["name"] == self.header[1]:
                properties = (function.get("parameters") or {}).get("properties")
                schema = properties.get(key) if isinstance(properties, dict) else None
                if not isinstance(schema, dict) or schema.get("type") != "string":
                    return False
                return not any(word in schema for word in ("enum", "anyOf", "oneOf", "allOf"))
        return False


def begun_object(members: dict[str, str]) -> str:
    """An object without its end, of JSON by name; empty without members."""
    written = ", ".join(f"{as_json(key)}: {value}" for key, value in members.items())
    return written and "{" + written


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# The parser of an answer


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call.

    number: counts the calls of the answer from 0. arguments: JSON. after: the characters of the
    text found together with this call that come before it. complete: False if the answer has ended
    inside of the arguments; then they are the beginning of JSON.
    """

    number: int
    name: str
    arguments: str
    after: int = 0
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ParsedText:
    """New text of an answer without calls, and the calls that have ended in it."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


LONGEST_PIECE = 3  # characters at the end of a cut answer that are text even if a call starts so


@dataclass(slots=True)
class ToolParser:
    """Splits one answer. tools: JSON schemas. ends_in_call: whether it ended inside of a call."""

    call_format: CallFormat
    tools: Sequence[dict[str, Any]]
    calls_ended: int = 0
    ends_in_call: bool = False
    _held: str = ""  # text that is not parsed yet
    _start: str = ""  # what started the calls that the held text is in; empty outside of calls
    _end: str = ""  # the text after these calls
    _found: bool = False  # whether one of these calls was read
    _said: bool = False  # whether the answer has had text
    _text: str = ""  # what `feed` will return
    _calls: list[ToolCall] = field(default_factory=list)

    def feed(
        self, text: str, *, final: bool = False, cut: bool = False, stop: str | None = None
    ) -> ParsedText:
        """Add text; `final` at the end. cut: its length or the stop string `stop` ended it."""
        self._text = ""
        self._calls = []
        self._held += text
        # All that ends arguments or calls ends with one of these: few pieces of text have one.
        may_end = not {*text}.isdisjoint({*"}]>`", self.call_format.end[-1:]})
        more = True
        while more and self._held:
            if not self._start:
                more = self._outside(final, cut, stop or "")
            else:
                more = may_end and self._inside()
        if final and self._start:
            self._cut_calls(cut)
        return ParsedText(self._text, tuple(self._calls))

    def _outside(self, final: bool, cut: bool, stop: str) -> bool:
        """Take text up to the next start of calls; False if all of it may be a part of one."""
        if self.call_format.name == "json_tools" and not self._said:
            untagged = self._untagged()
            if untagged or (untagged is None and not final):
                return bool(untagged)
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
        if start or (final and self.calls_ended and not text.strip()):
            text = text.rstrip("\n")  # chat templates write these before calls themselves
        self._text += text
        self._said = self._said or bool(text.strip())
        self._held = self._held[index:]
        if not self.call_format.header_has_start:
            self._held = self._held[len(start) :]
        self._start = start
        self._end = self.call_format.end
        self._found = False
        return bool(text or start)

    def _untagged(self) -> bool | None:
        """Begin a call without its tags; None if more text decides whether the held is one."""
        told = "".join(self._held.split())
        undecided = False
        for start, end in UNTAGGED.items():
            for tool in self.tools:
                header = f'{start}{{"name":"{tool["function"]["name"]}","arguments":{{'
                if told.startswith(header):
                    self._held = self._held[self._held.index("{") :]
                    self._start = start or "{"
                    self._end = end
                    self._found = False
                    return True
                undecided = undecided or header.startswith(told)
        return None if undecided else False

    def _starts_call(self, piece: str, stop: str) -> bool:
        """Whether a piece at the end of a cut answer is from a start of calls, not from text."""
        if len(piece) > LONGEST_PIECE:
            return True
        whole = piece + stop
        return bool(stop) and any(
            start.startswith(whole) or whole.startswith(start) for start in self.call_format.starts
        )

    def _read_call(self) -> tuple[str, str, str | None] | None:
        """A call whose arguments are read here: its name, and as `ArgumentsReader.read`.

        None if the held text does not begin with its header.
        """
        pattern = self.call_format.header
        header = pattern and pattern.match(self._held)
        if not header:
            return None
        reader = ArgumentsReader(self.call_format, header, self.tools)
        return header[1], *reader.read(self._held[header.end() :])

    def _inside(self) -> bool:
        """Take a call, or the text up to the end of the calls; False if neither has ended."""
        end = self._end
        if call := self._read_call():
            name, arguments, rest = call
            if rest is None:
                return False
            self._add_call(name, arguments)
            self._held = rest
            self._found = True
            if not end:
                self._start = ""
            return True
        if not end or end not in self._held:
            return False
        text, _, self._held = self._held.partition(end)
        self._end_calls(text)
        return True

    def _cut_calls(self, cut: bool) -> None:
        """End the calls in which the answer ends; `cut`: not by the model."""
        text = self._held
        if call := self._read_call():
            self.ends_in_call = True
            self._add_call(call[0], call[1], complete=False)
        elif not cut and not self.call_format.end:
            self._end_calls(text)  # the answer's end is that of its calls
        else:
            # After a call come brackets, or the beginning of another one.
            begun = cut and bool(re.search(r"\w", text))
            self.ends_in_call = begun or not self._found
        self._held = ""
        self._start = ""

    def _end_calls(self, text: str) -> None:
        """Parse calls that were not read here; what cannot be parsed is text."""
        start = self._start
        self._start = ""
        if self._found:
            return
        if self.call_format.header_has_start:
            text = text.removeprefix(start)
        try:
            parsed = self.call_format.parse(text, list(self.tools))
            calls = [*map(parsed_call, parsed if isinstance(parsed, list) else [parsed])]
        except Exception:  # a parser may raise any exception for text that it cannot read
            self._text += start + text + self.call_format.end
            return
        for name, arguments in calls:
            self._add_call(name, arguments)

    def _add_call(self, name: str, arguments: str, *, complete: bool = True) -> None:
        number = self.calls_ended
        self._calls.append(ToolCall(number, name, arguments, len(self._text), complete))
        self.calls_ended += complete


def parsed_call(call: Any) -> tuple[str, str]:
    """The name and the arguments of a call by mlx-lm's parser; TypeError if it is none."""
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise TypeError(call)
    arguments = call.get("arguments", {})
    return call["name"], arguments if isinstance(arguments, str) else as_json(arguments)


def make_tool_parser(
    tokenizer: TokenizerWrapper, tools: Sequence[dict[str, Any]]
) -> ToolParser | None:
    """The parser of one answer of this tokenizer's model; None if its format is not known."""
    call_format = find_call_format(tokenizer)
    return None if call_format is None else ToolParser(call_format, tools)


# The ids of calls in messages


def named_calls(messages: Messages, tokenizer: TokenizerWrapper) -> Messages:
    """The messages with call ids in the form that this tokenizer's model generates."""
    call_format = find_call_format(tokenizer)
    if call_format and call_format.name == "kimi_k2":
        return numbered_calls(messages)
    return messages


def numbered_calls(messages: Messages) -> Messages:
    """Call ids as functions.NAME:N: Kimi's template writes only the id of a call, not its name."""
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
