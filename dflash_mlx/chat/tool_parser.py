"""Tool parsers: split an answer into text and tool calls while it is generated.

A call is found when it is complete, and its arguments are a JSON object (`ArgumentsReader`). In
formats without a header mlx-lm's parser reads the calls. Text that looks like a call but cannot be
read stays text. The start of a call that the answer's end cuts off is no text.

Models leave out the tags of their formats: so the start of an offered tool's call begins one, and
an answer may begin with its JSON, which Qwen 2.5 Coder often writes in Markdown.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import regex
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.types import Call

from .call_arguments import ArgumentsReader
from .call_formats import BARE_STARTS, CallFormat, TaggedFormat, find_call_format
from .call_json import as_json, json_calls, json_object
from .messages import Messages, with_ids
from .reasoning_parser import LONGEST_HEADER, FindCall, partial_match
from .template import Template

BRACKETS = " \t\r\n,]}"  # what may come after a call in JSON


@dataclass(frozen=True, slots=True)
class ToolCall(Call):
    """A call as it was found in a text.

    after: the characters of the text found together with this call that come before it. complete:
    False if the answer has ended inside of the arguments; then they are the beginning of JSON.
    """

    after: int = 0
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ParsedText:
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
    _in_calls: bool = False  # whether the held text is in calls
    _start: str = ""  # what was taken from the text before these calls
    _bare: str = ""  # what the held text begins with, if these calls have no start
    _end: str = ""  # the text after these calls
    _found: bool = False  # whether one of these calls was read
    _after_call: bool = False  # whether the end of calls may come, and is no text
    _said: bool = False  # whether the answer has had text
    _last: str = ""  # the last character of this text
    _text: str = ""  # what `feed` will return
    _calls: list[ToolCall] = field(default_factory=list)

    def feed(
        self, text: str, *, final: bool = False, cut: bool = False, stop: str | None = None
    ) -> ParsedText:
        """Add text; `final` at the end. cut: its length or the stop string `stop` ended it."""
        self._text = ""
        self._calls = []
        self._held += text
        ended = final and not cut
        # All that ends arguments or calls ends with one of these: few pieces of text have one.
        may_end = not {*text}.isdisjoint({*"}]>`", self._end[-1:]})
        is_short = len(self._held) < LONGEST_HEADER
        more = final or may_end or is_short or self._found or not self._in_calls
        while True:
            while more and self._held:
                inside = self._in_calls
                more = self._inside(ended) if inside else self._outside(final, cut, stop or "")
            if not final or not self._in_calls:
                break
            self._cut_calls(cut, stop or "")
            more = True
        return ParsedText(self._text, tuple(self._calls))

    def first_call(self, text: str, end: str, *, final: bool) -> tuple[int, int]:
        """The index and the length of the first start of calls, by a fresh parser.

        The length is 0 if it is none of an offered tool, -1 if more text decides that. end: what
        ends the text unless it is in arguments.
        """
        self._said = True
        start = self._first_start(text)
        index = start.start() if start else len(text)
        if start is None or (final and start.partial):
            return len(text), 0
        if start.partial:
            return index, -1
        self._held = text[index:]
        self._outside(final, False, "")
        while self._in_calls and self._inside(final):
            pass
        if self._in_calls and not final:
            header = self.call_format.header
            may_be = not header or header.match(self._held, partial=True)
            in_arguments = end not in text[index:] or self._read_call(False)
            return index, -1 if self._found or (may_be and in_arguments) else 0
        if not self._calls or not {call.name for call in self._calls} <= self._names():
            return index, 0
        return index, len(text) - index - len(self._held) if self._take_end(final) else -1

    def _outside(self, final: bool, cut: bool, stop: str) -> bool:
        """Take text up to the next start of calls; False if all of it may be a part of one."""
        if not self._take_end(final):
            return False
        found = self._first_start(self._held)
        before = len(self._last)
        index = found.start() - before if found else len(self._held)
        is_start = found is not None and not found.partial
        if not is_start:
            piece = self._held[len(self._held) - partial_match(self._held, self._starts) :]
            if final and piece and cut and self._starts_call(piece, stop):
                self._held = self._held.removesuffix(piece)
                index = len(self._held)
                self.ends_in_call = True
            elif final:
                index = len(self._held)
            else:
                index = len(self._held[:index].rstrip("\n"))
        text = self._held[:index]
        if is_start or (final and self.calls_ended and not text.strip()):
            text = text.rstrip("\n")  # chat templates write these before calls themselves
        said_before = self._said or bool(text.strip())
        self._say(text)
        if found and is_start:
            self._begin(found, len(text), found.end() - before, said_before)
        else:
            self._held = self._held[index:]
        return bool(text) or is_start

    @property
    def _starts(self) -> tuple[str, ...]:
        return self.call_format.starts

    def _names(self) -> set[str]:
        return {tool["function"]["name"] for tool in self.tools}

    def _first_start(self, text: str) -> regex.Match[str] | None:
        """The first start of calls, or what may become one, in the last character and a text."""
        pattern = "|".join(map(regex.escape, self._starts))
        names = "|".join(map(regex.escape, sorted(self._names())))
        if names and (bare := BARE_STARTS.get(self.call_format.name)):
            pattern += "|" + bare.replace("NAME", names)
        # The name of a tool may be a part of a longer word.
        return regex.compile(pattern).search(self._last + text, len(self._last), partial=True)

    def _say(self, text: str) -> None:
        self._text += text
        self._said = self._said or bool(text.strip())
        self._last = text[-1:] or self._last

    def _begin(self, start: regex.Match[str], index: int, end: int, said: bool) -> None:
        """Begin calls: drop their start, which ends at `end`, and what comes before it."""
        groups = start.groupdict()
        self._bare = groups.get("bare") or ""
        keeps_start = self._bare or self.call_format.header_has_start
        end -= len(self._bare or start[0]) * bool(keeps_start)
        self._start = self._held[index:end]
        self._held = self._held[end:]
        self._in_calls = True
        self._found = False
        self._end = self.call_format.end
        if self._bare and self.call_format.tagged is None and not said:
            self._end = "```" if groups["fence"] else "}"

    def _leave(self) -> None:
        """The calls have ended, and their end tag may still come."""
        self._in_calls = False
        self._after_call = bool(self.call_format.end)

    def _take_end(self, final: bool) -> bool:
        """Drop the end of the calls before the held text; False if it may still come."""
        if self._after_call:
            rest = self._held.lstrip()
            if not final and self.call_format.end.startswith(rest):
                return False
            self._after_call = False
            if rest.startswith(self.call_format.end):
                self._held = rest.removeprefix(self.call_format.end)
            elif rest and self.call_format.end.startswith(rest):
                self._held = ""
        return True

    def _starts_call(self, piece: str, stop: str) -> bool:
        """Whether a piece at the end of a cut answer is from a start of calls, not from text."""
        if len(piece) > LONGEST_PIECE:
            return True
        whole = piece + stop
        return bool(stop) and any(
            start.startswith(whole) or whole.startswith(start) for start in self._starts
        )

    def _read_call(self, ended: bool) -> tuple[str, str, str | None] | None:
        """A call whose arguments are read here: its name, and as `ArgumentsReader.read`.

        None if the held text does not begin with its header, or if they cannot be read.
        """
        pattern = self.call_format.header
        header = pattern and pattern.match(self._held)
        if not header:
            return None
        reader = ArgumentsReader(self.call_format, header, self.tools, ended)
        read = reader.read(self._held[header.end() :])
        return read and (header[1], *read)

    def _inside(self, ended: bool) -> bool:
        """Take a call, or the text up to the end of the calls; False if neither has ended."""
        end = self._end
        call = self._read_call(ended)
        if call and call[2] is not None:
            if (is_call := self._is_call(call[2], ended)) is None:
                return False
            if is_call:
                self._add_call(call[0], call[1])
                self._held = call[2]
                self._found = True
                if not end:
                    self._leave()
                return True
            call = None
        if self._found and not call and (goes_on := self._goes_on()) is not True:
            if goes_on is False:
                self._leave()
            return goes_on is False
        tagged = self.call_format.tagged
        if not call and not self._found and (self._bare or (tagged and self._is_text(tagged))):
            first = len(self._bare)
            self._in_calls = False
            self._say(self._start + self._held[:first])
            self._held = self._held[first:]
            return True
        index = -1
        if end and not (call and (tagged or self._bare)):
            index = self.call_format.end_in(self._held, end)
        if end and index < 0 and ended:
            index = self._held.find(end)
        if index < 0:
            return False
        text = self._held[:index]
        self._held = self._held[index + len(end) :]
        self._end_calls(text, end)
        return True

    def _is_text(self, tagged: TaggedFormat) -> bool:
        """Whether what follows a start of calls is none of them, nor JSON."""
        assert self.call_format.header is not None
        header = self.call_format.header.match(self._held, partial=True)
        may_be = (header and header.partial) or self._held.lstrip().startswith(("{", "["))
        return bool(tagged.call_end) and not may_be

    def _is_call(self, rest: str, ended: bool) -> bool | None:
        """Whether a call that was read is one; None if more text decides that.

        JSON inside of text is one only with the end tag, which `rest` begins with.
        """
        end = self.call_format.end
        if not self._bare or self.call_format.tagged or self._end != end or self._found:
            return True
        rest = rest.lstrip(BRACKETS)
        return rest.startswith(end) or (None if not ended and end.startswith(rest) else False)

    def _goes_on(self) -> bool | None:
        """Whether the calls go on after one of them; None if more text decides that."""
        rest = self._held.lstrip()
        if tagged := self.call_format.tagged:
            header = self.call_format.header
            more = tagged.call_end and header and header.match(self._held, partial=True)
            return None if more else False
        return not self._bare or not rest or rest.startswith(("[", "{", *BRACKETS))

    def _cut_calls(self, cut: bool, stop: str) -> None:
        """End the calls in which the answer ends; `cut`: not by the model, or by `stop`."""
        text = self._held
        self._held += stop
        call = self._read_call(not cut)
        self._held = ""
        header = self.call_format.header
        if call and call[2] is not None:
            self._add_call(call[0], call[1])
        elif call and (cut or (self.call_format.end and not self._bare)):
            self.ends_in_call = True
            self._add_call(call[0], call[1].removesuffix(stop), complete=False)
        elif not cut and (not self.call_format.end or (header and header.match(text))):
            self._end_calls(text, "")  # the answer's end is that of its calls
        else:
            # After a call come brackets, or the beginning of another one.
            begun = cut and bool(re.search(r"\w", text))
            self.ends_in_call = begun or not self._found
        self._in_calls = False

    def _end_calls(self, text: str, end: str) -> None:
        """Parse calls that were not read here; what cannot be parsed is text."""
        self._in_calls = False
        left = text.replace("<|tool_call_end|>", "").lstrip("[" + BRACKETS)
        if not self._found or left:
            try:
                calls = self._parsed(text)
            except Exception:  # a parser may raise any exception for text that it cannot read
                if self._found:
                    self._say(left)
                    return
                # Another call may begin in it.
                first = 0 if self._start.strip() else 1
                self._say(self._start + text[:first])
                self._held = text[first:] + end + self._held
                return
            for name, arguments in calls:
                self._add_call(name, arguments)
        self._after_call = bool(self.call_format.end) and end != self.call_format.end

    def _parsed(self, text: str) -> list[tuple[str, str]]:
        """The names and arguments of calls that were not read here.

        Raises an exception for other text, and for what mlx-lm's parsers guess.
        """
        try:
            return [*map(parsed_call, json_calls(text))]
        except (ValueError, RecursionError):
            header = self.call_format.header
            if header and header.search(text):
                raise
        parsed = self.call_format.parse(text, list(self.tools))
        calls = [*map(parsed_call, parsed if isinstance(parsed, list) else [parsed])]
        if self.call_format.tagged:
            guessed = any(arguments.startswith('{"raw":') for _, arguments in calls)
            if guessed or not {name for name, _ in calls} <= self._names():
                raise ValueError(text)
        return calls

    def _add_call(self, name: str, arguments: str, *, complete: bool = True) -> None:
        self._calls.append(ToolCall(name, arguments, after=len(self._text), complete=complete))
        self.calls_ended += complete


def parsed_call(call: Any) -> tuple[str, str]:
    """The name and the arguments of a call by a parser; TypeError if it is none."""
    function = call.get("function") if isinstance(call, dict) else None
    call = function if isinstance(function, dict) else call
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise TypeError(call)
    arguments = call.get("arguments", call.get("parameters"))
    if arguments is None and call.keys() <= {"name", "type", "id", "arguments", "parameters"}:
        arguments = {}
    written = arguments if isinstance(arguments, str) else as_json(arguments)
    if (json := json_object(written or "{}")) is None:
        raise TypeError(call)
    return call["name"], json


def make_tool_parser(
    tokenizer: TokenizerWrapper, tools: Sequence[dict[str, Any]]
) -> ToolParser | None:
    call_format = find_call_format(tokenizer)
    return None if call_format is None else ToolParser(call_format, tools)


def call_finder(tokenizer: TokenizerWrapper, tools: Sequence[dict[str, Any]]) -> FindCall:
    """Finds a call of an offered tool in thinking; see `ToolParser.first_call`."""
    call_format = find_call_format(tokenizer) if tools else None

    def find_call(text: str, end: str, final: bool) -> tuple[int, int]:
        index = length = 0
        while call_format and not length and index < len(text):
            parser = ToolParser(call_format, tools)
            first, length = parser.first_call(text[index:], end, final=final)
            index += first + (not length)
        return (index, length) if length else (len(text), 0)

    return find_call


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
    numbers = count()

    def numbered(call: dict[str, Any]) -> str:
        new_id = f"functions.{call['function']['name']}:{next(numbers)}"
        new_ids[call["id"]] = new_id
        return new_id

    return with_ids(messages, numbered, lambda known: new_ids.get(known, known))


# Whether a model supports tools


def without_tools(template: Template, tokenizer: TokenizerWrapper) -> str | None:
    """Why this model cannot call tools, as the end of a sentence; None if it can."""
    if not template.shows_tools:
        return "does not call tools"
    if find_call_format(tokenizer) is None:
        return "calls tools in a form that cannot be read"
    return None
