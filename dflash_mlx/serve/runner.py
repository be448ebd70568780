"""Answers requests with one pair: checks and admits them, and turns blocks of tokens into deltas.

Each choice is a task of the event loop that waits for its blocks; the engine packs the rounds of
all. When a client disconnects, its answer stops after the running round.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import mlx.core as mx
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dflash_mlx.answer import Answer
from dflash_mlx.batch import as_choice
from dflash_mlx.chat.tool_parser import make_tool_parser
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.stats import Stats
from dflash_mlx.engine.worker_thread import uninterrupted
from dflash_mlx.errors import DFlashError, PromptTooLong
from dflash_mlx.pair import Pair
from dflash_mlx.session import Prompted, Session
from dflash_mlx.types import Block

from .answer_request import AnswerRequest, Progress
from .protocol import Problem, Settings, problem_of
from .streams import tasks_of

# Admission: running and waiting answers


@dataclass(eq=False, slots=True)
class Ticket:
    """The place of one answer in the queue. `nbytes`: memory for its caches."""

    nbytes: int
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, slots=True)
class Admission:
    """At most `max_running` answers at once, in at most `max_bytes`; first come, first served.

    max_waiting: more requests are refused.
    """

    max_running: int
    max_waiting: int
    max_bytes: int = 0
    _queue: deque[Ticket] = field(default_factory=deque)
    _admitted: set[Ticket] = field(default_factory=set)

    @property
    def running(self) -> int:
        return len(self._admitted)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def reserved_bytes(self) -> int:
        return sum(ticket.nbytes for ticket in self._admitted)

    def enqueue(self, nbytes: int, count: int) -> list[Ticket]:
        """Places in the queue for `count` answers of one request, all or none.

        Raises Problem 400 if one answer can never fit, 429 if too many wait.
        """
        if nbytes > self.max_bytes:
            raise Problem(
                400,
                f"prompt is too long: its answer would need {nbytes / 1e9:.2f} GB of memory, and "
                f"{self.max_bytes / 1e9:.2f} GB are free beside the model. (Shorten it, or ask for "
                "fewer max_tokens.)",
                code="context_length_exceeded",
            )
        free = self.max_running - self.running
        if self.waiting + count > self.max_waiting + free:
            raise Problem(
                429,
                f"too many requests: {self.running} are answered and {self.waiting} wait.",
                code="rate_limit_exceeded",
                retry_after=1 + self.waiting // max(self.max_running, 1),
            )
        tickets = [Ticket(nbytes) for _ in range(count)]
        self._queue.extend(tickets)
        self._advance()
        return tickets

    def leave(self, ticket: Ticket) -> None:
        if ticket in self._admitted:
            self._admitted.remove(ticket)
        elif ticket in self._queue:
            self._queue.remove(ticket)
        self._advance()

    def _advance(self) -> None:
        """Admit from the start of the queue. A large answer is not overtaken by smaller ones."""
        while self._queue and self.running < self.max_running:
            first = self._queue[0]
            if self.reserved_bytes + first.nbytes > self.max_bytes and self._admitted:
                return
            self._admitted.add(self._queue.popleft())
            first.admitted.set()


# Prometheus metrics

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32)


class Metrics:
    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"dflash_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"dflash_{name}", text, buckets=buckets, registry=registry)

        labels = ("path", "status")
        self._requests = counter("requests", "HTTP requests by path and status.", labels)
        self._tokens = {
            "prompt_tokens": counter("prompt_tokens", "Tokens of prompts."),
            "cached_tokens": counter("cached_prompt_tokens", "Tokens of prompts not read again."),
            "generated": counter("generated_tokens", "Tokens made."),
            "drafted": counter("drafted_tokens", "Drafts verified."),
            "accepted": counter("accepted_tokens", "Drafts accepted."),
        }
        text = "Tokens a pass (verify or decode step), bonus included."
        self._lengths = histogram("acceptance_length", text, LENGTHS)
        text = "From the request to the first token."
        self._first = histogram("time_to_first_token_seconds", text, SECONDS)
        text = "From the line to the last token."
        self._whole = histogram("answer_seconds", text, SECONDS)

    def watch(self, engines: Callable[[], Sequence[Engine]], admission: Admission) -> None:
        """Add gauges of the loaded engines and their queue, which are read on demand."""
        for name, text, read in (
            ("running", "Answers being found.", lambda: admission.running),
            ("waiting", "Answers waiting for a place.", lambda: admission.waiting),
            ("reserved_bytes", "Memory for running answers.", lambda: admission.reserved_bytes),
            ("room_bytes", "Memory that answers may take.", lambda: admission.max_bytes),
            ("active_memory_bytes", "Memory MLX uses.", mx.get_active_memory),
            ("peak_memory_bytes", "The most it has used.", mx.get_peak_memory),
            ("passes", "Passes of the loaded models.", lambda: sum(e.passes for e in engines())),
            ("pass_rows", "Rows of all these passes.", lambda: sum(e.rows for e in engines())),
        ):
            Gauge(f"dflash_{name}", text, registry=self._registry).set_function(read)

    def count_request(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def count_answer(self, stats: Stats, seconds: float) -> None:
        """Count an answer, also a cancelled one."""
        for name, tokens in self._tokens.items():
            tokens.inc(getattr(stats, name))
        for length in stats.committed:
            self._lengths.observe(length)
        if stats.generated:
            self._first.observe(stats.first_token_seconds)
        self._whole.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


PROMPT_THREADS = 16  # short prompts must not wait for a few long ones
Event = Progress | tuple[int, Block]  # of the choice with this index
T = TypeVar("T")


class PromptThreads:
    """Threads for long work on prompts, which does not hold up those that wait for MLX's thread."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(PROMPT_THREADS, "dflash-prompt")

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, *arguments)


@dataclass(frozen=True, slots=True)
class PreparedChoice:
    """A checked choice, its place in the queue, and its answer, which events may lag behind."""

    index: int
    session: Session
    prompted: Prompted
    ticket: Ticket
    answer: Answer


@dataclass(eq=False)
class Runner:
    """Answers for one pair in one event loop. name: the pair's in answers."""

    name: str
    pair: Pair
    settings: Settings
    metrics: Metrics
    admission: Admission
    threads: PromptThreads

    @property
    def context(self) -> int:
        context_length = self.pair.engine.context_length
        return min(context_length, self.settings.context or context_length)

    async def prepare(self, request: AnswerRequest) -> list[PreparedChoice]:
        """Check a request, and queue its choices. Raises Problem 400, or 429 if too many wait."""
        most = self.settings.limits.choices
        if not 1 <= request.choices <= most:
            raise Problem(400, f"n cannot be {request.choices}: give 1 to {most}.", "n")
        sessions = [
            Session(self.pair, mode=self.settings.options.mode) for _ in range(request.choices)
        ]
        prompted = await self._tokenize(sessions[0], request)
        prompt_tokens = len(prompted.request.prompt)
        context = min(self.context, request.context or self.context)
        if prompt_tokens >= context:
            raise too_long(str(prompt_tokens), context)
        max_tokens = min(prompted.request.token_limit, context - prompt_tokens)
        limited = replace(prompted.request, max_tokens=max_tokens)
        prompted = replace(prompted, request=limited)
        nbytes = self.pair.engine.sequence_bytes(prompt_tokens + max_tokens)
        tickets = self.admission.enqueue(nbytes, request.choices)

        def answer() -> Answer:
            tools, goes_on = request.parser_tools, prompted.goes_on
            parser = None if tools is None else make_tool_parser(self.pair.tokenizer, tools)
            return Answer(parser=parser, single_call=request.single_call, goes_on=goes_on)

        return [
            PreparedChoice(index, session, as_choice(prompted, index), ticket, answer())
            for index, (session, ticket) in enumerate(zip(sessions, tickets, strict=True))
        ]

    async def count_tokens(self, request: AnswerRequest) -> int:
        """The tokens of a request's prompt. Raises Problem 400 as `prepare`."""
        session = Session(self.pair, mode=self.settings.options.mode)
        prompted = await self._tokenize(session, request)
        return len(prompted.request.prompt)

    async def _tokenize(self, session: Session, request: AnswerRequest) -> Prompted:
        options = request.options
        try:
            if options.max_tokens is None:
                options = replace(options, max_tokens=self.settings.max_tokens)
            prompted = await self.threads.run(session.prepare, request.prompt, options)
        except PromptTooLong as error:
            raise too_long(f"about {error.tokens}", self.context) from error
        except DFlashError as error:
            raise problem_of(error, bad_request=True) from error
        return replace(prompted, split=not options.raw, requested=request.began)

    def release(self, choices: list[PreparedChoice]) -> None:
        for choice in choices:
            self.admission.leave(choice.ticket)

    async def answer(
        self, request: AnswerRequest, choices: list[PreparedChoice]
    ) -> AsyncGenerator[Event]:
        """All choices' blocks, and the first one's prefill. Closing the generator cancels all."""
        queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue(maxsize=64)
        prompt_is_processed = asyncio.Event()

        async def run(choice: PreparedChoice) -> None:
            try:
                if choice.index:  # the others use the first one's prefill
                    await prompt_is_processed.wait()
                async with aclosing(self._choice_events(request, choice)) as events:
                    async for event in events:
                        if not isinstance(event, Progress):
                            prompt_is_processed.set()
                        await queue.put(event)
                await queue.put(None)
            except Exception as error:
                await queue.put(error)
            finally:
                prompt_is_processed.set()
                self.admission.leave(choice.ticket)

        running = len(choices)
        try:
            async with tasks_of(*map(run, choices)):
                while running:
                    event = await queue.get()
                    if isinstance(event, BaseException):
                        raise event
                    if event is None:
                        running -= 1
                    else:
                        yield event
        finally:
            self.release(choices)

    async def _choice_events(
        self, request: AnswerRequest, choice: PreparedChoice
    ) -> AsyncGenerator[Event]:
        """One choice's progress and blocks, once it is admitted."""
        began = time.perf_counter()
        await choice.ticket.admitted.wait()
        try:
            reply = await uninterrupted(choice.session.begin, choice.prompted)
        except DFlashError as error:
            raise problem_of(error, bad_request=True) from error
        answer = choice.answer
        answer.stats = reply.stats
        in_prefill = request.return_progress and not choice.index
        try:
            if in_prefill:
                yield Progress.of(reply, began)
            while not answer.finish_reason:
                block = reply.take(await asyncio.wrap_future(reply.ask()))
                if in_prefill:
                    yield Progress.of(reply, began)
                    in_prefill = block is None
                if block is not None:
                    yield choice.index, answer.add(block)
        except DFlashError as error:
            raise problem_of(error, bad_request=False) from error
        finally:
            await uninterrupted(reply.close)
            self.metrics.count_answer(reply.stats, time.perf_counter() - began)


def too_long(prompt_tokens: str, context: int) -> Problem:
    """The error whose wording and code make clients shorten the chat."""
    return Problem(
        400,
        f"prompt is too long: {prompt_tokens} tokens > {context - 1} maximum.",
        param="messages",
        code="context_length_exceeded",
    )
