"""Answers jobs with one pair: checks them, lets them in, and turns rounds into deltas.

Each answer is a task of the event loop that waits for its rounds; the engine packs the rounds of
all. An answer that nobody waits for any more stops at the next round.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import mlx.core as mx
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dflash_mlx.chat.tool_parser import ToolReader, reader_of
from dflash_mlx.cpu.modules import on_cpu
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError
from dflash_mlx.models.memory import cache_bytes, snapshot_bytes, working_set
from dflash_mlx.pair import Pair
from dflash_mlx.session import Prompted, Reply, Session
from dflash_mlx.speculation.sampling import new_seed
from dflash_mlx.types import Block

from .job import Delta, Job, Progress, Whole
from .protocol import Problem, Settings, of_error

# Who is answered now and who waits


@dataclass(eq=False, slots=True)
class Ticket:
    """A place in the line for one answer that needs so many bytes."""

    need: int
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


class Admission:
    """At most `places` answers at once, in at most `room` bytes; first come, first served."""

    def __init__(self, places: int, room: int, queue: int):
        self.places, self.room, self._most_waiting = places, room, queue
        self._line: deque[Ticket] = deque()
        self._inside: set[Ticket] = set()

    @property
    def running(self) -> int:
        """Answers that are being found."""
        return len(self._inside)

    @property
    def waiting(self) -> int:
        """Answers that wait for a place."""
        return len(self._line)

    @property
    def used(self) -> int:
        """Bytes that are set aside for those inside."""
        return sum(ticket.need for ticket in self._inside)

    def line_up(self, needs: list[int]) -> list[Ticket]:
        """Places in the line for answers of one request, all or none.

        Problem 400 for one that can never fit, 429 where too many wait.
        """
        if most := max((need for need in needs if need > self.room), default=0):
            raise Problem(
                400,
                f"prompt is too long: its answer would need {most / 1e9:.2f} GB of memory, and "
                f"{self.room / 1e9:.2f} GB are free beside the model. (Shorten it, or ask for "
                "fewer max_tokens.)",
                code="context_length_exceeded",
            )
        free = self.places - self.running
        if self.waiting + len(needs) > self._most_waiting + free:
            raise Problem(
                429,
                f"too many requests: {self.running} are answered and {self.waiting} wait.",
                code="rate_limit_exceeded",
                retry_after=1 + self.waiting // max(self.places, 1),
            )
        tickets = [Ticket(need) for need in needs]
        self._line.extend(tickets)
        self._advance()
        return tickets

    def leave(self, ticket: Ticket) -> None:
        """Give a place back, in the line or inside."""
        if ticket in self._inside:
            self._inside.remove(ticket)
        elif ticket in self._line:
            self._line.remove(ticket)
        self._advance()

    @asynccontextmanager
    async def inside(self, ticket: Ticket) -> AsyncIterator[None]:
        """Wait for a ticket's turn, and give its place back afterwards."""
        try:
            await ticket.admitted.wait()
            yield
        finally:
            self.leave(ticket)

    def _advance(self) -> None:
        """Let in whose turn it is; a large one is not overtaken for ever."""
        while self._line and self.running < self.places:
            first = self._line[0]
            if self.used + first.need > self.room and self._inside:
                return
            self._inside.add(self._line.popleft())
            first.admitted.set()


# What `/metrics` shows, in the text format of Prometheus.

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32)


class Metrics:
    """The counts of one server."""

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
            "dflash_acceptance_length", "Tokens committed a verify, bonus included.",
            buckets=LENGTHS, registry=registry,
        )  # fmt: skip
        self._first = Histogram(
            "dflash_time_to_first_token_seconds", "From a place in the engine to the first token.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._whole = Histogram(
            "dflash_answer_seconds", "From the line to the last token.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip

    def watch(self, pair: Pair, admission: Admission) -> None:
        """Show the numbers of an engine and its line, read when somebody asks."""
        engine = pair.engine
        for name, text, read in (
            ("running", "Answers being found.", lambda: admission.running),
            ("waiting", "Answers waiting for a place.", lambda: admission.waiting),
            ("reserved_bytes", "Memory set aside for running answers.", lambda: admission.used),
            ("room_bytes", "Memory that answers may take.", lambda: admission.room),
            ("active_memory_bytes", "Memory MLX uses.", mx.get_active_memory),
            ("peak_memory_bytes", "The most it has used.", mx.get_peak_memory),
            ("passes", "Target passes so far.", lambda: engine.passes),
            ("pass_rows", "Rows of all target passes so far.", lambda: engine.rows),
        ):
            Gauge(f"dflash_{name}", text, registry=self._registry).set_function(read)

    def request(self, path: str, status: int) -> None:
        """Count a request that was answered or refused."""
        self._requests.labels(path, str(status)).inc()

    def answered(self, stats: Stats, seconds: float) -> None:
        """Count an answer, also one that was broken off."""
        self._prompt.inc(stats.prompt_tokens)
        self._cached.inc(stats.cached_tokens)
        self._generated.inc(stats.generated)
        self._drafted.inc(stats.drafted)
        self._accepted.inc(stats.accepted)
        for length in stats.committed:
            self._lengths.observe(length)
        if stats.generated:
            self._first.observe(stats.prefill_seconds)
        self._whole.observe(seconds)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)


MARGIN = 0.9  # of the memory beside the model; the rest is for activations
Event = Delta | Progress
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """One choice of a job that was checked, with its place in the line."""

    choice: int
    session: Session
    prompted: Prompted
    ticket: Ticket


class Runner:
    """Answers for one pair in one event loop."""

    def __init__(self, pair: Pair, settings: Settings, metrics: Metrics):
        self.pair, self.settings, self.metrics = pair, settings, metrics
        most = pair.target.context_length
        self.context = min(most, settings.context or most)
        free = int(MARGIN * (working_set() - mx.get_active_memory()))
        room = max(0, free - (pair.engine.prefixes.limit or 0))
        self.admission = Admission(settings.max_sequences, room, settings.limits.queue)
        metrics.watch(pair, self.admission)

    def need(self, tokens: int) -> int:
        """Bytes of the caches of a sequence of so many tokens."""
        item = 4 if on_cpu() else 2
        config = self.pair.target.config
        found = cache_bytes(config, tokens, item) + snapshot_bytes(config, item)
        if self.pair.drafter is not None:
            found += tokens * self.pair.drafter.row_bytes(item)
        return found

    async def prepare(self, job: Job) -> list[Prepared]:
        """Check a job and line its choices up. Problem 400 for what cannot be, 429 in a crowd."""
        if not 1 <= job.choices <= self.settings.limits.choices:
            raise Problem(
                400, f"n cannot be {job.choices}: give 1 to {self.settings.limits.choices}.", "n"
            )
        sessions = [Session(self.pair, mode=self.settings.options.mode) for _ in range(job.choices)]
        prompted = await self._read(sessions[0], job)
        count, asked = len(prompted.request.prompt), prompted.request.token_limit
        if count >= self.context:
            raise Problem(
                400,
                f"prompt is too long: {count} tokens > {self.context - 1} maximum.",
                param="messages",
                code="context_length_exceeded",
            )
        if job.options.max_tokens is not None and not job.clip and count + asked > self.context:
            raise Problem(
                400,
                f"prompt and max_tokens are too long: {count:,} + {asked:,} tokens > "
                f"{self.context:,} of the context.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        most = min(asked, self.context - count)
        tickets = self.admission.line_up([self.need(count + most)] * job.choices)
        return [
            Prepared(number, session, self._choice(prompted, number, most), ticket)
            for number, (session, ticket) in enumerate(zip(sessions, tickets, strict=True))
        ]

    async def count_tokens(self, job: Job) -> int:
        """How many tokens a job's prompt has. Problem 400 as `prepare`."""
        prompted = await self._read(Session(self.pair, mode=self.settings.options.mode), job)
        return len(prompted.request.prompt)

    async def _read(self, session: Session, job: Job) -> Prompted:
        """A job's prompt as tokens."""
        try:
            return await asyncio.to_thread(self._prompted, session, job)
        except DFlashError as error:
            raise of_error(error, asked=True) from error

    def release(self, choices: list[Prepared]) -> None:
        """Give back the places of choices that will not be answered."""
        for one in choices:
            self.admission.leave(one.ticket)

    async def answer(self, job: Job, choices: list[Prepared]) -> AsyncGenerator[Event]:
        """Deltas of all choices as they come, and progress of the first one's prompt."""
        queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue(maxsize=64)
        first = asyncio.Event()

        async def run(one: Prepared) -> None:
            try:
                if one.choice:
                    await first.wait()  # the first reads the prompt
                async with aclosing(self._choice_events(job, one)) as events:
                    async for event in events:
                        if isinstance(event, Delta):
                            first.set()
                        await queue.put(event)
                await queue.put(None)
            except Exception as error:
                await queue.put(error)
            finally:
                first.set()
                self.admission.leave(one.ticket)

        tasks = [asyncio.create_task(run(one)) for one in choices]
        try:
            left = len(tasks)
            while left:
                event = await queue.get()
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    left -= 1
                else:
                    yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.release(choices)

    async def whole(self, job: Job, choices: list[Prepared]) -> list[Whole]:
        """The choices' whole answers."""
        found = [Whole() for _ in choices]
        async with aclosing(self.answer(job, choices)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    found[event.choice].add(event)
        return found

    async def _choice_events(self, job: Job, one: Prepared) -> AsyncGenerator[Event]:
        """Wait for a place, then one choice's progress and deltas."""
        began = time.perf_counter()
        async with self.admission.inside(one.ticket):
            try:
                reply = await uninterrupted(one.session.begin, one.prompted)
            except DFlashError as error:
                raise of_error(error, asked=True) from error
            tokenizer, calls = self.pair.tokenizer, job.calls
            reader = None if calls is None else reader_of(tokenizer, calls)
            deltas = Deltas(one.choice, reply, reader, job.one_call)
            reading = job.progress and not one.choice
            try:
                if reading:
                    yield progress_of(reply, began)
                while not deltas.finish_reason:
                    read = reply.take(await asyncio.wrap_future(reply.ask()))
                    if reading:
                        yield progress_of(reply, began)
                        reading = read is None
                    if read is not None:
                        yield deltas.of(read)
            except DFlashError as error:
                raise of_error(error, asked=False) from error
            finally:
                await uninterrupted(reply.close)
                self.metrics.answered(reply.stats, time.perf_counter() - began)

    def describe(self, stats: Sequence[Stats]) -> dict[str, Any]:
        """How an answer was found, which every answer tells."""
        return {
            "mode": self.settings.options.mode,
            "draft": self.pair.draft_name,
            "exact": self.pair.target.kernels.exact,
            "acceptance_length": round(stats[0].acceptance_length, 3),
            "verifies": stats[0].verifies,
            "seed": stats[0].seed,
        }

    def _prompted(self, session: Session, job: Job) -> Prompted:
        """A job's prompt as tokens. Runs in a thread of its own."""
        options = job.options
        if options.max_tokens is None:
            options = replace(options, max_tokens=self.settings.max_tokens)
        return replace(session.prepare(job.prompt, options), split=not options.raw)

    def _choice(self, prompted: Prompted, number: int, most: int) -> Prompted:
        """A choice's own request: the seeds of several follow one another."""
        request = replace(prompted.request, max_tokens=most)
        if not request.sampling.greedy:
            seed = request.sampling.seed
            seed = new_seed() if seed is None else (seed + number) % 2**64
            request = replace(request, sampling=replace(request.sampling, seed=seed))
        return replace(prompted, request=request)


class Deltas:
    """One choice's blocks as deltas; empty lines before thinking and before text are dropped."""

    def __init__(self, choice: int, reply: Reply, reader: ToolReader | None, one_call: bool):
        self._choice, self._reply, self._reader = choice, reply, reader
        self._one_call = one_call
        self._spoken = self._thought = False
        self.finish_reason: str | None = None

    def of(self, block: Block) -> Delta:
        """What a block adds."""
        self.finish_reason = block.finish_reason
        text, parts = block.text, ()
        if self._reader is not None:
            said = self._reader.read(text, final=bool(block.finish_reason))
            text, parts = said.text, said.parts
            if block.finish_reason == "stop" and self._reader.calls:
                self.finish_reason = "calls"
            if self._one_call and self._reader.closed:
                self.finish_reason = "calls"
                parts = tuple(part for part in parts if not part.number)
                text = text[: parts[-1].after if parts else 0]
        thinking = block.thinking
        if not self._thought:
            thinking = thinking.lstrip("\n")
        if not self._spoken and (self._thought or thinking or self._reader is not None):
            cut = len(text) - len(text.lstrip("\n"))
            text = text[cut:]
            parts = tuple(replace(part, after=max(0, part.after - cut)) for part in parts)
        self._thought, self._spoken = self._thought or bool(thinking), self._spoken or bool(text)
        return Delta(
            self._choice,
            self._reply.stats,
            text,
            thinking,
            parts,
            block.logprobs,
            self.finish_reason,
            self._reply.stop,
        )


def progress_of(reply: Reply, began: float) -> Progress:
    """How far a reply's prompt is read, of what was begun at `began`."""
    spent = 1e3 * (time.perf_counter() - began)
    return Progress(reply.prompt_read, reply.stats.prompt_tokens, reply.stats.cached_tokens, spent)


async def uninterrupted(function: Callable[..., T], *arguments: Any) -> T:
    """What a function gives that waits for the MLX thread; a cancelled task waits for it too."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await task
        raise
