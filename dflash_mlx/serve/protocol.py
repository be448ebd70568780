"""Fields that several APIs share, read and checked.

What changes an answer and cannot be had is refused by its name; what does not is let be.
"""

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NoReturn, Optional, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from dflash_mlx.chat.tool_parser import without_tools
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions, Option, SamplingParams, declared
from dflash_mlx.pair import Pair

# What a request is refused with.

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
    """A request that cannot be answered: the HTTP status, a sentence, and what it is about.

    param: the field of the request. code: OpenAI's word for it. retry_after: seconds.
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
        """OpenAI's and Anthropic's word for problems with this status."""
        return NAMES.get(self.status, "api_error")

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's head says of it."""
        found = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            found["WWW-Authenticate"] = "Bearer"
        return found

    def openai(self) -> dict[str, object]:
        """The error object of OpenAI's API."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic(self) -> dict[str, object]:
        """The error object of Anthropic's API."""
        return {"type": "error", "error": {"type": self.kind, "message": self.message}}


def of_error(error: DFlashError, *, asked: bool) -> Problem:
    """An error of the engine; `asked`: it came from what was asked, not from answering."""
    hint = f" ({error.hint})" if error.hint else ""
    status = 400 if asked or isinstance(error, UsageError) else 500
    return Problem(status, error.message.rstrip(".") + "." + hint)


def as_problem(error: Exception) -> Problem:
    """Any exception as a problem; one that nobody foresaw goes to the log with its traceback."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, DFlashError):
        return of_error(error, asked=False)
    logger.error("a request failed", exc_info=error)
    return Problem(500, "the server failed at this request: its log says where.")


# How a server answers, whom it lets in, and what it refuses as too much.

MIB = 1 << 20
MAX_TOKENS = 4096  # of an answer, where neither a request nor the server's settings say


@dataclass(frozen=True, slots=True)
class Limits:
    """Above these a request is refused, or its connection closed.

    body_bytes: of a request. body_seconds: in which a body has to come. write_seconds: in which a
    client has to take what it is sent. choices: the most that `n` may ask for. queue: requests that
    may wait for a place; more get 429.
    """

    body_bytes: int = 16 * MIB
    body_seconds: float = 30.0
    write_seconds: float = 60.0
    choices: int = 16
    queue: int = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """One server's settings.

    names: what requests may call the model, the first is what answers call it. context: the most
    tokens of prompt and answer; None is the target's own. options: what a request does not say;
    `max_tokens` None there is 4,096. keepalive: seconds without news after which a stream gets a
    sign of life.
    hosts: the names in a Host header that are let in; none given are all. origins: of pages.
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
        """The most tokens of an answer to a request that does not say."""
        return self.options.max_tokens or MAX_TOKENS


def number(value: Any) -> Any:
    """A value that is a number, and not true or false."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ValueError("must be a number")
    return value


Number = Annotated[float, BeforeValidator(number)]
Whole = Annotated[int, BeforeValidator(number)]


class Fields(BaseModel):
    """A request's body; fields that it does not name are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


# Ranges of OpenAI's API where they are not the engine's; -1 is vLLM's word for top_k 0.
API_RANGES = {
    "temperature": {"ge": 0, "le": 2},
    "top_k": {"ge": -1},
    "presence_penalty": {"ge": -2, "le": 2},
    "frequency_penalty": {"ge": -2, "le": 2},
    "seed": {},
}


def api_field(one: Option) -> Any:
    """A declared option as a field of a body; None is what the server's settings say."""
    limits = {"gt" if one.above else "ge": one.low, "le": one.high}
    limits = {name: limit for name, limit in limits.items() if not math.isinf(limit)}
    kind = Whole if one.type is int else Number
    limits = API_RANGES.get(one.name, limits)
    if limits:
        kind = Annotated[kind, Field(**limits)]
    return (Optional[kind], None)  # noqa: UP045, an annotated type takes no `|` for a type checker


SAMPLING = {one.name: api_field(one) for one in declared(SamplingParams)}


class SamplingFields(create_model("SamplingFields", __base__=Fields, **SAMPLING)):
    """How tokens are chosen: the fields of `SamplingParams`; None is what the settings say."""

    logit_bias: dict[str, Number] | None = None

    def options(self, defaults: GenerationOptions) -> GenerationOptions:
        """The server's options with what the body says of sampling.

        Problem 400 for what the engine does not take.
        """
        values = {name: getattr(self, name) for name in SAMPLING if getattr(self, name) is not None}
        if values.get("top_k") == -1:
            values["top_k"] = 0
        if "seed" in values:
            values["seed"] %= 2**64
        values["logit_bias"] = tuple((token_id(k), v) for k, v in (self.logit_bias or {}).items())
        try:
            return replace(defaults, sampling=replace(defaults.sampling, **values))
        except DFlashError as error:
            raise Problem(400, error.message) from error


def token_id(text: str) -> int:
    """A key of logit_bias."""
    if not text.isdecimal() or len(text) > 9:
        raise Problem(400, f"logit_bias has the key '{text:.20}': give token ids.", "logit_bias")
    return int(text)


def read_body(model: type[Any], body: Any) -> Any:
    """A body as a model's fields. Problem 400 names the first one that is wrong."""
    if not isinstance(body, dict):
        raise Problem(400, "the body is not a JSON object.")
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise Problem(400, f"{place}: {message}.", param=place or None) from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply.") from None


def read_json(raw: bytes) -> Any:
    """A body's JSON. Problem 400 for what is none."""
    try:
        found = json.loads(raw, parse_constant=refuse_constant)
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        raise Problem(400, "the body is not JSON in UTF-8.") from None
    return found


def refuse_constant(name: str) -> NoReturn:
    """NaN and Infinity are no JSON."""
    raise ValueError(name)


def check_model(name: str | None, settings: Settings) -> None:
    """Problem 404 for a model that is not served."""
    if name is not None and name not in settings.names:
        raise Problem(
            404,
            f"the model '{name:.100}' is not served here: this is '{settings.names[0]}'.",
            param="model",
            code="model_not_found",
        )


def check_tools(pair: Pair) -> None:
    """Problem 400 where the model cannot be told of tools, or its calls cannot be read."""
    if why := without_tools(pair.template, pair.tokenizer):
        raise Problem(400, f"this model {why}.", param="tools")


def refuse(fields: Fields, names: dict[str, str]) -> None:
    """Problem 400 for a field that is set, would change the answer, and cannot be had."""
    for name, why in names.items():
        if getattr(fields, name):
            raise Problem(400, f"{name} is not supported: {why}.", param=name)


# Answers that are one JSON object, problems in the shape of the API that was asked.

ANTHROPIC = "/v1/messages"


def problem_body(problem: Problem, path: str) -> dict[str, Any]:
    """A problem as the API of a path writes it."""
    return problem.anthropic() if path.startswith(ANTHROPIC) else problem.openai()


def problem_reply(problem: Problem, path: str) -> JSONResponse:
    """A problem as an answer."""
    body = problem_body(problem, path)
    return JSONResponse(body, status_code=problem.status, headers=problem.headers)


async def send_problem(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with a problem."""
    await problem_reply(problem, scope["path"])(scope, receive, send)


# Server-sent events

T = TypeVar("T")
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: Any, name: str | None = None) -> bytes:
    """One event; `data` is JSON, or a text as it is."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()


class EventStream(Response):
    """An answer of events; its source is closed at once when the client has gone.

    `alive` is sent after `every` seconds without news. `failed` writes a problem as an event.
    `ended` is called at the end, whatever it was.
    """

    def __init__(
        self,
        source: AsyncGenerator[bytes],
        *,
        alive: bytes,
        every: float,
        failed: Callable[[Problem], bytes],
        write_seconds: float,
        ended: Callable[[], None],
    ):
        self._source = source
        self._alive = alive
        self._every = every
        self._failed = failed
        self._write_seconds = write_seconds
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, until the source ends or the client goes."""
        sending = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            self._ended()

    async def _send_all(self, send: Send) -> None:
        async def write(body: bytes, more: bool = True) -> None:
            message = {"type": "http.response.body", "body": body, "more_body": more}
            # Not wait_for: before Python 3.12 it forgets a cancel that comes as the send ends.
            async with asyncio.timeout(self._write_seconds):
                await send(message)

        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        async with aclosing(self._source) as source:
            coming = asyncio.ensure_future(anext(source, None))
            try:
                while True:
                    done, _ = await asyncio.wait({coming}, timeout=self._every)
                    if not done:
                        await write(self._alive)
                        continue
                    try:
                        line = coming.result()
                    except Exception as error:  # the head is sent: it has to be an event
                        await write(self._failed(as_problem(error)))
                        break
                    if line is None:
                        break
                    await write(line)
                    coming = asyncio.ensure_future(anext(source, None))
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
        await write(b"", more=False)


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """What an awaitable gives; None, and the work cancelled, if the client goes before."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
