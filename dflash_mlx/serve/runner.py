"""Answers requests with one pair: checks and admits them, and turns blocks of tokens into deltas.

Each choice is a task of the event loop that waits for its blocks; the engine packs the rounds of
all. When a client disconnects, its answer stops after the running round.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import mlx.core as mx
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dflash_mlx.batch import as_choice
from dflash_mlx.chat.tool_parser import ToolCall, ToolParser, make_tool_parser
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.stats import Stats
from dflash_mlx.engine.worker_thread import uninterrupted
from dflash_mlx.errors import DFlashError, PromptTooLong
from dflash_mlx.pair import Pair
from dflash_mlx.session import Prompted, Reply, Session
from dflash_mlx.types import Block

from .answer_request import AnswerRequest, Completion, Delta, Pass, Progress
from .body import NO_LIMIT
from .protocol import Problem, Settings, problem_of

# Admission: running and waiting answers


@dataclass(eq=False, slots=True)
class Ticket:
    """The place of one answer in the queue. `nbytes`: memory for its caches."""

    nbytes: int
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


class Admission:
    """At most `max_running` answers at once, in at most `max_bytes`; first come, first served.

    max_waiting: more requests are refused.
    """

    def __init__(self, max_running: int, max_bytes: int, max_waiting: int):
        self.max_running = max_running
        self.max_bytes = max_bytes
        self._max_waiting = max_waiting
        self._queue: deque[Ticket] = deque()
        self._admitted: set[Ticket] = set()

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
        if self.waiting + count > self._max_waiting + free:
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
        """Give a place back, in the queue or as a running answer."""
        if ticket in self._admitted:
            self._admitted.remove(ticket)
        elif ticket in self._queue:
            self._queue.remove(ticket)
        self._advance()

    @asynccontextmanager
    async def turn(self, ticket: Ticket) -> AsyncIterator[None]:
        """Wait until a ticket is admitted, and give its place back afterwards."""
        try:
            await ticket.admitted.wait()
            yield
        finally:
            self.leave(ticket)

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
    """The metrics of one server, for `/metrics`."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "dflash_requests", "HTTP requests by path and status.", ["path", "status"],
            registry=registry,
        )  # fmt: skip
        self._prompt = Counter("dflash_prompt_tokens", "Tokens of prompts.", registry=registry)
        self._cached = Counter(
            "dflash_cached_prompt_tokens", "Tokens of prompts not read again.", registry=registry
        )
        self._generated = Counter("dflash_generated_tokens", "Tokens made.", registry=registry)
        self._drafted = Counter("dflash_drafted_tokens", "Drafts verified.", registry=registry)
        self._accepted = Counter("dflash_accepted_tokens", "Drafts accepted.", registry=registry)
        self._lengths = Histogram(
            "dflash_acceptance_length", "Tokens a pass (verify or decode step), bonus included.",
            buckets=LENGTHS, registry=registry,
        )  # fmt: skip
        self._first = Histogram(
            "dflash_time_to_first_token_seconds", "From the request to the first token.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._whole = Histogram(
            "dflash_answer_seconds", "From the line to the last token.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip

    def watch(self, engines: Callable[[], Sequence[Engine]], admission: Admission) -> None:
        """Add gauges of the loaded engines and their queue, which are read on demand."""
        for name, text, read in (
            ("running", "Answers being found.", lambda: admission.running),
            ("waiting", "Answers waiting for a place.", lambda: admission.waiting),
            (
                "reserved_bytes",
                "Memory set aside for running answers.",
                lambda: admission.reserved_bytes,
            ),
            ("room_bytes", "Memory that answers may take.", lambda: admission.max_bytes),
            ("active_memory_bytes", "Memory MLX uses.", mx.get_active_memory),
            ("peak_memory_bytes", "The most it has used.", mx.get_peak_memory),
            (
                "passes",
                "Target passes of the loaded models so far.",
                lambda: sum(engine.passes for engine in engines()),
            ),
            (
                "pass_rows",
                "Rows of all these passes.",
                lambda: sum(engine.rows for engine in engines()),
            ),
        ):
            Gauge(f"dflash_{name}", text, registry=self._registry).set_function(read)

    def count_request(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def count_answer(self, stats: Stats, seconds: float) -> None:
        """Count an answer, also a cancelled one."""
        self._prompt.inc(stats.prompt_tokens)
        self._cached.inc(stats.cached_tokens)
        self._generated.inc(stats.generated)
        self._drafted.inc(stats.drafted)
        self._accepted.inc(stats.accepted)
        for length in stats.committed:
            self._lengths.observe(length)
        if stats.generated:
            self._first.observe(stats.first_token_seconds)
        self._whole.observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


PROMPT_THREADS = 16  # short prompts must not wait for a few long ones
Event = Delta | Progress
CUT_CALL = "the answer ended inside a tool call"
CUT_FORM = "max_tokens cut the answer before its form (response_format, grammar) was complete"
T = TypeVar("T")


class PromptThreads:
    """Threads for long work on prompts, beside the event loop.

    Of their own, so that a long prompt does not hold up those that wait for MLX's thread.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(PROMPT_THREADS, "dflash-prompt")

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function that computes for long, such as the encoding of a long prompt."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, *arguments)


@dataclass(frozen=True, slots=True)
class PreparedChoice:
    """A checked choice of a request, with its place in the queue."""

    index: int
    session: Session
    prompted: Prompted
    ticket: Ticket


class Runner:
    """Answers for one pair in one event loop. name: the pair's in answers."""

    def __init__(
        self,
        name: str,
        pair: Pair,
        settings: Settings,
        metrics: Metrics,
        admission: Admission,
        threads: PromptThreads,
    ):
        self.name = name
        self.pair = pair
        self.settings = settings
        self.metrics = metrics
        self.admission = admission
        self.threads = threads

    @property
    def context(self) -> int:
        context_length = self.pair.engine.context_length
        return min(context_length, self.settings.context or context_length)

    async def prepare(self, request: AnswerRequest) -> list[PreparedChoice]:
        """Check a request, and queue its choices. Raises Problem 400, or 429 if too many wait."""
        if not 1 <= request.choices <= self.settings.limits.choices:
            raise Problem(
                400,
                f"n cannot be {request.choices}: give 1 to {self.settings.limits.choices}.",
                "n",
            )
        sessions = [
            Session(self.pair, mode=self.settings.options.mode) for _ in range(request.choices)
        ]
        prompted = await self._tokenize(sessions[0], request)
        prompt_tokens = len(prompted.request.prompt)
        max_tokens = prompted.request.token_limit
        context = min(self.context, request.context or self.context)
        if prompt_tokens >= context:
            raise too_long(str(prompt_tokens), context)
        max_tokens = min(max_tokens, context - prompt_tokens)
        nbytes = self.pair.engine.sequence_bytes(prompt_tokens + max_tokens)
        tickets = self.admission.enqueue(nbytes, request.choices)
        return [
            PreparedChoice(index, session, self._choice(prompted, index, max_tokens), ticket)
            for index, (session, ticket) in enumerate(zip(sessions, tickets, strict=True))
        ]

    async def count_tokens(self, request: AnswerRequest) -> int:
        """The tokens of a request's prompt. Raises Problem 400 as `prepare`."""
        session = Session(self.pair, mode=self.settings.options.mode)
        prompted = await self._tokenize(session, request)
        return len(prompted.request.prompt)

    async def _tokenize(self, session: Session, request: AnswerRequest) -> Prompted:
        try:
            return await self.threads.run(self._prompted, session, request)
        except PromptTooLong as error:
            raise too_long(f"about {error.tokens}", self.context) from error
        except DFlashError as error:
            raise problem_of(error, bad_request=True) from error

    def dflash_fields(
        self, request: AnswerRequest, answers: Sequence[Delta | Completion]
    ) -> dict[str, Any]:
        """The field `dflash` of every answer, by each choice or its last delta: how it was made.

        max_tokens: the limit that held. clipped_from: that of the request, if the context held
        fewer. incomplete: only if an answer was cut before it had its form.
        """
        stats = [answer.stats for answer in answers]
        more = {}
        asked = request.options.max_tokens
        if asked not in (None, NO_LIMIT) and asked > request.token_limit:
            more["clipped_from"] = asked
        cut = any(answer.finish_reason == "length" for answer in answers)
        if cut and request.options.grammar is not None:
            more["incomplete"] = CUT_FORM
        elif any(answer.ends_in_call for answer in answers):
            more["incomplete"] = CUT_CALL
        return {
            "mode": self.settings.options.mode,
            "draft": self.pair.draft_name,
            "exact": self.pair.target.kernels.exact,
            "acceptance_length": round(stats[0].acceptance_length, 3),
            "verifies": stats[0].verifies,
            "first_token_s": round(stats[0].first_token_seconds, 3),
            "seed": stats[0].seed,
            "max_tokens": request.token_limit,
            "ignored": list(request.ignored),
            **more,
        }

    def release(self, choices: list[PreparedChoice]) -> None:
        """Give back the places of choices that will not be answered."""
        for choice in choices:
            self.admission.leave(choice.ticket)

    async def answer(
        self, request: AnswerRequest, choices: list[PreparedChoice]
    ) -> AsyncGenerator[Event]:
        """All choices' deltas, and the first one's prefill. Closing the generator cancels all."""
        queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue(maxsize=64)
        prompt_is_processed = asyncio.Event()

        async def run(choice: PreparedChoice) -> None:
            try:
                if choice.index:  # the others use the first one's prefill
                    await prompt_is_processed.wait()
                async with aclosing(self._choice_events(request, choice)) as events:
                    async for event in events:
                        if isinstance(event, Delta):
                            prompt_is_processed.set()
                        await queue.put(event)
                await queue.put(None)
            except Exception as error:
                await queue.put(error)
            finally:
                prompt_is_processed.set()
                self.admission.leave(choice.ticket)

        tasks = [asyncio.create_task(run(choice)) for choice in choices]
        try:
            running = len(tasks)
            while running:
                event = await queue.get()
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    running -= 1
                else:
                    yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.release(choices)

    async def complete(
        self, request: AnswerRequest, choices: list[PreparedChoice]
    ) -> list[Completion]:
        completions = [Completion() for _ in choices]
        async with aclosing(self.answer(request, choices)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    completions[event.index].add(event)
        return completions

    async def _choice_events(
        self, request: AnswerRequest, choice: PreparedChoice
    ) -> AsyncGenerator[Event]:
        """One choice's progress and deltas, once it is admitted."""
        began = time.perf_counter()
        async with self.admission.turn(choice.ticket):
            try:
                reply = await uninterrupted(choice.session.begin, choice.prompted)
            except DFlashError as error:
                raise problem_of(error, bad_request=True) from error
            parser = None
            if request.parser_tools is not None:
                parser = make_tool_parser(self.pair.tokenizer, request.parser_tools)
            deltas = Deltas(
                choice.index,
                reply,
                parser,
                request.single_call,
                goes_on=choice.prompted.goes_on,
            )
            in_prefill = request.return_progress and not choice.index
            try:
                if in_prefill:
                    yield progress_of(reply, began)
                while not deltas.finish_reason:
                    block = reply.take(await asyncio.wrap_future(reply.ask()))
                    if in_prefill:
                        yield progress_of(reply, began)
                        in_prefill = block is None
                    if block is not None:
                        yield deltas.of(block)
            except DFlashError as error:
                raise problem_of(error, bad_request=False) from error
            finally:
                await uninterrupted(reply.close)
                self.metrics.count_answer(reply.stats, time.perf_counter() - began)

    def _prompted(self, session: Session, request: AnswerRequest) -> Prompted:
        """A request's prompt as tokens; runs in a thread for prompts."""
        options = request.options
        if options.max_tokens is None:
            options = replace(options, max_tokens=self.settings.max_tokens)
        prompted = session.prepare(request.prompt, options)
        return replace(prompted, split=not options.raw, requested=request.began)

    def _choice(self, prompted: Prompted, index: int, max_tokens: int) -> Prompted:
        """The engine's request of one choice; `index` is added to a given seed."""
        request = replace(prompted.request, max_tokens=max_tokens)
        return as_choice(replace(prompted, request=request), index)


class Deltas:
    """One choice's blocks as deltas, without line breaks before thinking and before text."""

    def __init__(
        self,
        index: int,
        reply: Reply,
        parser: ToolParser | None,
        single_call: bool,
        *,
        goes_on: bool = False,
    ):
        self._index = index
        self._reply = reply
        self._parser = parser
        self._single_call = single_call
        self._passes = 0
        self._has_text = goes_on
        self._has_thinking = False
        self.finish_reason: str | None = None

    def of(self, block: Block) -> Delta:
        self.finish_reason = block.finish_reason
        text = block.text
        calls: tuple[ToolCall, ...] = ()
        in_call = False
        if self._parser is not None:
            parsed = self._parser.feed(
                text,
                final=bool(block.finish_reason),
                cut=block.finish_reason == "length" or self._reply.stop is not None,
                stop=self._reply.stop,
            )
            text = parsed.text
            calls = parsed.calls
            in_call = self._parser.ends_in_call
            if block.finish_reason == "stop" and self._parser.calls_ended and not in_call:
                self.finish_reason = "calls"
            if self._single_call and self._parser.calls_ended:
                self.finish_reason = "calls"
                calls = calls[:1]
                text = text[: calls[0].after]
        thinking = block.thinking
        if not self._has_thinking:
            thinking = thinking.lstrip("\n")
        before_text = self._has_thinking or thinking or self._parser is not None
        if not self._has_text and before_text:
            cut = len(text) - len(text.lstrip("\n"))
            text = text[cut:]
            calls = tuple(replace(call, after=max(0, call.after - cut)) for call in calls)
        self._has_thinking = self._has_thinking or bool(thinking)
        self._has_text = self._has_text or bool(text)
        target_pass = Pass(self._passes, len(block.tokens), block.drafted, block.accepted)
        self._passes += 1
        return Delta(
            self._index,
            self._reply.stats,
            text,
            thinking,
            calls,
            block.logprobs,
            self.finish_reason,
            self._reply.stop,
            target_pass,
            in_call and self.finish_reason != "calls",
        )


def too_long(prompt_tokens: str, context: int) -> Problem:
    """The error whose wording and code make clients shorten the chat."""
    return Problem(
        400,
        f"prompt is too long: {prompt_tokens} tokens > {context - 1} maximum.",
        param="messages",
        code="context_length_exceeded",
    )


def progress_of(reply: Reply, began: float) -> Progress:
    """The progress of a reply's prefill, which began at the time `began`."""
    ms = 1e3 * (time.perf_counter() - began)
    return Progress(reply.prompt_read, reply.stats.prompt_tokens, reply.stats.cached_tokens, ms)
