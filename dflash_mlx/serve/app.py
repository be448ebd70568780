"""The server's endpoints: from HTTP to a request for answers, and back."""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import uvicorn
from starlette.applications import Starlette
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

from . import anthropic_messages, openai_chat, openai_completions, openai_responses
from .access_log import NOT_SENT, AccessLog, AccessRecord, for_log
from .answer_request import AnswerRequest
from .body import Fields, read_body, read_json
from .fields import CHAT, COMPLETIONS, MESSAGES, RESPONSES, FieldRegister
from .guard import Guard
from .protocol import (
    STOPPED,
    EventStream,
    Problem,
    Settings,
    StopSignal,
    as_problem,
    check_model,
    problem_reply,
    send_problem,
    unless_disconnected,
)
from .runner import Metrics, Runner

PING = b": waiting\n\n"  # a comment, which clients ignore
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its path, its body, and the functions that translate it.

    writer: has `complete` and `stream`. ping: keeps its streams alive. without_v1: whether it also
    answers at a path without /v1, which some clients use. write_problem: the end of a stream after
    an error.
    """

    path: str
    body_model: type[Any]
    to_request: Callable[[Any, Pair, Settings], AnswerRequest]
    writer: Callable[[Any, AnswerRequest, Runner], Any]
    ping: bytes = PING
    without_v1: bool = False
    write_problem: Callable[[Problem], bytes] = openai_chat.write_problem

    @property
    def paths(self) -> list[str]:
        if self.without_v1:
            return [self.path, self.path.removeprefix("/v1")]
        return [self.path]


APIS = (
    Api(
        CHAT,
        openai_chat.ChatBody,
        openai_chat.to_request,
        openai_chat.ChatWriter,
        without_v1=True,
    ),
    Api(
        COMPLETIONS,
        openai_completions.CompletionBody,
        openai_completions.to_request,
        openai_completions.CompletionWriter,
    ),
    Api(
        RESPONSES,
        openai_responses.ResponsesBody,
        openai_responses.to_request,
        openai_responses.ResponsesWriter,
        without_v1=True,
        write_problem=openai_responses.write_problem,
    ),
    Api(
        MESSAGES,
        anthropic_messages.MessagesBody,
        anthropic_messages.to_request,
        anthropic_messages.MessagesWriter,
        anthropic_messages.PING,
        write_problem=anthropic_messages.write_problem,
    ),
)


FIELDS = FieldRegister({api.path: api.body_model for api in APIS})
MAX_UNKNOWN = 100  # unknown fields that are logged


class Server:
    """The endpoints of one pair. `app` is the ASGI application."""

    def __init__(self, pair: Pair, settings: Settings, log: AccessLog | None = None):
        self.pair = pair
        self.settings = settings
        self.log = log or AccessLog()
        self.metrics = Metrics()
        self.runner = Runner(pair, settings, self.metrics)
        self.began = int(time.time())
        self.stopping = StopSignal()  # set when running answers must end
        self._unknown_fields: set[str] = set()
        routes = [
            Route(path, self._endpoint(api), methods=["POST"]) for api in APIS for path in api.paths
        ]
        routes += [
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route(COUNT_TOKENS, with_problems(self._count_tokens, COUNT_TOKENS), methods=["POST"]),
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
            fields = self._check_fields(api.path, body)
            check_model(body.model, self.settings)
            answer_request = api.to_request(body, self.pair, self.settings)
            answer_request = answer_request.with_ignored(fields)
            choices = await self.runner.prepare(answer_request)
            token_limit = choices[0].prompted.request.token_limit
            answer_request = replace(answer_request, token_limit=token_limit)
            record: AccessRecord = request.scope["state"]["access_record"]
            record.answer_request = answer_request
            record.sessions = [choice.session for choice in choices]
            writer = api.writer(body, answer_request, self.runner)
            if body.stream:
                return EventStream(
                    writer.stream(choices),
                    stopping=self.stopping,
                    ping=api.ping,
                    ping_seconds=self.settings.keepalive,
                    write_problem=lambda problem: api.write_problem(
                        for_log(problem, request.scope)
                    ),
                    write_seconds=self.settings.limits.write_seconds,
                    on_end=lambda: self.runner.release(choices),
                )
            try:
                work = writer.complete(choices)
                reply = await unless_disconnected(request.receive, work, self.stopping)
            finally:
                self.runner.release(choices)
            return Response(status_code=499) if reply is None else JSONResponse(reply)

        return with_problems(answer, api.path)

    def _check_fields(self, path: str, body: Fields) -> tuple[str, ...]:
        """The fields of a body that have no effect. Unknown ones are logged once."""
        found = FIELDS.check(path, body)
        for name in found.unknown:
            if name not in self._unknown_fields and len(self._unknown_fields) < MAX_UNKNOWN:
                self._unknown_fields.add(name)
                self.log.write_unknown(name, path)
        return found.ignored

    async def _count_tokens(self, request: Request) -> Response:
        """Anthropic's count of a prompt's tokens."""
        body = read_body(anthropic_messages.CountBody, read_json(await request.body()))
        self._check_fields(MESSAGES, body)
        check_model(body.model, self.settings)
        answer_request = anthropic_messages.to_count_request(body, self.pair, self.settings)
        return JSONResponse({"input_tokens": await self.runner.count_tokens(answer_request)})

    async def _health(self, request: Request) -> Response:
        admission = self.runner.admission
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
        data = [self._model_fields(name) for name in self.settings.names]
        return JSONResponse({"object": "list", "data": data})

    async def _model(self, request: Request) -> Response:
        name = check_model(request.path_params["name"], self.settings)
        return JSONResponse(self._model_fields(name))


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
            record.problem = STOPPED
            if record.status == NOT_SENT:
                await send_problem(record.problem, scope, receive, send)
            raise
        finally:
            if record.problem is STOPPED:
                record.status = STOPPED.status
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
ERROR_SHARE = 0.8  # of that time; then the answers that still run get an error
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
    """Calls `on_stop` before it waits for running answers, and sets `stopping` before it cuts them.

    uvicorn's messages about answers that it cuts are left out: the access log has these answers.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None], stopping: StopSignal):
        super().__init__(config)
        self._on_stop = on_stop
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        asyncio.get_running_loop().call_later(ERROR_SHARE * STOP_SECONDS, self._stopping.set)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


def run(server: Server, listening: socket.socket, on_stop: Callable[[], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; running answers then have STOP_SECONDS to end.

    Those that do not end by themselves end with an error. `on_stop` is called before that time
    begins. A second Ctrl-C ends the answers at once.
    """
    config = uvicorn.Config(
        server.app,
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
    StoppableServer(config, on_stop, server.stopping).run(sockets=[listening])
