"""Streaming split of an answer into text and calls of tools, in the form of the model.

A call's arguments come as they are written, where its format is JSON or one of `tagged_arguments`;
else when the call has ended, read by mlx-lm's parser. Text that is no call after all stays text.
Does not know who runs the tools.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .call_formats import CallFormat, call_format
from .json_arguments import JsonArguments
from .tagged_arguments import TaggedArguments
from .thinking import partial_match


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
class ToolReader:
    """Splits one answer of a model that was told of `tools` (JSON schemas).

    `calls` have begun, `closed` of them have ended.
    """

    form: CallFormat
    tools: Sequence[dict[str, Any]]
    calls: int = 0
    closed: int = 0
    _held: str = ""
    _call: OpenCall | None = None

    def read(self, text: str, *, final: bool = False) -> Said:
        """Add text of the answer; with `final` it has ended, and nothing is held back."""
        said: list[Said] = []
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
        told, parts = "", []
        for one in said:
            parts += [replace(part, after=len(told)) for part in one.parts]
            told += one.text
        return Said(told, tuple(parts))

    def _outside(self, final: bool) -> Said | None:
        """Text up to the next start; None where all that is left may be one."""
        starts = self.form.starts
        place, start = min(
            ((at, mark) for mark in starts if (at := self._held.find(mark)) >= 0), default=(-1, "")
        )
        if place < 0:
            place = len(self._held) - (0 if final else partial_match(self._held, starts))
        text, self._held = self._held[:place], self._held[place + len(start) :]
        if start:
            self._call = OpenCall(start, start if self.form.heads_start else "")
        return Said(text) if text or start else None

    def _begun(self, call: OpenCall) -> Said | None:
        """The name of a call whose arguments begin; None where none does."""
        head = self.form.head
        found = head and head.match(call.text + self._held, call.searched)
        if not found:
            return None
        call.text, self._held = found.string[: found.end()], found.string[found.end() :]
        call.arguments, call.searched = self._arguments(found[1]), found.end()
        call.begun += 1
        self.calls += 1
        return Said(parts=(CallPart(self.calls - 1, found[1]),))

    def _arguments(self, name: str) -> Arguments:
        form = self.form
        if form.tagged is None or form.parse is None:
            return JsonArguments()
        return TaggedArguments(form.tagged, name, form.parse, self.tools, form.end)

    def _in_arguments(self, call: OpenCall, arguments: Arguments) -> Said:
        """More of the arguments."""
        more = arguments.feed(self._held)
        self._held = arguments.rest
        if arguments.ended:
            self.closed += 1
            call.text, call.searched, call.arguments = "", 0, None
            if not self.form.end:
                self._call = None
        return Said(parts=(CallPart(self.calls - 1, arguments=more),) if more else ())

    def _inside(self, call: OpenCall, final: bool) -> Said | None:
        """Up to the end of the calls; None where more has to come."""
        end = self.form.end
        inside, found, rest = self._held.partition(end) if end else (self._held, "", "")
        held = 0 if found or final or not end else partial_match(inside, (end,))
        cut = len(inside) - held
        call.text += inside[:cut]
        self._held = rest if found else inside[cut:]
        return self._closed(call) if found else None

    def _closed(self, call: OpenCall, *, whole: bool = True) -> Said:
        """What is left when calls have ended; `whole` is False where the answer was cut in one."""
        self._call = None
        if call.begun:
            return Said()
        text = call.text.removeprefix(call.start) if self.form.heads_start else call.text
        try:
            found = self.form.parse(text, list(self.tools)) if self.form.parse and whole else None
        except Exception:  # a parser raises what it likes for what it cannot read
            found = None
        parts = []
        for one in found if isinstance(found, list) else [found]:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                return Said(call.start + text + (self.form.end if whole else ""))
            arguments = one.get("arguments", {})
            written = arguments if isinstance(arguments, str) else as_json(arguments)
            parts.append(CallPart(self.calls + len(parts), one["name"], written))
        self.calls += len(parts)
        self.closed += len(parts)
        return Said(parts=tuple(parts))


def reader_of(tokenizer: TokenizerWrapper, tools: Sequence[dict[str, Any]]) -> ToolReader | None:
    """A reader of an answer of this tokenizer's model; None where nobody knows its calls."""
    form = call_format(tokenizer)
    return None if form is None else ToolReader(form, tools)


def as_json(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)
