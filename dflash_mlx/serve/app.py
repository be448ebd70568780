"""The server's endpoints: from HTTP to a request for answers, and back."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dflash_mlx import __version__
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.gone import gone
from dflash_mlx.pair import Pair

from . import (
    anthropic_messages,
    ollama_chat,
    openai_chat,
    openai_completions,
    openai_responses,
)
from .access_log import AccessLog, AccessMiddleware, AccessRecord, for_log
from .answer_request import AnswerRequest
from .body import Fields, read_body, read_json
from .fields import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    RESPONSES,
    FieldRegister,
)
from .guard import Guard
from .models import KEEP_ALIVE, Models, Offer, Served
from .ollama_models import ModelLists
from .protocol import (
    EVENTS,
    JSON_LINES,
    EventStream,
    Problem,
    Settings,
    StopSignal,
    as_problem,
    problem_reply,
    unless_disconnected,
)
from .runner import Metrics, PreparedChoice, Runner
from .web_page import page_routes

LARGE_BODY = 1 << 20  # bytes; larger ones are read beside the event loop
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
UNLOAD = "/v1/models/unload"
PROMPTS = ("messages", "prompt", "input")  # fields
STAYS = "keep_alive (this model stays loaded)"
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its path, its body, and the functions that translate it.

    writer: has `complete` and `stream`. bare: clients may leave /v1 out of the path. kind: the
    content type of its streams. ping: keeps a stream alive, by its model's name and a comment for
    people; loading: its first while the model is loaded. write_problem: the end of a stream after
    an error. keep_alive: how long a body wants its model loaded. write_loaded: the answer to a body
    that only loads or unloads a model, by the body, the model's name and the word load or unload.
    """

    path: str
    body_model: type[Any]
    to_request: Callable[[Any, Pair, Settings], AnswerRequest]
    writer: Callable[[Any, AnswerRequest, Runner], Any]
    bare: bool = False
    kind: str = EVENTS
    ping: Callable[[str, str], bytes] = lambda name, comment: f": {comment}\n\n".encode()
    loading: Callable[[str], bytes] = lambda name: f": loading {name}\n\n".encode()
    write_problem: Callable[[Problem], bytes] = openai_chat.write_problem
    keep_alive: Callable[[Any], float | None] = lambda body: None
    write_loaded: Callable[[Any, str, str], dict[str, Any]] | None = None

    @property
    def paths(self) -> list[str]:
        return [self.path, self.path.removeprefix("/v1")] if self.bare else [self.path]


ollama_api = partial(
    Api,
    to_request=ollama_chat.to_request,
    writer=ollama_chat.OllamaWriter,
    kind=JSON_LINES,
    write_problem=ollama_chat.write_problem,
    keep_alive=ollama_chat.keep_alive_of,
    write_loaded=ollama_chat.loaded_reply,
)
APIS = (
    Api(
        CHAT,
        openai_chat.ChatBody,
        openai_chat.to_request,
        openai_chat.ChatWriter,
        bare=True,
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
        bare=True,
        write_problem=openai_responses.write_problem,
    ),
    Api(
        MESSAGES,
        anthropic_messages.MessagesBody,
        anthropic_messages.to_request,
        anthropic_messages.MessagesWriter,
        ping=lambda name, comment: anthropic_messages.ping(comment),
        write_problem=anthropic_messages.write_problem,
    ),
    ollama_api(
        OLLAMA_CHAT,
        ollama_chat.OllamaChatBody,
        ping=lambda name, comment: ollama_chat.chat_ping(name),
        loading=ollama_chat.chat_ping,
    ),
    ollama_api(
        OLLAMA_GENERATE,
        ollama_chat.GenerateBody,
        ping=lambda name, comment: ollama_chat.generate_ping(name),
        loading=ollama_chat.generate_ping,
    ),
)


FIELDS = FieldRegister({api.path: api.body_model for api in APIS})
MAX_UNKNOWN = 100  # unknown fields that are logged


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
        self.models = Models(
            settings, self.metrics, self.log, offers or tuple, keep_alive, cache_ram
        )
        self.models.add(settings.names[0], pair, settings.options, stays=offers is None)
        mlx_thread().call(self.models.share_memory)
        self.began = int(time.time())
        self.stopping = StopSignal()  # set when running answers must end
        self._unknown_fields: set[str] = set()
        layers = [Middleware(AccessMiddleware, log=self.log, count=self._count)]
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
            routes=self._routes(),
            middleware=layers,
            exception_handlers={Problem: problem_handler, HTTPException: problem_handler},
        )

    def _routes(self) -> list[Route]:
        routes = [
            Route(path, self._endpoint(api), methods=["POST"]) for api in APIS for path in api.paths
        ]
        for path, answer in (
            (COUNT_TOKENS, self._count_tokens),
            (UNLOAD, self._unload),
        ):
            routes.append(Route(path, with_problems(answer, path), methods=["POST"]))
        for path, method, answer in ModelLists(self.models).endpoints():
            routes.append(Route(path, with_problems(answer, path), methods=[method]))
        routes += [Route("/health", self._health), Route("/metrics", self._metrics)]
        for start in ("/v1", ""):
            routes.append(Route(f"{start}/models", self._models))
            routes.append(Route(f"{start}/models/{{name:path}}", self._model))
        return routes + page_routes()

    def _count(self, path: str, status: int) -> None:
        known = any(route.path == path for route in self.app.routes)  # type: ignore[attr-defined]
        self.metrics.count_request(path if known else "other", status)

    @property
    def first(self) -> Served:
        """The model of requests that name none; it must be loaded."""
        return self.models.named(self.settings.names[0])

    def _endpoint(self, api: Api) -> Endpoint:
        async def answer(request: Request) -> Response:
            body, ignored = await self._read(request, api.path, api.body_model)
            if api.write_loaded is not None and body.only_loads:
                work = self._only_load(api, body, ignored)
                reply = await unless_disconnected(request.receive, work, self.stopping)
                return Response(status_code=499) if reply is None else JSONResponse(reply)
            if body.stream and not self.models.is_loaded(body.model):
                held = ExitStack()
                events = self._load_and_stream(api, body, ignored, request, held)
                return self._event_stream(api, body, request, events, held)
            with ExitStack() as held:
                writer, choices = await self._prepare(api, body, ignored, request, held)
                if body.stream:
                    events = writer.stream(choices)
                    return self._event_stream(api, body, request, events, held.pop_all())
                work = writer.complete(choices)
                reply = await unless_disconnected(request.receive, work, self.stopping)
            return Response(status_code=499) if reply is None else JSONResponse(reply)

        return with_problems(answer, api.path)

    async def _read(
        self, request: Request, path: str, body_model: type[Any]
    ) -> tuple[Any, tuple[str, ...]]:
        """The checked body, and its fields that have no effect. Raises Problem 400."""
        raw = await request.body()

        def read() -> tuple[Any, tuple[str, ...]]:
            body = read_body(body_model, read_json(raw))
            return body, self._check_fields(path, body)

        if len(raw) <= LARGE_BODY:
            return read()
        return await self.models.prompt_threads.run(read)

    def _check_fields(self, path: str, body: Fields) -> tuple[str, ...]:
        """The fields of a body that have no effect. Unknown ones are logged once."""
        found = FIELDS.check(path, body)
        for name in found.unknown:
            if name not in self._unknown_fields and len(self._unknown_fields) < MAX_UNKNOWN:
                self._unknown_fields.add(name)
                self.log.write_unknown(name, path)
        return found.ignored

    async def _prepare(
        self, api: Api, body: Any, ignored: tuple[str, ...], request: Request, held: ExitStack
    ) -> tuple[Any, list[PreparedChoice]]:
        """What writes the answer, and its choices. `held` gives model and places back."""
        began = time.perf_counter()
        keep_alive = api.keep_alive(body)
        served = await self.models.acquire(body.model)
        held.callback(self.models.release, served, keep_alive)
        if served.stays and keep_alive is not None:
            ignored = (*ignored, STAYS)
        load = time.perf_counter() - began
        runner = served.runner
        to_request = partial(api.to_request, body, served.pair, runner.settings)
        answer_request = await self.models.prompt_threads.run(to_request)
        answer_request = replace(answer_request, began=began, load_seconds=load)
        answer_request = answer_request.with_ignored(ignored)
        name = next(name for name in PROMPTS if name in type(body).model_fields)
        with openai_chat.own_names({"messages": name}):
            choices = await runner.prepare(answer_request)
        held.callback(runner.release, choices)
        limit = choices[0].prompted.request.token_limit
        answer_request = replace(answer_request, token_limit=limit)
        record: AccessRecord = request.scope["state"]["access_record"]
        record.answer_request = answer_request
        record.sessions = [choice.session for choice in choices]
        return api.writer(body, answer_request, runner), choices

    async def _load_and_stream(
        self, api: Api, body: Any, ignored: tuple[str, ...], request: Request, held: ExitStack
    ) -> AsyncGenerator[bytes]:
        """The events of an answer whose model is not loaded yet; the first one says so."""
        yield api.loading(self.models.find(body.model))
        writer, choices = await self._prepare(api, body, ignored, request, held)
        async with aclosing(writer.stream(choices)) as events:
            async for event in events:
                yield event

    async def _only_load(self, api: Api, body: Any, ignored: tuple[str, ...]) -> dict[str, Any]:
        """Load the model of a body without a prompt, or unload it if its keep-alive is 0."""
        assert api.write_loaded is not None
        name = self.models.find(body.model)
        keep_alive = api.keep_alive(body)
        reason = "load"
        if keep_alive == 0 and not self.models.stays(name):
            await self.models.stop(name)
            reason = "unload"
        else:
            served = await self.models.acquire(name)
            self.models.release(served, keep_alive)
            if served.stays and keep_alive is not None:
                ignored = (*ignored, STAYS)
        return {**api.write_loaded(body, name, reason), "dflash": {"ignored": list(ignored)}}

    def _event_stream(
        self,
        api: Api,
        body: Any,
        request: Request,
        events: AsyncGenerator[bytes],
        held: ExitStack,
    ) -> EventStream:
        name = body.model or self.settings.names[0]
        record: AccessRecord = request.scope["state"]["access_record"]
        return EventStream(
            events,
            kind=api.kind,
            stopping=self.stopping,
            ping=lambda: api.ping(name, record.comment),
            ping_seconds=self.settings.keepalive,
            write_problem=lambda problem: api.write_problem(for_log(problem, request.scope)),
            write_seconds=self.settings.limits.write_seconds,
            on_end=held.close,
        )

    async def _count_tokens(self, request: Request) -> Response:
        body, _ = await self._read(request, MESSAGES, anthropic_messages.CountBody)
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
        fields: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": self.began,
            "owned_by": "dflash",
        }
        return fields | {"mode": self.settings.options.mode} | self.models.describe(name)

    async def _models(self, request: Request) -> Response:
        names = [*self.settings.names, *(offer.name for offer in self.models.offers())]
        data = [self._model_fields(name) for name in dict.fromkeys(names)]
        return JSONResponse({"object": "list", "data": data})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.settings.names:
            name = self.models.find(name)
        return JSONResponse(self._model_fields(name))

    async def _unload(self, request: Request) -> Response:
        """Unload a model after its running answers: `{"model": NAME}`."""
        body = read_json(await request.body())
        name = body.get("model") if isinstance(body, dict) else None
        if not isinstance(name, str):
            raise Problem(400, "model must be a name.", param="model")
        whole = self.models.find(name)
        return JSONResponse({"model": whole, "unloaded": await self.models.stop(whole)})


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
    if hint := gone(request.url.path):
        message += f" {hint[0].upper()}{hint[1:]}."
    if request.url.path.startswith("/v1/v1/"):
        message += " (Anthropic clients take a base URL without /v1.)"
    problem = for_log(Problem(error.status_code, message), request.scope)
    response = problem_reply(problem, request.url.path)
    response.headers.update(error.headers or {})
    return response
