"""The server's endpoints: from HTTP to a job, and from its answer back to HTTP."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dflash_mlx import __version__
from dflash_mlx.pair import Pair

from . import (
    anthropic_messages,
    anthropic_writer,
    openai_chat,
    openai_completions,
    openai_responses,
    responses_writer,
)
from .fields import check_model, read_body, read_json
from .guard import Guard
from .job import Job
from .log import RequestLog, Seen
from .metrics import Metrics
from .problem import Problem, as_problem
from .replies import ANTHROPIC, problem_body, problem_reply
from .runner import Runner
from .settings import Settings
from .sse import EventStream, event, unless_gone

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
        anthropic_writer.MessagesWriter,
        anthropic_writer.PING,
    ),
)


class Server:
    """The endpoints of one pair; `app` is what an ASGI server runs."""

    def __init__(self, pair: Pair, settings: Settings, log: RequestLog | None = None):
        self.pair, self.settings, self.log = pair, settings, log or RequestLog()
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
            "mode": self.settings.mode,
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
        self._app, self._server = app, server

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
