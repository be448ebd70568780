"""A request of any API in one form, and the parts of its answer."""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dflash_mlx.chat.tool_parser import ToolCall
from dflash_mlx.engine.stats import Stats
from dflash_mlx.options import GenerationOptions
from dflash_mlx.session import Prompt
from dflash_mlx.types import TokenLogprob


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A request for several answers (`choices`) to one prompt.

    prompt: messages for the chat template, a text, or token ids. options: of each answer; the
    server's settings replace a `max_tokens` of None. parser_tools: the tools whose calls are
    parsed; None if calls are text. single_call: the first call ends an answer.
    ignored: the fields of the body that have no effect, as "name (why)". token_limit: the
    tokens that each answer may have, which the rest of the context limits; 0 until the runner has
    prepared the request. context: the limit for prompt and answer in tokens, if it is below the
    model's. began: when the request came, by `time.perf_counter`; its model was ready after
    `load_seconds`.
    """

    prompt: Prompt
    options: GenerationOptions
    choices: int = 1
    parser_tools: Sequence[dict[str, Any]] | None = None
    single_call: bool = False
    return_progress: bool = False
    ignored: tuple[str, ...] = ()
    token_limit: int = 0
    context: int | None = None
    began: float = field(default_factory=time.perf_counter)
    load_seconds: float = 0.0

    def with_ignored(self, fields: Iterable[str]) -> "AnswerRequest":
        return replace(self, ignored=(*self.ignored, *fields))


@dataclass(frozen=True, slots=True)
class Progress:
    """Prefill: `processed` of `total` prompt tokens, including the `cached` ones, after `ms`."""

    processed: int
    total: int
    cached: int
    ms: float


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass of the target for an answer: verify pass, decode step, or end of the prefill (0).

    tokens: committed ones; `accepted` of them are drafts, of `drafted` that were verified.
    """

    number: int
    tokens: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What a round added to the choice `index`; a call as soon as it is complete.

    finish_reason: stop, length or calls, in the last delta only. stop: the stop string that ended
    the answer. stats: of the choice so far. target_pass: the one that completed this text.
    ends_in_call: whether the answer ended inside a call.
    """

    index: int
    stats: Stats
    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    stop: str | None = None
    target_pass: Pass | None = None
    ends_in_call: bool = False


# The deltas of an answer as output items, for Anthropic's API and OpenAI's responses API

Kind = Literal["thinking", "text", "call"]


@dataclass(eq=False, slots=True)
class OutputItem:
    """The item `number`. name: the tool of a call, `text` its JSON. cut: by the answer's length.

    key: for the ids of the item in an API.
    """

    number: int
    kind: Kind
    name: str = ""
    text: str = ""
    cut: bool = False
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class ItemChange:
    """A change of an item; `text` is the added text."""

    change: Literal["opened", "added", "closed"]
    item: OutputItem
    text: str = ""


@dataclass
class Completion:
    """A choice: the sum of its deltas."""

    stats: Stats = field(default_factory=Stats)
    text: str = ""
    thinking: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""
    stop: str | None = None
    ends_in_call: bool = False

    def add(self, delta: Delta) -> Iterable[ItemChange]:
        """Add a delta. Yields the changes of the items, if the choice has any, one by one."""
        self.stats = delta.stats
        self.text += delta.text
        self.thinking += delta.thinking
        self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.stop = delta.stop
        self.ends_in_call = delta.ends_in_call
        self.calls += delta.calls
        return ()


class OutputItems(Completion):
    """A choice with its items. The last delta closes the last item."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._held_blank = ""  # white space, which is text only if more text follows

    def add(self, delta: Delta) -> Iterator[ItemChange]:
        super().add(delta)
        written = 0
        if delta.thinking:
            yield from self._write("thinking", delta.thinking)
        for call in delta.calls:
            yield from self._text(delta.text[written : call.after])
            written = call.after
            yield from self._close()
            yield from self._write("call", call.arguments, call.name)
            if call.complete:
                yield from self._close()
        yield from self._text(delta.text[written:])
        if delta.finish_reason:
            if self._held_blank and all(item.kind != "call" for item in self.all):
                yield from self._write("text", self._held_blank)
            yield from self._close(cut=delta.finish_reason == "length")

    def _text(self, text: str) -> Iterator[ItemChange]:
        if self._open is None or self._open.kind != "text":
            text = self._held_blank + text
            self._held_blank = ""
            if not text.strip():
                self._held_blank = text
                return
        if text:
            yield from self._write("text", text)

    def _write(self, kind: Kind, text: str, name: str = "") -> Iterator[ItemChange]:
        if self._open is None or self._open.kind != kind:
            yield from self._close()
            self._open = OutputItem(len(self.all), kind, name)
            self.all.append(self._open)
            yield ItemChange("opened", self._open)
        if text:
            self._open.text += text
            yield ItemChange("added", self._open, text)

    def _close(self, *, cut: bool = False) -> Iterator[ItemChange]:
        self._held_blank = ""
        if self._open is not None:
            item = self._open
            item.cut = cut
            self._open = None
            yield ItemChange("closed", item)
