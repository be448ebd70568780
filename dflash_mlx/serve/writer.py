"""What writes the answers to a request in the form of an API, and the numbers that several have."""

import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from dflash_mlx.answer import found
from dflash_mlx.chat.detokenizer import token_bytes, token_text
from dflash_mlx.engine.stats import Stats
from dflash_mlx.pair import Pair
from dflash_mlx.types import Block, TokenLogprob

from .answer_request import AnswerRequest, Progress
from .body import NO_LIMIT, Fields
from .protocol import Problem, Settings
from .runner import PreparedChoice, Runner
from .streams import EVENTS

CUT_CALL = "the answer ended inside a tool call"
CUT_FORM = "max_tokens cut the answer before its form (response_format, grammar) was complete"
MIN_LOGPROB = -9999.0  # as in OpenAI's API, because JSON has no infinity


class Writer:
    """An API. Writes the answers to one request: as events while they come, or as one reply.

    The reply is the sum of what the events say.

    bare: clients may leave the /v1 out of the path. to_request: reads a body. content_type: of
    streams. ping: keeps a stream alive, by its model's name and a comment for people. loading: the
    first event while the model is loaded. problem: the end of a stream after an error.
    """

    path: ClassVar[str]
    bare: ClassVar[bool] = False
    body_model: ClassVar[type[Fields]]
    to_request: ClassVar[Callable[[Any, Pair, Settings], AnswerRequest]]
    content_type: ClassVar[str] = EVENTS

    def __init__(
        self, body: Any, request: AnswerRequest, runner: Runner, choices: list[PreparedChoice]
    ):
        self.body = body
        self.request = request
        self.runner = runner
        self.choices = choices
        self.answers = [choice.answer for choice in choices]

    @classmethod
    def ping(cls, name: str, comment: str) -> bytes:
        return f": {comment}\n\n".encode()

    @classmethod
    def loading(cls, name: str) -> bytes:
        return f": loading {name}\n\n".encode()

    @staticmethod
    def problem(problem: Problem) -> bytes:
        raise NotImplementedError

    def begin(self) -> Iterable[bytes]:
        return ()

    def progress(self, progress: Progress) -> Iterable[bytes]:
        return ()

    def block(self, index: int, block: Block) -> Iterable[bytes]:
        raise NotImplementedError

    def end(self) -> Iterable[bytes]:
        return ()

    def whole(self) -> dict[str, Any]:
        raise NotImplementedError

    async def complete(self) -> dict[str, Any]:
        async with aclosing(self.runner.answer(self.request, self.choices)) as parts:
            async for part in parts:
                if not isinstance(part, Progress):
                    self.keep(*part)
        return self.whole()

    def keep(self, index: int, block: Block) -> None:
        """Keep what `whole` needs of a block beside the choice's answer."""

    async def stream(self) -> AsyncGenerator[bytes]:
        for event in self.begin():
            yield event
        async with aclosing(self.runner.answer(self.request, self.choices)) as parts:
            async for part in parts:
                is_progress = isinstance(part, Progress)
                for event in self.progress(part) if is_progress else self.block(*part):
                    yield event
        for event in self.end():
            yield event

    def extras(self) -> dict[str, Any]:
        return {"timings": timings(self.answers[0].stats), "dflash": self.dflash()}

    def dflash(self) -> dict[str, Any]:
        """How the answers were made.

        max_tokens: the limit that held. clipped_from: that of the request, if the context held
        fewer. incomplete: only if an answer was cut before it had its form.
        """
        request = self.request
        stats = self.answers[0].stats
        limit = self.choices[0].prompted.request.token_limit
        more = {}
        asked = request.options.max_tokens
        if asked not in (None, NO_LIMIT) and asked > limit:
            more["clipped_from"] = asked
        cut = any(answer.finish_reason == "length" for answer in self.answers)
        if cut and request.options.grammar is not None:
            more["incomplete"] = CUT_FORM
        elif any(answer.ends_in_call for answer in self.answers):
            more["incomplete"] = CUT_CALL
        return {
            "mode": self.runner.settings.options.mode,
            "draft": self.runner.pair.draft_name,
            "exact": self.runner.pair.target.kernels.exact,
            "acceptance_length": round(stats.acceptance_length, 3),
            "verifies": stats.verifies,
            "first_token_s": round(stats.first_token_seconds, 3),
            "seed": stats.seed,
            "max_tokens": limit,
            "ignored": list(request.ignored),
            **more,
        }

    def logprobs(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]] | None:
        """`choices[].logprobs.content` of a chat completion; None if it was not asked for."""
        if self.request.options.logprobs is None:
            return None

        def entry(token: int, logprob: float) -> dict[str, Any]:
            tokenizer = self.runner.pair.tokenizer
            text = token_text(tokenizer, token)
            return {
                "token": text,
                "logprob": max(logprob, MIN_LOGPROB),
                "bytes": token_bytes(tokenizer, token, text),
            }

        return [
            entry(position.token, position.logprob)
            | {"top_logprobs": [entry(token, logprob) for token, logprob in position.top]}
            for position in logprobs
        ]


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


class ItemsWriter(Writer):
    def __init__(self, *given: Any):
        super().__init__(*given)
        (self.answer,) = self.answers
        self.items = OutputItems()

    def keep(self, index: int, block: Block) -> None:
        for _ in self.items.add(block):
            pass

    def block(self, index: int, block: Block) -> Iterator[bytes]:
        for change in self.items.add(block):
            yield from self.change(change)

    def change(self, change: ItemChange) -> Iterator[bytes]:
        raise NotImplementedError


# Numbers of an answer in the fields of OpenAI and of llama-server


def usage(stats: Sequence[Stats]) -> dict[str, Any]:
    """OpenAI's usage; the prompt counts once for all choices."""
    generated = sum(choice.generated for choice in stats)
    prompt_tokens = stats[0].prompt_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
        "prompt_tokens_details": {"cached_tokens": stats[0].cached_tokens},
    }


def timings(stats: Stats) -> dict[str, Any]:
    """llama-server's timings of one choice. Rates are tokens per second."""
    processed = stats.prompt_tokens - stats.cached_tokens
    speed = stats.tokens_per_second
    prompt_seconds = stats.prefill_seconds
    return {
        "cache_n": stats.cached_tokens,
        "prompt_n": processed,
        "prompt_ms": round(1e3 * prompt_seconds, 3),
        "prompt_per_token_ms": round(1e3 * prompt_seconds / processed, 3) if processed else 0,
        "prompt_per_second": round(processed / prompt_seconds, 3) if prompt_seconds else 0,
        "predicted_n": stats.generated,
        "predicted_ms": round(1e3 * stats.decode_seconds, 3),
        "predicted_per_token_ms": round(1e3 / speed, 3) if speed else 0,
        "predicted_per_second": round(speed, 3),
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
    }


def prompt_progress(progress: Progress) -> dict[str, Any]:
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": round(progress.ms),
    }
