"""The server's endpoints: from HTTP to a request for answers, and back."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
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
from starlette.types import ASGIApp

from dflash_mlx import __version__
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.gone import gone
from dflash_mlx.pair import Pair

from .access_log import NOT_SENT, AccessLog, AccessMiddleware, AccessRecord, for_log
from .anthropic_messages import CountBody, MessagesWriter
from .body import Fields, read_body, read_json, read_name, read_raw
from .fields import MESSAGES, FieldRegister
from .guard import Guard
from .keep_alive import KEEP_ALIVE
from .models import Models, Offer, Served
from .ollama_chat import GenerateWriter, OllamaBody, OllamaChatWriter, OllamaWriter
from .ollama_models import ModelLists
from .openai_chat import ChatWriter, own_names
from .openai_completions import CompletionWriter
from .openai_responses import ResponsesWriter
from .protocol import Problem, Settings, problem_reply
from .runner import Metrics
from .streams import EventStream, StopSignal, unless_disconnected
from .web_page import page_routes
from .writer import Writer

LARGE_BODY = 1 << 20  # bytes; larger ones are read beside the event loop
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
PROMPTS = ("messages", "prompt", "input")  # fields
STAYS = "keep_alive (this model stays loaded)"
MAX_LOGGED = 100  # fields without an effect
Endpoint = Callable[[Request], Awaitable[ASGIApp]]
APIS: tuple[type[Writer], ...] = (
    ChatWriter,
    CompletionWriter,
    ResponsesWriter,
    MessagesWriter,
    OllamaChatWriter,
    GenerateWriter,
)
FIELDS = FieldRegister({api.path: api.body_model for api in APIS})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with its checked body. ignored: the fields of the body that have no effect."""

    api: type[Writer]
    request: Request
    body: Any
    ignored: tuple[str, ...]

    @property
    def keep_alive(self) -> float | None:
        return self.body.keep_alive if isinstance(self.body, OllamaBody) else None

    @property
    def record(self) -> AccessRecord:
        return self.request.scope["state"]["access_record"]

    def all_ignored(self, served: Served) -> tuple[str, ...]:
        stays = served.stays and self.keep_alive is not None
        return (*self.ignored, STAYS) if stays else self.ignored


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
        self._ignored_fields: set[str] = set()
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
            exception_handlers={HTTPException: problem_handler},
        )

    def _routes(self) -> list[Route]:
        routes = list[Route]()
        for api in APIS:
            for path in (api.path, *([api.path.removeprefix("/v1")] if api.bare else [])):
                routes.append(Route(path, self._endpoint(api), methods=["POST"]))
        routes.append(Route(COUNT_TOKENS, self._count_tokens, methods=["POST"]))
        routes.append(Route("/v1/models/unload", self._unload, methods=["POST"]))
        routes += [Route("/health", self._health), Route("/metrics", self._metrics)]
        for start in ("/v1", ""):
            routes.append(Route(f"{start}/models", self._models))
            routes.append(Route(f"{start}/models/{{name:path}}", self._model))
        return routes + ModelLists(self.models).routes() + page_routes()

    def _count(self, path: str, status: int) -> None:
        known = any(route.path == path for route in self.app.routes)  # type: ignore[attr-defined]
        self.metrics.count_request(path if known else "other", status)

    @property
    def first(self) -> Served:
        """The model of requests that name none; it must be loaded."""
        served = self.models.named(self.settings.names[0])
        assert served is not None
        return served

    def _endpoint(self, api: type[Writer]) -> Endpoint:
        async def answer(request: Request) -> ASGIApp:
            asked = Asked(api, request, *await self._read(request, api.path, api.body_model))
            body = asked.body
            if isinstance(body, OllamaBody) and body.only_loads:
                return await self._reply(request, self._only_load(asked))
            held = ExitStack()
            if body.stream and self.models.named(self.models.find(body.model)) is None:
                return self._event_stream(asked, self._load_and_stream(asked, held), held)
            with held:
                writer = await self._prepare(asked, held)
                if not body.stream:
                    return await self._reply(request, writer.complete())
                return self._event_stream(asked, writer.stream(), held.pop_all())

        return answer

    async def _reply(self, request: Request, work: Coroutine[Any, Any, Any]) -> Response:
        reply = await unless_disconnected(request.receive, work, self.stopping)
        return Response(status_code=NOT_SENT) if reply is None else JSONResponse(reply)

    async def _read(
        self, request: Request, path: str, body_model: type[Any]
    ) -> tuple[Any, tuple[str, ...]]:
        """The checked body, and its fields that have no effect. Raises Problem 400."""
        raw = await read_raw(request, self.settings.limits)

        def read() -> tuple[Any, tuple[str, ...]]:
            body = read_body(body_model, read_json(raw))
            return body, self._check_fields(path, body)

        if len(raw) <= LARGE_BODY:
            return read()
        return await self.models.prompt_threads.run(read)

    def _check_fields(self, path: str, body: Fields) -> tuple[str, ...]:
        """The fields of a body that have no effect. Each is logged once."""
        found = FIELDS.check(path, body)
        for name in found:
            if name not in self._ignored_fields and len(self._ignored_fields) < MAX_LOGGED:
                self._ignored_fields.add(name)
                self.log.write_ignored(name, path)
        return tuple(f"{name} ({why})" for name, why in found.items())

    async def _prepare(self, asked: Asked, held: ExitStack) -> Writer:
        """What writes the answer. `held` gives model and places back."""
        began = time.perf_counter()
        body = asked.body
        served = await self.models.acquire(body.model)
        held.callback(self.models.release, served, asked.keep_alive)
        load = time.perf_counter() - began
        runner = served.runner
        to_request = partial(asked.api.to_request, body, served.pair, runner.settings)
        request = await self.models.prompt_threads.run(to_request)
        ignored = (*request.ignored, *asked.all_ignored(served))
        request = replace(request, ignored=ignored, began=began, load_seconds=load)
        name = next(name for name in PROMPTS if name in type(body).model_fields)
        with own_names({"messages": name}):
            choices = await runner.prepare(request)
        held.callback(runner.release, choices)
        asked.record.answer_request = request
        asked.record.sessions = [choice.session for choice in choices]
        return asked.api(body, request, runner, choices)

    async def _load_and_stream(self, asked: Asked, held: ExitStack) -> AsyncGenerator[bytes]:
        """The events of an answer whose model is not loaded yet; the first one says so."""
        yield asked.api.loading(self.models.find(asked.body.model))
        writer = await self._prepare(asked, held)
        async with aclosing(writer.stream()) as events:
            async for event in events:
                yield event

    async def _only_load(self, asked: Asked) -> dict[str, Any]:
        """Load the model of a body without a prompt, or unload it if its keep-alive is 0."""
        api = asked.api
        assert issubclass(api, OllamaWriter)
        name = self.models.find(asked.body.model)
        ignored, reason = asked.ignored, "unload"
        if asked.keep_alive == 0 and not self.models.stays(name):
            await self.models.stop(name)
        else:
            served = await self.models.acquire(name)
            self.models.release(served, asked.keep_alive)
            ignored, reason = asked.all_ignored(served), "load"
        return api.loaded(asked.body, name, reason) | {"dflash": {"ignored": list(ignored)}}

    def _event_stream(
        self, asked: Asked, events: AsyncGenerator[bytes], held: ExitStack
    ) -> EventStream:
        api = asked.api
        name = asked.body.model or self.settings.names[0]
        return EventStream(
            events,
            api.content_type,
            self.stopping,
            ping=lambda: api.ping(name, asked.record.comment),
            ping_seconds=self.settings.keepalive,
            write_problem=lambda problem: api.problem(for_log(problem, asked.request.scope)),
            write_seconds=self.settings.limits.write_seconds,
            on_end=held.close,
        )

    async def _count_tokens(self, request: Request) -> Response:
        body, _ = await self._read(request, MESSAGES, CountBody)
        with ExitStack() as held:
            served = await self.models.acquire(body.model)
            held.callback(self.models.release, served)
            settings = served.runner.settings
            asked = MessagesWriter.to_request(body, served.pair, settings)
            return JSONResponse({"input_tokens": await served.runner.count_tokens(asked)})

    async def _health(self, request: Request) -> Response:
        admission = self.models.admission
        numbers = {"running": admission.running, "waiting": admission.waiting}
        head = {"status": "ok", "version": __version__, "model": self.settings.names[0]}
        return JSONResponse(head | numbers)

    async def _metrics(self, request: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return PlainTextResponse(self.metrics.text(), media_type=kind)

    def _model_fields(self, name: str) -> dict[str, Any]:
        """An entry of /v1/models. Raises Problem 404 for a name that no model has."""
        return {
            "id": name,
            "object": "model",
            "created": self.began,
            "owned_by": "dflash",
            "mode": self.settings.options.mode,
            **self.models.describe(name),
        }

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
        whole = self.models.find(await read_name(request, self.settings.limits))
        if self.models.stays(whole):
            why = "stays loaded as long as this server runs, which was started for it alone"
            raise Problem(400, f"the model '{whole:.100}' {why}.", param="model")
        return JSONResponse({"model": whole, "unloaded": await self.models.stop(whole)})


async def problem_handler(request: Request, error: Exception) -> Response:
    """The response to an unknown path or method, in the form of the API at the path."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path:.200}: {error.detail}."
    if hint := gone(request.url.path):
        message += f" {hint[0].upper()}{hint[1:]}."
    if request.url.path.startswith("/v1/v1/"):
        message += " (Anthropic clients take a base URL without /v1.)"
    problem = for_log(Problem(error.status_code, message), request.scope)
    response = problem_reply(problem, request.url.path)
    response.headers.update(error.headers or {})
    return response
