"""The access log: a line for each request."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dflash_mlx.engine.stats import Stats
from dflash_mlx.session import Session

from .answer_request import AnswerRequest, Progress
from .protocol import STOPPED, Problem, problem_reply

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
        return Progress.of(session, self.began)

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

    def write_ignored(self, field: str, path: str) -> None:
        line = f"requests to {path} have the field '{field}', which has no effect"
        self._write(line, {"path": path, "ignored_field": field})

    def write_model(self, name: str, event: str, seconds: float) -> None:
        fields = {"model": name, "event": event, "seconds": round(seconds, 3)}
        self._write(f"{event} {name} in {seconds:.1f} s", fields)

    def write_progress(self, record: AccessRecord) -> None:
        reading = record.reading
        if reading is None:
            return
        who = f"{record.method} {record.path}"
        read = f"{reading.processed} of {reading.total} prompt tokens"
        fields = {
            "method": record.method,
            "path": record.path,
            "event": "reading",
            "seconds": round(reading.ms / 1e3, 3),
            "prompt": reading.total,
            "cached": reading.cached,
            "read": reading.processed,
        }
        self._write(f"{who} has read {read} after {reading.ms / 1e3:.0f} s", fields)

    def write_record(self, record: AccessRecord) -> None:
        seconds = time.perf_counter() - record.began
        line = f"{record.status} {record.method} {record.path} {seconds:.2f} s"
        fields: dict[str, Any] = {
            "method": record.method,
            "path": record.path,
            "status": record.status,
            "seconds": round(seconds, 3),
        }
        if record.sessions:
            numbers = answer_fields([session.stats for session in record.sessions])
            line += answer_text(numbers)
            fields |= numbers
        notes = [note for session in record.sessions for note in session.stats.notes]
        if notes:
            fields["notes"] = notes
        if record.reason:
            fields["error"] = record.reason
        line += "".join(f": {sentence}" for sentence in (*notes, record.reason) if sentence)
        if self.prompts and record.answer_request is not None:
            if "differs_at" in fields:
                tokens = record.sessions[0].sequence.tokens
                start = max(0, fields["differs_at"] - NEAR)
                decode = record.sessions[0].pair.tokenizer.decode
                fields["differs_near"] = near = decode(tokens[start : fields["differs_at"] + NEAR])
                line += f"  differs near {json.dumps(near, ensure_ascii=False)}"
            fields["prompt_text"] = prompt = record.answer_request.prompt
            line += f"  {json.dumps(prompt, ensure_ascii=False)}"
        self._write(line, fields)

    def _write(self, line: str, fields: Mapping[str, object]) -> None:
        if self.as_json:
            fields = {"time": round(time.time(), 3), **fields}
            line = json.dumps(fields, ensure_ascii=False)
        self.write(line)


def answer_fields(stats: Sequence[Stats]) -> dict[str, Any]:
    """The numbers of an answer, and why much of its prompt was read anew, if it was."""
    first = stats[0]
    fields: dict[str, Any] = {"prompt": first.prompt_tokens, "cached": first.cached_tokens}
    if first.prompt_tokens - first.cached_tokens >= MIN_READ:
        if first.differs_at is not None:
            fields["differs_at"] = first.differs_at
        if first.lost_tokens >= MIN_READ:
            fields["lost"] = first.lost_tokens
    return fields | {
        "generated": sum(choice.generated for choice in stats),
        "first_token_s": round(first.first_token_seconds, 3),
        "tokens_per_second": round(first.tokens_per_second, 1),
        "acceptance_length": round(first.acceptance_length, 2),
    }


def answer_text(fields: Mapping[str, Any]) -> str:
    text = (
        f", {fields['prompt']} + {fields['generated']} tokens, "
        f"{fields['tokens_per_second']} tok/s, τ {fields['acceptance_length']}"
    )
    if fields["generated"]:
        text += f", first token after {fields['first_token_s']:.2f} s"
    if fields["cached"]:
        text += f", {fields['cached']} cached"
    if "differs_at" in fields:
        text += f", unlike earlier prompts from token {fields['differs_at']} on"
    if "lost" in fields:
        text += f", {fields['lost']} read again that the cache could not give"
    return text


@dataclass(frozen=True, slots=True)
class AccessMiddleware:
    """The outermost layer. count: called with each request's path and status after its response."""

    app: ASGIApp
    log: AccessLog
    count: Callable[[str, int], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = AccessRecord(scope["method"], scope["path"])
        scope.setdefault("state", {})["access_record"] = record
        progress = asyncio.create_task(self._log_progress(record))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except asyncio.CancelledError:
            record.problem = STOPPED
            if record.status == NOT_SENT:
                await problem_reply(STOPPED, record.path)(scope, receive, send)
            raise
        finally:
            progress.cancel()
            if record.problem is STOPPED:
                record.status = STOPPED.status
            self.count(record.path, record.status)
            self.log.write_record(record)
            record.sessions = []  # an open connection keeps its last request, not the model

    async def _log_progress(self, record: AccessRecord) -> None:
        while True:
            await asyncio.sleep(self.log.progress_seconds)
            self.log.write_progress(record)
