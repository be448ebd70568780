"""The server's endpoints: from HTTP to a request for answers, and back."""

import asyncio
import hmac
import ipaddress
import json
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dflash_mlx import __version__
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session

from . import anthropic_messages, openai_chat, openai_completions, openai_responses
from .answer_request import AnswerRequest
from .models import KEEP_ALIVE, Models, Offer, Served
from .protocol import (
    ANTHROPIC,
    EventStream,
    Problem,
    Settings,
    as_problem,
    problem_body,
    problem_reply,
    read_body,
    read_json,
    send_problem,
    sse_event,
    unless_disconnected,
)
from .runner import Metrics, PreparedChoice, Runner

# Checks before an endpoint sees a request

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
OPEN_PATHS = ("/health",)


class Guard:
    """Checks host, origin, API key, and the body's type and size; refuses other requests."""

    def __init__(self, app: ASGIApp, settings: Settings):
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the headers, read the body within the limits, and pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
            body = await self._body(headers, receive)
        except Problem as problem:
            await send_problem(for_log(problem, scope), scope, receive, send)
            return
        except ConnectionError:  # the client has disconnected
            return
        await self._app(scope, replay(body, receive), send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        settings = self._settings
        host = headers.get("host", "")
        if settings.hosts and host_name(host) not in settings.hosts:
            raise Problem(
                403,
                f"the host '{host:.100}' is not one of this server's (--allow-host adds one).",
            )
        origin = headers.get("origin")
        same_origin = {f"http://{host}", f"https://{host}"}
        if origin is not None and origin not in same_origin and not self._allows(origin):
            raise Problem(
                403, f"pages of '{origin:.100}' may not use this server (--cors allows them)."
            )
        if scope["method"] == "OPTIONS" or scope["path"] in OPEN_PATHS:
            return
        if settings.api_key is not None and not self._has_key(headers):
            raise Problem(401, "the API key is missing or wrong.", code="invalid_api_key")
        if scope["method"] == "POST" and not is_json(headers.get("content-type", "")):
            raise Problem(415, "the body must be JSON, with the Content-Type application/json.")

    def _allows(self, origin: str) -> bool:
        return "*" in self._settings.origins or origin in self._settings.origins

    def _has_key(self, headers: Headers) -> bool:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        key = bearer.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        # Starlette decodes headers as Latin-1.
        return hmac.compare_digest(key.encode("latin-1"), (self._settings.api_key or "").encode())

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """Raises Problem 413 for a body that is too large, 408 for one that is too slow."""
        limits = self._settings.limits
        too_large = Problem(413, f"the body is larger than {limits.body_bytes >> 20} MiB.")
        size = headers.get("content-length", "0")
        if not size.isdecimal() or len(size) > 18 or int(size) > limits.body_bytes:
            raise too_large

        async def read() -> bytes:
            body = bytearray()
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError
                body += message.get("body", b"")
                if len(body) > limits.body_bytes:
                    raise too_large
                if not message.get("more_body"):
                    return bytes(body)

        try:
            return await asyncio.wait_for(read(), limits.body_seconds)
        except TimeoutError:
            raise Problem(
                408, f"the body did not come within {limits.body_seconds:g} seconds."
            ) from None


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns a body that was read already, and then what follows it."""
    is_replayed = False

    async def replayed() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def host_name(host: str) -> str:
    """A Host header without its port."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return name.lower().rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_json(kind: str) -> bool:
    """Whether a Content-Type means JSON."""
    name = kind.partition(";")[0].strip().lower()
    return name == "application/json" or name.endswith("+json")


# The access log

MAX_REASON = 200  # characters of an error
NOT_SENT = 499  # the client disconnected before the response


@dataclass(slots=True)
class AccessRecord:
    """A request for the access log. Status 503: also an answer that Ctrl-C cut.

    problem: the error sent to the client.
    """

    method: str
    path: str
    status: int = NOT_SENT
    began: float = field(default_factory=time.perf_counter)
    answer_request: AnswerRequest | None = None
    sessions: list[Session] = field(default_factory=list)
    problem: Problem | None = None

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
    """Passes a line per request to `write`: as text, or as JSON. `prompts`: with prompts."""

    write: Callable[[str], None] = lambda line: None
    as_json: bool = False
    prompts: bool = False

    def write_record(self, record: AccessRecord) -> None:
        """Write the line of a request that has ended."""
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
                "generated": sum(choice.generated for choice in stats),
                "tokens_per_second": round(stats[0].tokens_per_second, 1),
                "acceptance_length": round(stats[0].acceptance_length, 2),
            }
        if notes:
            fields["notes"] = notes
        if record.reason:
            fields["error"] = record.reason
        if self.prompts and record.answer_request is not None:
            fields["prompt_text"] = record.answer_request.prompt
        if self.as_json:
            self.write(json.dumps({"time": round(time.time(), 3), **fields}, ensure_ascii=False))
            return
        line = f"{record.status} {record.method} {record.path} {seconds:.2f} s"
        if record.sessions:
            line += (
                f", {fields['prompt']} + {fields['generated']} tokens, "
                f"{fields['tokens_per_second']} tok/s, τ {fields['acceptance_length']}"
            )
            if fields["cached"]:
                line += f", {fields['cached']} cached"
        for sentence in (*notes, record.reason):
            line += f": {sentence}" if sentence else ""
        if "prompt_text" in fields:
            line += f"  {json.dumps(fields['prompt_text'], ensure_ascii=False)}"
        self.write(line)


PING = b": waiting\n\n"  # a comment, which clients ignore
COUNT_TOKENS = f"{ANTHROPIC}/count_tokens"
UNLOAD = "/v1/models/unload"
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its path, its body, and the functions that translate it.

    writer: has `complete` and `stream`. ping: keeps its streams alive. without_v1: whether it also
    answers at a path without /v1, which some clients use.
    """

    path: str
    body_model: type[Any]
    to_request: Callable[[Any, Pair, Settings], AnswerRequest]
    writer: Callable[[Any, AnswerRequest, Runner], Any]
    ping: bytes = PING
    without_v1: bool = False

    @property
    def paths(self) -> list[str]:
        if self.without_v1:
            return [self.path, self.path.removeprefix("/v1")]
        return [self.path]


APIS = (
    Api(
        "/v1/chat/completions",
        openai_chat.ChatBody,
        openai_chat.to_request,
        openai_chat.ChatWriter,
        without_v1=True,
    ),
    Api(
        "/v1/completions",
        openai_completions.CompletionBody,
        openai_completions.to_request,
        openai_completions.CompletionWriter,
    ),
    Api(
        "/v1/responses",
        openai_responses.ResponsesBody,
        openai_responses.to_request,
        openai_responses.ResponsesWriter,
        without_v1=True,
    ),
    Api(
        ANTHROPIC,
        anthropic_messages.MessagesBody,
        anthropic_messages.to_request,
        anthropic_messages.MessagesWriter,
        anthropic_messages.PING,
    ),
)


class Server:
    """The endpoints of the models that are served. `app` is the ASGI application.

    pair: the first model, which stays loaded if there are no `offers` of others, as in `Models`.
    """

    def __init__(
        self,
        pair: Pair,
        settings: Settings,
        log: AccessLog | None = None,
        *,
        offers: Callable[[], Sequence[Offer]] | None = None,
        keep_alive: float = KEEP_ALIVE,
        cache_ram: int | None = None,
    ):
        self.settings = settings
        self.log = log or AccessLog()
        self.metrics = Metrics()
        self.models = Models(settings, self.metrics, offers or tuple, keep_alive, cache_ram)
        self.models.add(settings.names[0], pair, settings.options, stays=offers is None)
        mlx_thread().call(self.models.share_memory)
        self.began = int(time.time())
        routes = [
            Route(path, self._endpoint(api), methods=["POST"]) for api in APIS for path in api.paths
        ]
        routes += [
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route(COUNT_TOKENS, with_problems(self._count_tokens, COUNT_TOKENS), methods=["POST"]),
            Route(UNLOAD, with_problems(self._unload, UNLOAD), methods=["POST"]),
        ]
        for start in ("/v1", ""):
            routes.append(Route(f"{start}/models", self._models))
            routes.append(Route(f"{start}/models/{{name:path}}", self._model))
        layers = [Middleware(AccessMiddleware, server=self)]
        if settings.origins:
            layers.append(
                Middleware(
                    CORSMiddleware,
                    allow_origins=list(settings.origins),
                    allow_methods=["GET", "POST"],
                    allow_headers=["*"],
                )
            )
        layers.append(Middleware(Guard, settings=settings))
        self.app = Starlette(
            routes=routes,
            middleware=layers,
            exception_handlers={Problem: problem_handler, HTTPException: problem_handler},
        )

    def _endpoint(self, api: Api) -> Endpoint:
        async def answer(request: Request) -> Response:
            body = read_body(api.body_model, read_json(await request.body()))
            if body.stream and not self.models.is_loaded(body.model):
                held = ExitStack()
                events = self._load_and_stream(api, body, request, held)
                return self._event_stream(api, request, events, held)
            with ExitStack() as held:
                writer, choices = await self._prepare(api, body, request, held)
                if body.stream:
                    events = writer.stream(choices)
                    return self._event_stream(api, request, events, held.pop_all())
                reply = await unless_disconnected(request.receive, writer.complete(choices))
            return Response(status_code=499) if reply is None else JSONResponse(reply)

        return with_problems(answer, api.path)

    async def _prepare(
        self, api: Api, body: Any, request: Request, held: ExitStack
    ) -> tuple[Any, list[PreparedChoice]]:
        """What writes the answer, and its choices. `held` gives model and places back."""
        served = await self.models.acquire(body.model)
        held.callback(self.models.release, served)
        answer_request = api.to_request(body, served.pair, served.runner.settings)
        choices = await served.runner.prepare(answer_request)
        held.callback(served.runner.release, choices)
        record: AccessRecord = request.scope["state"]["access_record"]
        record.answer_request = answer_request
        record.sessions = [choice.session for choice in choices]
        return api.writer(body, answer_request, served.runner), choices

    async def _load_and_stream(
        self, api: Api, body: Any, request: Request, held: ExitStack
    ) -> AsyncGenerator[bytes]:
        """The events of an answer whose model is not loaded yet; a comment says so."""
        yield f": loading {self.models.find(body.model)}\n\n".encode()
        writer, choices = await self._prepare(api, body, request, held)
        async with aclosing(writer.stream(choices)) as events:
            async for event in events:
                yield event

    def _event_stream(
        self, api: Api, request: Request, events: AsyncGenerator[bytes], held: ExitStack
    ) -> EventStream:
        return EventStream(
            events,
            ping=api.ping,
            ping_seconds=self.settings.keepalive,
            write_problem=lambda problem: sse_event(
                problem_body(for_log(problem, request.scope), api.path)
            ),
            write_seconds=self.settings.limits.write_seconds,
            on_end=held.close,
        )

    @property
    def first(self) -> Served:
        """The model of requests that name none; it must be loaded."""
        return self.models.named(self.settings.names[0])

    async def _count_tokens(self, request: Request) -> Response:
        """Anthropic's count of a prompt's tokens."""
        body = read_body(anthropic_messages.CountBody, read_json(await request.body()))
        with ExitStack() as held:
            served = await self.models.acquire(body.model)
            held.callback(self.models.release, served)
            settings = served.runner.settings
            asked = anthropic_messages.to_count_request(body, served.pair, settings)
            return JSONResponse({"input_tokens": await served.runner.count_tokens(asked)})

    async def _health(self, request: Request) -> Response:
        admission = self.models.admission
        return JSONResponse(
            {
                "status": "ok",
                "version": __version__,
                "model": self.settings.names[0],
                "running": admission.running,
                "waiting": admission.waiting,
            }
        )

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(
            self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    def _model_fields(self, name: str) -> dict[str, Any]:
        """An entry of /v1/models. Raises Problem 404 for a name that no model has."""
        whole = self.models.find(name)
        served = next((each for each in self.models.loaded if each.name == whole), None)
        offer = next((each for each in self.models.offers() if each.name == whole), None)
        fields: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": self.began,
            "owned_by": "dflash",
            "mode": self.settings.options.mode,
        }
        if served is not None:
            return fields | {
                "max_model_len": served.runner.context,
                "draft": served.pair.draft_name,
                "state": "loaded",
                "size": served.nbytes,
                "running": served.users,
                "unloads_in": served.unloads_in,
            }
        assert offer is not None  # `find` knows no others
        state = "not-loaded" if offer.downloaded else "not-downloaded"
        if whole in self.models.loading:
            state = "loading"
        return fields | {
            "max_model_len": offer.context,
            "draft": offer.draft,
            "state": state,
            "size": offer.nbytes,
        }

    async def _models(self, request: Request) -> Response:
        names = [*self.settings.names, *(offer.name for offer in self.models.offers())]
        data = [self._model_fields(name) for name in dict.fromkeys(names)]
        return JSONResponse({"object": "list", "data": data})

    async def _model(self, request: Request) -> Response:
        return JSONResponse(self._model_fields(request.path_params["name"]))

    async def _unload(self, request: Request) -> Response:
        """Unload a model after its running answers: `{"model": NAME}`."""
        body = read_json(await request.body())
        name = body.get("model") if isinstance(body, dict) else None
        if not isinstance(name, str):
            raise Problem(400, "model must be a name.", param="model")
        whole = self.models.find(name)
        return JSONResponse({"model": whole, "unloaded": await self.models.stop(whole)})


class AccessMiddleware:
    """The outermost layer: counts and logs each request after its response."""

    def __init__(self, app: ASGIApp, server: Server):
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = AccessRecord(scope["method"], scope["path"])
        scope.setdefault("state", {})["access_record"] = record

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            record.problem = Problem(503, "the server was stopped.")
            if record.status == NOT_SENT:
                await send_problem(record.problem, scope, receive, send)
            record.status = record.problem.status
            raise
        finally:
            known = any(route.path == record.path for route in self._server.app.routes)  # type: ignore[attr-defined]
            self._server.metrics.count_request(record.path if known else "other", record.status)
            self._server.log.write_record(record)


def with_problems(answer: Endpoint, path: str) -> Endpoint:
    """An endpoint whose errors become responses in the form of its API."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except Exception as error:
            return problem_reply(for_log(as_problem(error), request.scope), path)

    return endpoint


async def problem_handler(request: Request, error: Exception) -> Response:
    """The response to an unknown path or method, in the form of the API at the path."""
    if not isinstance(error, HTTPException):
        return problem_reply(for_log(as_problem(error), request.scope), request.url.path)
    message = f"{request.method} {request.url.path:.200}: {error.detail}."
    if request.url.path.startswith("/v1/v1/"):
        message += " (Anthropic clients take a base URL without /v1.)"
    problem = for_log(Problem(error.status_code, message), request.scope)
    response = problem_reply(problem, request.url.path)
    response.headers.update(error.headers or {})
    return response


# Running on a socket with uvicorn

HEAD_SECONDS = 15.0  # to receive a request's headers
STOP_SECONDS = 10  # for running answers when the server is stopped
CONNECTIONS = 512


class Connection(H11Protocol):
    """A connection that is closed if a request's headers do not come in time."""

    _deadline: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        responding = self.cycle is not None and not self.cycle.response_complete
        if responding and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif not responding:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free port. Raises DFlashError if that fails."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host.strip("[]"), port), family=family, backlog=256)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason = reason.partition(" (while attempting")[0]  # the address again
        raise DFlashError(
            f"the server cannot listen at {host}:{port} ({reason}).",
            hint="give another --port (0 takes a free one) or --host",
        ) from None
    listening.set_inheritable(True)
    return listening


class StoppableServer(uvicorn.Server):
    """Calls `on_stop` before it waits for running answers.

    uvicorn's messages about answers that it cuts are left out: the access log has these answers.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]):
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


def run(app: Any, listening: socket.socket, on_stop: Callable[[], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; running answers then have STOP_SECONDS to end.

    `on_stop` is called before that time begins. A second Ctrl-C ends the answers at once.
    """
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=True,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    StoppableServer(config, on_stop).run(sockets=[listening])
