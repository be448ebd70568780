"""The access log: a line for each request."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dflash_mlx.engine.stats import Stats
from dflash_mlx.session import Session

from .answer_request import AnswerRequest, Progress
from .protocol import STOPPED, Problem, send_problem

MAX_REASON = 200  # characters of an error
MIN_READ = 512  # tokens read anew; less is not worth a reason
NEAR = 8  # tokens shown before and after the place where a prompt differs
NOT_SENT = 499  # the client disconnected before the response


@dataclass(slots=True)
class AccessRecord:
    """Status 503: also an answer that Ctrl-C cut. problem: the error sent to the client."""

    method: str
    path: str
    status: int = NOT_SENT
    began: float = field(default_factory=time.perf_counter)
    answer_request: AnswerRequest | None = None
    sessions: list[Session] = field(default_factory=list)
    problem: Problem | None = None

    @property
    def reading(self) -> Progress | None:
        """How far the prompt is read now; None before its first pass and after its last one."""
        session = self.sessions[0] if self.sessions else None
        if session is None or session.stats.generated or not session.stats.prompt_tokens:
            return None
        stats = session.stats
        ms = 1e3 * (time.perf_counter() - self.began)
        return Progress(session.prompt_read, stats.prompt_tokens, stats.cached_tokens, ms)

    @property
    def comment(self) -> str:
        """What the client waits for: the prompt, or the end of a tool call."""
        if (reading := self.reading) is not None:
            return f"read {reading.processed} of {reading.total} prompt tokens"
        written = sum(session.stats.generated for session in self.sessions)
        return f"wrote {written} tokens" if written else "waiting"

    @property
    def reason(self) -> str:
        """The error on one line, shortened; empty without an error."""
        line = " ".join(self.problem.message.split()) if self.problem else ""
        return line if len(line) <= MAX_REASON else line[: MAX_REASON - 1] + "…"


def for_log(problem: Problem, scope: Scope) -> Problem:
    """Record a problem for the access log, and return it."""
    scope["state"]["access_record"].problem = problem
    return problem


@dataclass(frozen=True, slots=True)
class AccessLog:
    """Passes a line per request to `write`: as text, or as JSON. `prompts`: with prompts.

    progress_seconds: between two lines that say how far a prompt is read.
    """

    write: Callable[[str], None] = lambda line: None
    as_json: bool = False
    prompts: bool = False
    progress_seconds: float = 10.0

    def write_unknown(self, field: str, path: str) -> None:
        note = f"requests to {path} have the field '{field}', which no API has: it is ignored"
        fields = {"path": path, "unknown_field": field}
        self.write(json_line(fields) if self.as_json else note)

    def write_model(self, name: str, event: str, seconds: float) -> None:
        line = f"{event} {name} in {seconds:.1f} s"
        fields = {"model": name, "event": event, "seconds": round(seconds, 3)}
        self.write(json_line(fields) if self.as_json else line)

    def write_progress(self, record: AccessRecord) -> None:
        reading = record.reading
        if reading is None:
            return
        seconds = reading.ms / 1e3
        line = (
            f"{record.method} {record.path} has read {reading.processed} of {reading.total} "
            f"prompt tokens after {seconds:.0f} s"
        )
        fields = {
            "method": record.method,
            "path": record.path,
            "event": "reading",
            "seconds": round(seconds, 3),
            "prompt": reading.total,
            "cached": reading.cached,
            "read": reading.processed,
        }
        self.write(json_line(fields) if self.as_json else line)

    def write_record(self, record: AccessRecord) -> None:
        seconds = time.perf_counter() - record.began
        notes = [note for session in record.sessions for note in session.stats.notes]
        fields: dict[str, object] = {
            "method": record.method,
            "path": record.path,
            "status": record.status,
            "seconds": round(seconds, 3),
        }
        if record.sessions:
            stats = [session.stats for session in record.sessions]
            fields |= {
                "prompt": stats[0].prompt_tokens,
                "cached": stats[0].cached_tokens,
                **why_read(stats[0]),
                "generated": sum(choice.generated for choice in stats),
                "first_token_s": round(stats[0].first_token_seconds, 3),
                "tokens_per_second": round(stats[0].tokens_per_second, 1),
                "acceptance_length": round(stats[0].acceptance_length, 2),
            }
        if notes:
            fields["notes"] = notes
        if record.reason:
            fields["error"] = record.reason
        if self.prompts and record.answer_request is not None:
            fields["prompt_text"] = record.answer_request.prompt
            if "differs_at" in fields:
                fields["differs_near"] = text_near(record.sessions[0])
        if self.as_json:
            self.write(json_line(fields))
            return
        line = f"{record.status} {record.method} {record.path} {seconds:.2f} s"
        if record.sessions:
            line += (
                f", {fields['prompt']} + {fields['generated']} tokens, "
                f"{fields['tokens_per_second']} tok/s, τ {fields['acceptance_length']}"
            )
            if fields["generated"]:
                line += f", first token after {fields['first_token_s']:.2f} s"
            if fields["cached"]:
                line += f", {fields['cached']} cached"
            if "differs_at" in fields:
                line += f", unlike earlier prompts from token {fields['differs_at']} on"
            if "lost" in fields:
                line += f", {fields['lost']} read again that the cache could not give"
        for sentence in (*notes, record.reason):
            line += f": {sentence}" if sentence else ""
        if "differs_near" in fields:
            line += f"  differs near {json.dumps(fields['differs_near'], ensure_ascii=False)}"
        if "prompt_text" in fields:
            line += f"  {json.dumps(fields['prompt_text'], ensure_ascii=False)}"
        self.write(line)


def json_line(fields: Mapping[str, object]) -> str:
    return json.dumps({"time": round(time.time(), 3), **fields}, ensure_ascii=False)


def why_read(stats: Stats) -> dict[str, int]:
    """Why much of a prompt was read anew; empty if little was, or if it is all new."""
    why: dict[str, int] = {}
    if stats.prompt_tokens - stats.cached_tokens < MIN_READ:
        return why
    if stats.differs_at is not None:
        why["differs_at"] = stats.differs_at
    if stats.lost_tokens >= MIN_READ:
        why["lost"] = stats.lost_tokens
    return why


def text_near(session: Session) -> str:
    """The text around the place where an answered prompt differs from earlier ones."""
    place = session.stats.differs_at or 0
    return session.pair.tokenizer.decode(
        session.sequence.tokens[max(0, place - NEAR) : place + NEAR]
    )


class AccessMiddleware:
    """The outermost layer. count: called with each request's path and status after its response."""

    def __init__(self, app: ASGIApp, log: AccessLog, count: Callable[[str, int], None]):
        self._app = app
        self._log = log
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = AccessRecord(scope["method"], scope["path"])
        scope.setdefault("state", {})["access_record"] = record
        progress = asyncio.create_task(self._log_progress(record))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            record.problem = STOPPED
            if record.status == NOT_SENT:
                await send_problem(record.problem, scope, receive, send)
            raise
        finally:
            progress.cancel()
            if record.problem is STOPPED:
                record.status = STOPPED.status
            self._count(record.path, record.status)
            self._log.write_record(record)

    async def _log_progress(self, record: AccessRecord) -> None:
        """Write regularly how far a long prompt is read, until the task is cancelled."""
        while True:
            await asyncio.sleep(self._log.progress_seconds)
            self._log.write_progress(record)
