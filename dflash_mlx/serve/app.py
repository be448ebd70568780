"""The server's endpoints: from HTTP to a job, and from its answer back to HTTP."""

import asyncio
import hmac
import ipaddress
import json
import socket
import time
from collections.abc import Awaitable, Callable
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
from dflash_mlx.errors import DFlashError
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session

from . import anthropic_messages, openai_chat, openai_completions, openai_responses
from . import openai_responses as responses_writer
from .job import Job
from .protocol import (
    ANTHROPIC,
    EventStream,
    Problem,
    Settings,
    as_problem,
    check_model,
    event,
    problem_body,
    problem_reply,
    read_body,
    read_json,
    send_problem,
    unless_gone,
)
from .runner import Metrics, Runner

# Who may come in, and how much they may bring

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
OPEN_PATHS = ("/health",)


class Guard:
    """Lets requests through that may come in, and answers the others."""

    def __init__(self, app: ASGIApp, settings: Settings):
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request's head, read its body within the limits, and hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
            body = await self._body(headers, receive)
        except Problem as problem:
            await send_problem(problem, scope, receive, send)
            return
        except ConnectionError:  # nobody is left to answer
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
        own = {f"http://{host}", f"https://{host}"}
        if origin is not None and origin not in own and not self._allows(origin):
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
        given = bearer.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        # Starlette reads bytes of headers as Latin-1.
        return hmac.compare_digest(given.encode("latin-1"), (self._settings.api_key or "").encode())

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body. Problem 413 for one that is too large, 408 for one that is too slow."""
        limits = self._settings.limits
        too_large = Problem(413, f"the body is larger than {limits.body_bytes >> 20} MiB.")
        size = headers.get("content-length", "0")
        if not size.isdecimal() or len(size) > 18 or int(size) > limits.body_bytes:
            raise too_large

        async def read() -> bytes:
            found = bytearray()
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError
                found += message.get("body", b"")
                if len(found) > limits.body_bytes:
                    raise too_large
                if not message.get("more_body"):
                    return bytes(found)

        try:
            return await asyncio.wait_for(read(), limits.body_seconds)
        except TimeoutError:
            raise Problem(
                408, f"the body did not come within {limits.body_seconds:g} seconds."
            ) from None


def replay(body: bytes, receive: Receive) -> Receive:
    """What gives a body that was read already, then what comes after it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return name.lower().rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether an address to listen at is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_json(kind: str) -> bool:
    """Whether a Content-Type is JSON's."""
    name = kind.partition(";")[0].strip().lower()
    return name == "application/json" or name.endswith("+json")


# One line for each request


@dataclass(slots=True)
class Seen:
    """A request as the log tells it. Status 499: the client went before an answer began."""

    method: str
    path: str
    status: int = 499
    began: float = field(default_factory=time.perf_counter)
    job: Job | None = None
    sessions: list[Session] = field(default_factory=list)

    def take(self, job: Job, sessions: list[Session]) -> None:
        """What the request asked for, and the sessions that answer."""
        self.job = job
        self.sessions = sessions


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Writes a line for each request to `write`: for people, or with `as_json` for programs."""

    write: Callable[[str], None] = lambda line: None
    as_json: bool = False
    prompts: bool = False

    def ended(self, seen: Seen) -> None:
        """Write the line of a request that has ended."""
        seconds = time.perf_counter() - seen.began
        told: dict[str, object] = {
            "method": seen.method,
            "path": seen.path,
            "status": seen.status,
            "seconds": round(seconds, 3),
        }
        if seen.sessions:
            stats = [session.stats for session in seen.sessions]
            told |= {
                "prompt": stats[0].prompt_tokens,
                "cached": stats[0].cached_tokens,
                "generated": sum(one.generated for one in stats),
                "tokens_per_second": round(stats[0].tokens_per_second, 1),
                "acceptance_length": round(stats[0].acceptance_length, 2),
            }
        if self.prompts and seen.job is not None:
            told["prompt_text"] = seen.job.prompt
        if self.as_json:
            self.write(json.dumps({"time": round(time.time(), 3), **told}, ensure_ascii=False))
            return
        line = f"{seen.status} {seen.method} {seen.path} {seconds:.2f} s"
        if seen.sessions:
            line += (
                f", {told['prompt']} + {told['generated']} tokens, "
                f"{told['tokens_per_second']} tok/s, τ {told['acceptance_length']}"
            )
            if told["cached"]:
                line += f", {told['cached']} cached"
        if "prompt_text" in told:
            line += f"  {json.dumps(told['prompt_text'], ensure_ascii=False)}"
        self.write(line)


COMMENT = b": waiting\n\n"
COUNT = f"{ANTHROPIC}/count_tokens"
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Api:
    """One API that answers: its path, its body's fields, and what they are made into.

    writer: has `whole` and `stream` of the choices. alive: the sign of life in its streams. short:
    whether it answers without the `/v1`, too, which the addresses that some clients know lack.
    """

    path: str
    fields: type[Any]
    job_of: Callable[[Any, Pair, Settings], Job]
    writer: Callable[[Any, Job, Runner], Any]
    alive: bytes = COMMENT
    short: bool = False

    @property
    def paths(self) -> list[str]:
        """Where it answers."""
        return [self.path, *([self.path.removeprefix("/v1")] if self.short else [])]


APIS = (
    Api(
        "/v1/chat/completions",
        openai_chat.ChatBody,
        openai_chat.job_of,
        openai_chat.ChatWriter,
        short=True,
    ),
    Api(
        "/v1/completions",
        openai_completions.CompletionBody,
        openai_completions.job_of,
        openai_completions.CompletionWriter,
    ),
    Api(
        "/v1/responses",
        openai_responses.ResponsesBody,
        openai_responses.job_of,
        responses_writer.ResponsesWriter,
        short=True,
    ),
    Api(
        ANTHROPIC,
        anthropic_messages.MessagesBody,
        anthropic_messages.job_of,
        anthropic_messages.MessagesWriter,
        anthropic_messages.PING,
    ),
)


class Server:
    """The endpoints of one pair; `app` is what an ASGI server runs."""

    def __init__(self, pair: Pair, settings: Settings, log: RequestLog | None = None):
        self.pair = pair
        self.settings = settings
        self.log = log or RequestLog()
        self.metrics = Metrics()
        self.runner = Runner(pair, settings, self.metrics)
        self.began = int(time.time())
        routes = [
            Route(path, self._endpoint(api), methods=["POST"]) for api in APIS for path in api.paths
        ]
        routes += [
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route(COUNT, answering(self._count_tokens, COUNT), methods=["POST"]),
        ]
        for start in ("/v1", ""):
            routes.append(Route(f"{start}/models", self._models))
            routes.append(Route(f"{start}/models/{{name:path}}", self._model))
        layers = [Middleware(Watch, server=self)]
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
            exception_handlers={Problem: refuse, HTTPException: refuse},
        )

    def _endpoint(self, api: Api) -> Endpoint:
        """The endpoint of one API."""

        async def answer(request: Request) -> Response:
            body = read_body(api.fields, read_json(await request.body()))
            check_model(body.model, self.settings)
            job = api.job_of(body, self.pair, self.settings)
            choices = await self.runner.prepare(job)
            seen: Seen = request.scope["state"]["seen"]
            seen.take(job, [one.session for one in choices])
            written = api.writer(body, job, self.runner)
            if body.stream:
                return EventStream(
                    written.stream(choices),
                    alive=api.alive,
                    every=self.settings.keepalive,
                    failed=lambda problem: event(problem_body(problem, api.path)),
                    write_seconds=self.settings.limits.write_seconds,
                    ended=lambda: self.runner.release(choices),
                )
            try:
                found = await unless_gone(request.receive, written.whole(choices))
            finally:
                self.runner.release(choices)
            return Response(status_code=499) if found is None else JSONResponse(found)

        return answering(answer, api.path)

    async def _count_tokens(self, request: Request) -> Response:
        """Anthropic's: the tokens of a prompt that is not answered."""
        body = read_body(anthropic_messages.CountBody, read_json(await request.body()))
        check_model(body.model, self.settings)
        job = anthropic_messages.count_job_of(body, self.pair, self.settings)
        return JSONResponse({"input_tokens": await self.runner.count_tokens(job)})

    async def _health(self, request: Request) -> Response:
        line = self.runner.admission
        return JSONResponse(
            {
                "status": "ok",
                "version": __version__,
                "model": self.settings.names[0],
                "running": line.running,
                "waiting": line.waiting,
            }
        )

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(
            self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    def _described(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.began,
            "owned_by": "dflash",
            "max_model_len": self.runner.context,
            "mode": self.settings.options.mode,
            "draft": self.pair.draft_name,
        }

    async def _models(self, request: Request) -> Response:
        data = [self._described(name) for name in self.settings.names]
        return JSONResponse({"object": "list", "data": data})

    async def _model(self, request: Request) -> Response:
        check_model(request.path_params["name"], self.settings)
        return JSONResponse(self._described(request.path_params["name"]))


class Watch:
    """The outermost layer: counts and logs every request when its answer has been sent."""

    def __init__(self, app: ASGIApp, server: Server):
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = Seen(scope["method"], scope["path"])
        scope.setdefault("state", {})["seen"] = seen

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            known = any(route.path == seen.path for route in self._server.app.routes)  # type: ignore[attr-defined]
            self._server.metrics.request(seen.path if known else "other", seen.status)
            self._server.log.ended(seen)


def answering(answer: Endpoint, path: str) -> Endpoint:
    """An endpoint whose problems are answers, in the shape of its API."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except Exception as error:
            return problem_reply(as_problem(error), path)

    return endpoint


async def refuse(request: Request, error: Exception) -> Response:
    """A path or a method that there is not, as an answer in the shape of the API that was asked."""
    if not isinstance(error, HTTPException):
        return problem_reply(as_problem(error), request.url.path)
    message = f"{request.method} {request.url.path:.200}: {error.detail}."
    found = problem_reply(Problem(error.status_code, message), request.url.path)
    found.headers.update(error.headers or {})
    return found


# Runs the endpoints on a socket with uvicorn

HEAD_SECONDS = 15.0  # in which a request's head has to come
STOP_SECONDS = 10  # that running answers have when the server is stopped
CONNECTIONS = 512


class Connection(H11Protocol):
    """A connection that is closed where a request's head does not come in time."""

    _deadline: Any = None

    def connection_made(self, transport: Any) -> None:
        """Somebody has connected."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """A part of a request has come."""
        super().data_received(data)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif not answering:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has gone."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is a free one. DFlashError where that cannot be."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        found = socket.create_server((host.strip("[]"), port), family=family, backlog=256)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DFlashError(
            f"the server cannot listen at {host}:{port} ({reason}).",
            hint="give another --port (0 takes a free one) or --host",
        ) from None
    found.set_inheritable(True)
    return found


def run(app: Any, listening: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM; answers that run then have STOP_SECONDS to end."""
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
    uvicorn.Server(config).run(sockets=[listening])
