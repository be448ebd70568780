"""What writes the answers to a request in the form of an API, and the numbers that several have."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from dflash_mlx.chat.detokenizer import token_bytes, token_text
from dflash_mlx.engine.stats import Stats
from dflash_mlx.pair import Pair
from dflash_mlx.types import Block, TokenLogprob

from .answer_request import AnswerRequest, ItemChange, OutputItems, Progress
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
