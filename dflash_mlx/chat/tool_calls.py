"""Streaming split of an answer into text and calls of tools, by mlx-lm's parser of the model.

A call's arguments come as they are written where the model writes them as JSON; else when the call
has ended. Text that is no call after all stays text. Does not know who runs the tools.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .thinking import partial_match

JSON_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"arguments"\s*:\s*(?=[{\[])')


@dataclass(frozen=True, slots=True)
class CallPart:
    """A part of a call: its `number` among the answer's; the first part has its `name`.

    `arguments` is the next piece of a JSON text. `after`: how many characters of the text that is
    told with it come before it.
    """

    number: int
    name: str = ""
    arguments: str = ""
    after: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """New text of an answer, and new parts of calls."""

    text: str = ""
    parts: tuple[CallPart, ...] = ()


@dataclass(slots=True)
class JsonArguments:
    """A JSON value that is read as it is written: how deep it is in, and whether in a string."""

    depth: int = 0
    quoted: bool = False
    escaped: bool = False
    ended: bool = False

    def feed(self, text: str) -> str:
        """The part of a text that belongs to the value."""
        for place, mark in enumerate(text):
            if self.escaped:
                self.escaped = False
            elif self.quoted:
                self.escaped, self.quoted = mark == "\\", mark != '"'
            elif mark == '"':
                self.quoted = True
            else:
                self.depth += (mark in "{[") - (mark in "}]")
                if not self.depth:
                    self.ended = True
                    return text[: place + 1]
        return text


@dataclass(slots=True)
class OpenCall:
    """A call that is being written: its text so far, and what was given out of it."""

    text: str = ""
    arguments: JsonArguments | None = None
    given: int = 0  # characters of `text`


@dataclass(slots=True)
class ToolReader:
    """Splits one answer of a model that was told of `tools` (JSON schemas).

    `tokenizer` must know how its model calls tools (`can_call`). `calls` have begun, `closed` of
    them have ended.
    """

    tokenizer: TokenizerWrapper
    tools: Sequence[dict[str, Any]]
    calls: int = 0
    closed: int = 0
    _held: str = ""
    _call: OpenCall | None = None
    _parse: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        assert self.tokenizer.tool_parser is not None
        self._parse = self.tokenizer.tool_parser

    @property
    def _marks(self) -> tuple[str, str]:
        return self.tokenizer.tool_call_start or "", self.tokenizer.tool_call_end or ""

    def read(self, text: str, *, final: bool = False) -> Said:
        """Add text of the answer; with `final` it has ended, and nothing is held back."""
        start, end = self._marks
        said: list[Said] = []
        self._held += text
        while self._held:
            if self._call is None:
                before, found, rest = self._held.partition(start)
                if not found:
                    cut = len(self._held) - (0 if final else partial_match(self._held, (start,)))
                    said.append(Said(self._held[:cut]))
                    self._held = self._held[cut:]
                    break
                said.append(Said(before))
                self._call, self._held = OpenCall(), rest
            else:
                inside, found, rest = self._held.partition(end) if end else (self._held, "", "")
                held = 0 if found or final or not end else partial_match(inside, (end,))
                cut = len(inside) - held
                self._call.text += inside[:cut]
                said.append(self._going_on(self._call))
                self._held = rest if found else inside[cut:]
                if not found:
                    break
                said.append(self._closed(self._call))
        if final and self._call is not None:
            said.append(self._closed(self._call, whole=not end))
        told, parts = "", []
        for one in said:
            parts += [replace(part, after=len(told)) for part in one.parts]
            told += one.text
        return Said(told, tuple(parts))

    def _going_on(self, call: OpenCall) -> Said:
        """What can be given out of a call before it has ended."""
        if call.arguments is None:
            head = JSON_HEAD.match(call.text)
            if head is None or not self._writes_json:
                return Said()
            call.arguments, call.given = JsonArguments(), head.end()
            self.calls += 1
            return Said(parts=(CallPart(self.calls - 1, head[1]), *self._new(call)))
        return Said(parts=tuple(self._new(call)))

    def _new(self, call: OpenCall) -> list[CallPart]:
        if call.arguments is None or call.arguments.ended:
            return []
        more = call.arguments.feed(call.text[call.given :])
        call.given += len(more)
        return [CallPart(self.calls - 1, arguments=more)] if more else []

    def _closed(self, call: OpenCall, *, whole: bool = True) -> Said:
        """The rest of a call that has ended; `whole` is False where the answer was cut in it."""
        start, end = self._marks
        self._call = None
        if call.arguments is not None:
            self.closed += whole
            return Said()
        try:
            found = self._parse(call.text, list(self.tools)) if whole else None
        except Exception:  # a parser raises what it likes for what it cannot read
            found = None
        parts = []
        for one in found if isinstance(found, list) else [found]:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                return Said(start + call.text + (end if whole else ""))
            arguments = one.get("arguments", {})
            written = arguments if isinstance(arguments, str) else as_json(arguments)
            parts.append(CallPart(self.calls + len(parts), one["name"], written))
        self.calls += len(parts)
        self.closed += len(parts)
        return Said(parts=tuple(parts))

    @property
    def _writes_json(self) -> bool:
        return self._parse.__module__.endswith(".json_tools")


def can_call(tokenizer: TokenizerWrapper) -> bool:
    """Whether mlx-lm knows how this tokenizer's model calls tools."""
    return bool(tokenizer.has_tool_calling and tokenizer.tool_parser)


def as_json(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)
