"""A request of any API in one form, and the parts of its answer."""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from dflash_mlx.answer import found
from dflash_mlx.options import GenerationOptions
from dflash_mlx.session import Prompt, Reply, Session
from dflash_mlx.types import Block


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A request for several answers (`choices`) to one prompt.

    prompt: messages for the chat template, a text, or token ids. options: of each answer; the
    server's settings replace a `max_tokens` of None. parser_tools: the tools whose calls are
    parsed; None if calls are text. single_call: the first call ends an answer.
    ignored: the fields of the body that have no effect, as "name (why)". context: the limit for
    prompt and answer in tokens, if it is below the model's. began: when the request came, by
    `time.perf_counter`; its model was ready after `load_seconds`.
    """

    prompt: Prompt
    options: GenerationOptions
    choices: int = 1
    parser_tools: Sequence[dict[str, Any]] | None = None
    single_call: bool = False
    return_progress: bool = False
    ignored: tuple[str, ...] = ()
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

    @classmethod
    def of(cls, answer: Reply | Session, began: float) -> Self:
        stats = answer.stats
        ms = 1e3 * (time.perf_counter() - began)
        return cls(answer.prompt_read, stats.prompt_tokens, stats.cached_tokens, ms)


# The blocks of an answer as output items, for Anthropic's API and OpenAI's responses API

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


class OutputItems:
    """The items of a choice. The last block closes the last one."""

    def __init__(self) -> None:
        self.all: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._held_blank = ""  # white space, which is text only if more text follows

    def add(self, block: Block) -> Iterator[ItemChange]:
        """The changes that a block of `Answer.add` makes; each is made as it is read."""
        written = 0
        if block.thinking:
            yield from self._write("thinking", block.thinking)
        for call in found(block):
            yield from self._text(block.text[written : call.after])
            written = call.after
            yield from self._close()
            yield from self._write("call", call.arguments, call.name)
            if call.complete:
                yield from self._close()
        yield from self._text(block.text[written:])
        if block.finish_reason:
            if self._held_blank and all(item.kind != "call" for item in self.all):
                yield from self._write("text", self._held_blank)
            yield from self._close(cut=block.finish_reason == "length")

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
