"""What all APIs share: errors, settings, and server-sent events."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from dflash_mlx.chat.tool_parser import without_tools
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions
from dflash_mlx.pair import Pair

# Errors

logger = logging.getLogger("dflash.serve")
INVALID = "invalid_request_error"
NAMES = {
    400: INVALID,
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: INVALID,
    408: "timeout_error",
    413: "request_too_large",
    415: INVALID,
    429: "rate_limit_error",
    503: "overloaded_error",
}


@dataclass(eq=False)
class Problem(Exception):
    """A request that cannot be answered: the HTTP status and a sentence.

    param: the field of the body. code: OpenAI's error code. retry_after: seconds.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def kind(self) -> str:
        """The error type of OpenAI's and Anthropic's APIs for this status."""
        return NAMES.get(self.status, "api_error")

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    def openai(self) -> dict[str, object]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic(self) -> dict[str, object]:
        """The error object of Anthropic's API.

        Its SDK's tool runner asks for a thread first. With these details it goes on without one.
        """
        error: dict[str, object] = {"type": self.kind, "message": self.message}
        if self.param == "thread":
            error["details"] = {
                "error_code": "thread_unsupported_request",
                "unsupported": ["thread"],
            }
        return {"type": "error", "error": error}

    def ollama(self) -> dict[str, object]:
        return {"error": self.message}


STOPPED = Problem(503, "the server was stopped.")


def problem_of(error: DFlashError, *, bad_request: bool) -> Problem:
    """An error of the engine; `bad_request`: the request caused it."""
    hint = f" ({error.hint})" if error.hint else ""
    status = 400 if bad_request or isinstance(error, UsageError) else 500
    return Problem(status, error.message.rstrip(".") + "." + hint)


def as_problem(error: Exception) -> Problem:
    """Any exception as a problem. Unexpected ones are logged with their traceback."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, DFlashError):
        return problem_of(error, bad_request=False)
    logger.error("a request failed", exc_info=error)
    return Problem(500, "the server failed at this request: its log says where.")


# Settings of a server

MIB = 1 << 20
MAX_TOKENS = 4096  # of an answer by default


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests beyond these limits are refused, or their connection is closed.

    body_bytes: of a body. body_seconds: to receive a body. write_seconds: for a client to
    receive an event. choices: the largest `n`. queue: answers that may wait; more get status 429.
    """

    body_bytes: int = 16 * MIB
    body_seconds: float = 30.0
    write_seconds: float = 60.0
    choices: int = 16
    queue: int = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server.

    names: of the model in requests; answers have the first. options: defaults for fields that a
    request leaves out; its `max_tokens` of None is 4,096. context: the limit for prompt and answer
    in tokens; None is the target's. keepalive: seconds without an event after which a stream sends
    a ping. hosts: allowed names in the Host header; empty allows all. origins: of web pages that
    may use the server.
    """

    names: tuple[str, ...]
    options: GenerationOptions = field(default_factory=lambda: GenerationOptions(mode="auto"))
    max_sequences: int = 16
    context: int | None = None
    keepalive: float = 5.0
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def max_tokens(self) -> int:
        """The limit for requests without one."""
        return self.options.max_tokens or MAX_TOKENS


LATEST = ":latest"


def find_model(name: str, names: Sequence[str]) -> str | None:
    """The one of some model names that this is, or an end of: "b/c" and "c" are ends of "a/b/c".

    Ollama's tag "latest" counts as no tag. None if there is no such name, or several.
    """
    if name in names:
        return name
    name = name.removesuffix(LATEST)
    if name in names:
        return name
    found = {one for one in names if name and one.endswith("/" + name)}
    return found.pop() if len(found) == 1 else None


def check_tools(pair: Pair) -> None:
    """Raise Problem 400 if the model cannot call tools."""
    if why := without_tools(pair.template, pair.tokenizer):
        message = f"this model {why}. (Leave tools out, or serve a model that calls tools.)"
        raise Problem(400, message, param="tools")


# Errors in the form of each API

ANTHROPIC = "/v1/messages"
OLLAMA = "/api/"


def problem_body(problem: Problem, path: str) -> dict[str, Any]:
    if path.startswith(ANTHROPIC):
        return problem.anthropic()
    return problem.ollama() if path.startswith(OLLAMA) else problem.openai()


def problem_reply(problem: Problem, path: str) -> JSONResponse:
    body = problem_body(problem, path)
    return JSONResponse(body, status_code=problem.status, headers=problem.headers)


async def send_problem(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    await problem_reply(problem, scope["path"])(scope, receive, send)


class StopSignal:
    """Tells running answers, in whatever event loop, that the server stops."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)

    def set(self) -> None:
        """Wake all that wait; call it in their event loop."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)


# Streams: server-sent events, and lines of JSON

T = TypeVar("T")
EVENTS = "text/event-stream; charset=utf-8"
JSON_LINES = "application/x-ndjson"
HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def sse_event(data: Any, name: str | None = None) -> bytes:
    """An event; `data` is a value for JSON, or a text as it is."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()


def json_line(data: Any) -> bytes:
    """A line of JSON, which is an event of a stream of lines."""
    return json.dumps(data, ensure_ascii=False).encode() + b"\n"


class EventStream(Response):
    """A response of events. Its source is closed as soon as the client disconnects.

    stopping: ends the stream with the error STOPPED. ping: makes what is sent after `ping_seconds`
    without an event. write_problem: makes an event of an error.
    on_end: called at the end, also after errors.
    """

    def __init__(
        self,
        source: AsyncGenerator[bytes],
        *,
        kind: str,
        stopping: StopSignal,
        ping: Callable[[], bytes],
        ping_seconds: float,
        write_problem: Callable[[Problem], bytes],
        write_seconds: float,
        on_end: Callable[[], None],
    ):
        self._source = source
        self._headers = [(b"content-type", kind.encode()), *HEADERS]
        self._stopping = stopping
        self._ping = ping
        self._ping_seconds = ping_seconds
        self._write_problem = write_problem
        self._write_seconds = write_seconds
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send))
        disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, disconnect):
                task.cancel()
            await asyncio.gather(sending, disconnect, return_exceptions=True)
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        async def write(body: bytes, more: bool = True) -> None:
            message = {"type": "http.response.body", "body": body, "more_body": more}
            # Before Python 3.12, wait_for can lose a cancellation that comes as the send ends.
            async with asyncio.timeout(self._write_seconds):
                await send(message)

        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        stopping = asyncio.ensure_future(self._stopping.wait())
        async with aclosing(self._source) as source:
            next_event = asyncio.ensure_future(anext(source, None))
            try:
                while True:
                    done, _ = await asyncio.wait(
                        {next_event, stopping},
                        timeout=self._ping_seconds,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    if stopping in done and next_event not in done:
                        # Before the round ends, which closing the source waits for.
                        await write(self._write_problem(STOPPED), more=False)
                        return
                    if not done:
                        await write(self._ping())
                        continue
                    try:
                        event = next_event.result()
                    except Exception as error:  # the status is sent: the error must be an event
                        await write(self._write_problem(as_problem(error)))
                        break
                    if event is None:
                        break
                    await write(event)
                    next_event = asyncio.ensure_future(anext(source, None))
            finally:
                for task in (next_event, stopping):
                    task.cancel()
                await asyncio.gather(next_event, stopping, return_exceptions=True)
        await write(b"", more=False)


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(
    receive: Receive, work: Coroutine[Any, Any, T], stopping: StopSignal
) -> T | None:
    """The result; None, with the work cancelled, if the client disconnects. Raises STOPPED."""
    working = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
    stop = asyncio.ensure_future(stopping.wait())
    tasks = (working, disconnect, stop)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if stop.done():
            raise STOPPED
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
