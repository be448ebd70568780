"""What a request of any API asks for, in one form; and what an answer to it is made of."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from dflash_mlx.chat.tool_parser import CallPart
from dflash_mlx.engine.stats import Stats
from dflash_mlx.options import GenerationOptions
from dflash_mlx.session import Prompt
from dflash_mlx.types import TokenLogprob


@dataclass(frozen=True, slots=True)
class Job:
    """One request: `choices` answers to a prompt.

    prompt: messages as chat templates read them, a text, or token ids. options: of each answer;
    `max_tokens` None is what the server's settings say. calls: the tools as a parser reads calls of
    them, None where none are looked for; with `one_call` the first one ends an answer. clip:
    `max_tokens` may be more than the context holds.
    """

    prompt: Prompt
    options: GenerationOptions
    choices: int = 1
    calls: Sequence[dict[str, Any]] | None = None
    one_call: bool = False
    progress: bool = False
    clip: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Prompt tokens that are read: `read` of `total`, the `cached` ones among them; after `ms`."""

    read: int
    total: int
    cached: int
    ms: float


@dataclass(frozen=True, slots=True)
class Delta:
    """What a round added to choice `choice`; in the last one is why it ended: stop, length, calls.

    `stop` is the stop string that ended it. `stats` are those of the choice so far.
    """

    choice: int
    stats: Stats
    text: str = ""
    thinking: str = ""
    parts: tuple[CallPart, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    stop: str | None = None


@dataclass(slots=True)
class Call:
    """A whole call of a tool; `arguments` is JSON."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class Whole:
    """One choice's deltas put together."""

    stats: Stats = field(default_factory=Stats)
    text: str = ""
    thinking: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""

    def add(self, delta: Delta) -> None:
        """Add what came."""
        self.stats = delta.stats
        self.text += delta.text
        self.thinking += delta.thinking
        self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason or self.finish_reason
        for part in delta.parts:
            if part.name:
                self.calls.append(Call(part.name))
            self.calls[part.number].arguments += part.arguments


# An answer's deltas as items in their order

Kind = Literal["thinking", "text", "call"]


@dataclass(eq=False, slots=True)
class Item:
    """One item, the `number`th, as far as it has come; `name` is a call's, and its `text` JSON."""

    number: int
    kind: Kind
    name: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to an item; `text` is what is added."""

    change: Literal["opened", "added", "closed"]
    item: Item
    text: str = ""


class Items:
    """The items of one answer."""

    def __init__(self) -> None:
        self.all: list[Item] = []
        self._open: Item | None = None
        self._blank = ""  # white space that is text only if more text follows

    def add(self, delta: Delta) -> Iterator[Step]:
        """Take a delta; the last one closes the last item."""
        told = 0
        if delta.thinking:
            yield from self._more("thinking", delta.thinking)
        for part in delta.parts:
            yield from self._text(delta.text[told : part.after])
            told = part.after
            if part.name:
                yield from self._begin("call", part.name)
            if part.arguments:
                yield from self._write(part.arguments)
        yield from self._text(delta.text[told:])
        if delta.finish_reason:
            if self._blank and all(item.kind != "call" for item in self.all):
                yield from self._more("text", self._blank)
            yield from self._close()

    async def add_all(self, events: AsyncGenerator[Delta | Progress]) -> Delta:
        """Take a whole answer's deltas; the last of them."""
        last: Delta | None = None
        async with aclosing(events):
            async for found in events:
                if isinstance(found, Delta):
                    last = found
                    list(self.add(found))
        assert last is not None
        return last

    def _text(self, text: str) -> Iterator[Step]:
        if self._open is None or self._open.kind != "text":
            self._blank, text = "", self._blank + text
            if not text.strip():
                self._blank = text
                return
        if text:
            yield from self._more("text", text)

    def _more(self, kind: Kind, text: str) -> Iterator[Step]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        yield from self._write(text)

    def _begin(self, kind: Kind, name: str = "") -> Iterator[Step]:
        yield from self._close()
        self._open = Item(len(self.all), kind, name)
        self.all.append(self._open)
        yield Step("opened", self._open)

    def _write(self, text: str) -> Iterator[Step]:
        assert self._open is not None
        self._open.text += text
        yield Step("added", self._open, text)

    def _close(self) -> Iterator[Step]:
        self._blank = ""
        if self._open is not None:
            item = self._open
            self._open = None
            yield Step("closed", item)


# Counts of an answer in the words of OpenAI and of llama-server.


def usage(stats: Sequence[Stats]) -> dict[str, Any]:
    """OpenAI's usage: the prompt counts once for all choices."""
    made = sum(one.generated for one in stats)
    read = stats[0].prompt_tokens
    return {
        "prompt_tokens": read,
        "completion_tokens": made,
        "total_tokens": read + made,
        "prompt_tokens_details": {"cached_tokens": stats[0].cached_tokens},
    }


def timings(stats: Stats) -> dict[str, Any]:
    """llama-server's timings of one choice; rates are tokens a second."""
    read = stats.prompt_tokens - stats.cached_tokens
    speed = stats.tokens_per_second
    prompt_seconds = stats.prefill_seconds
    return {
        "cache_n": stats.cached_tokens,
        "prompt_n": read,
        "prompt_ms": round(1e3 * prompt_seconds, 3),
        "prompt_per_token_ms": round(1e3 * prompt_seconds / read, 3) if read else 0,
        "prompt_per_second": round(read / prompt_seconds, 3) if prompt_seconds else 0,
        "predicted_n": stats.generated,
        "predicted_ms": round(1e3 * stats.decode_seconds, 3),
        "predicted_per_token_ms": round(1e3 / speed, 3) if speed else 0,
        "predicted_per_second": round(speed, 3),
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
    }


def progress(found: Progress) -> dict[str, Any]:
    """How far a prompt is read, as llama-server tells it."""
    return {
        "total": found.total,
        "cache": found.cached,
        "processed": found.read,
        "time_ms": round(found.ms),
    }
