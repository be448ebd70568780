"""Ollama's `POST /api/chat` and `POST /api/generate`: a body to a request, deltas to lines of JSON.

https://docs.ollama.com/api
"""

import json
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from dflash_mlx.chat.tool_parser import ToolCall
from dflash_mlx.engine.stats import Stats
from dflash_mlx.options import EFFORTS
from dflash_mlx.pair import Pair
from dflash_mlx.speculation.sampling import HISTORY
from dflash_mlx.types import TokenLogprob

from . import openai_completions
from .answer_request import AnswerRequest, Completion, Delta, Progress
from .body import NO_LIMIT, Integer, SamplingFields, answer_range, read_body
from .chat_tools import Tool
from .keep_alive import parse_keep_alive
from .logprobs import chat_logprobs
from .openai_chat import given, own_names, sampling_values, to_chat_request
from .openai_completions import CompletionBody
from .protocol import LATEST, Problem, Settings, json_line
from .runner import PreparedChoice, Runner

NAMES = {
    "reasoning_effort": "think",
    "response_format": "format",
    "max_tokens": "num_predict",
}
DONE = {"stop": "stop", "length": "length", "calls": "stop"}


def check_stream(value: Any) -> Any:
    """Ollama streams unless a body says no."""
    return True if value is None else value


class ModelOptions(SamplingFields):
    """The fields that Ollama's clients put into the object `options`.

    num_ctx: the limit for prompt and answer in tokens. num_predict: that of the answer; below 1
    the rest of the context.
    """

    num_ctx: Annotated[Integer, Field(ge=2)] | None = None
    num_predict: Annotated[Integer, Field(ge=-2)] | None = None
    repeat_last_n: Annotated[Integer, Field(ge=-1)] | None = None
    stop: str | list[str] | None = None


class OllamaBody(ModelOptions):
    """What both bodies have. `options` may hold the fields of `ModelOptions`, which leave it."""

    model: str | None = None
    stream: Annotated[bool, BeforeValidator(check_stream)] = True
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: str | float | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Integer, answer_range("logprobs")] | None = None

    @model_validator(mode="before")
    @classmethod
    def merge_options(cls, body: dict[str, Any]) -> dict[str, Any]:
        """The body with its options beside its other fields.

        Raises Problem 400 for options that are fields of the body, and for a field in both places.
        """
        options = body.get("options")
        if options is None:
            return {name: value for name, value in body.items() if name != "options"}
        if not isinstance(options, dict):
            raise Problem(400, "options must be an object.", "options")
        for name in options:
            if name in cls.model_fields and name not in ModelOptions.model_fields:
                raise Problem(400, f"options.{name} is a field of the body itself.", "options")
            if name in body:
                raise Problem(400, f"{name} is in options and beside it: give one.", name)
        return {**{name: body[name] for name in body if name != "options"}, **options}

    @model_validator(mode="after")
    def check_keep_alive(self) -> Self:
        """Raise ValueError for a time that cannot be read."""
        keep_alive_of(self)
        return self

    @property
    def only_loads(self) -> bool:
        """Whether the body asks for nothing but to load its model, or to unload it."""
        raise NotImplementedError


class OllamaChatBody(OllamaBody):
    messages: list[Any] | None = None
    tools: list[Tool] | None = None

    @property
    def only_loads(self) -> bool:
        return not self.messages


class GenerateBody(OllamaBody):
    """The body of /api/generate. raw: without the chat template."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None

    @property
    def only_loads(self) -> bool:
        return not self.prompt


def keep_alive_of(body: OllamaBody) -> float | None:
    """Seconds loaded after the answer; None is the server's. Raises ValueError."""
    return None if body.keep_alive is None else parse_keep_alive(body.keep_alive)


def to_request(
    body: OllamaChatBody | GenerateBody, pair: Pair, settings: Settings
) -> AnswerRequest:
    """Raises Problem 400 for fields that are wrong or not supported."""
    if isinstance(body, GenerateBody) and body.raw:
        request = to_raw_request(body, pair, settings)
        ignored: tuple[str, ...] = ()
    else:
        thinking, ignored = thinking_values(body.think, pair)
        values = {**shared_values(body, pair), **thinking}
        values["top_logprobs"] = body.top_logprobs or None
        values["logprobs"] = body.logprobs
        if isinstance(body, OllamaChatBody):
            values["messages"] = chat_messages(body.messages or [])
            values["tools"] = [tool.for_template for tool in body.tools or []] or None
        else:
            system = [{"role": "system", "content": body.system}] if body.system else []
            values["messages"] = [*system, {"role": "user", "content": body.prompt}]
        request = to_chat_request(values, NAMES, pair, settings)
    check_window(body, request)
    return replace(request, context=body.num_ctx, ignored=ignored)


def to_raw_request(body: GenerateBody, pair: Pair, settings: Settings) -> AnswerRequest:
    """A request whose prompt is text without a chat template."""
    for name in ("system", "think"):
        if getattr(body, name):
            raise Problem(400, f"{name} needs the chat template, which raw leaves out.", name)
    values = {**shared_values(body, pair), "prompt": body.prompt}
    if body.logprobs:
        values["logprobs"] = body.top_logprobs or 0
    with own_names(NAMES):
        completion = read_body(CompletionBody, given(values))
        return openai_completions.to_request(completion, pair, settings)


def shared_values(body: OllamaBody, pair: Pair) -> dict[str, Any]:
    """The values of OpenAI's two bodies, except those for prompt, tools and log-probabilities."""
    values = sampling_values(body)
    if values["seed"] == -1:
        values["seed"] = None
    if body.repeat_last_n == 0:
        values |= {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
        values["repeat_penalty"] = None
    limit = body.num_predict
    if limit is not None and limit < 1:
        limit = NO_LIMIT
    return {
        **values,
        "max_tokens": limit,
        "stop": body.stop,
        "response_format": format_of(body.format),
    }


def check_window(body: OllamaBody, request: AnswerRequest) -> None:
    """Raise Problem 400 for penalties that shall look at another number of tokens than ours do."""
    window = body.repeat_last_n
    if window not in (None, 0, HISTORY) and request.options.sampling.penalised:
        raise Problem(
            400,
            f"repeat_last_n cannot be {window}: penalties look at the last {HISTORY} tokens.",
            "repeat_last_n",
        )


def format_of(form: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """The format as `response_format` of a chat body."""
    if form is None or form == "":
        return None
    if form == "json":
        return {"type": "json_object"}
    if isinstance(form, str):
        raise Problem(400, f"format cannot be '{form:.40}': give json or a schema.", "format")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form}}


def thinking_values(think: bool | str | None, pair: Pair) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values of a chat body, and `think` among the fields without an effect if it is one.

    Raises Problem 400 for a model that does not think.
    """
    template = pair.template
    if think is None or think == "":
        return {}, ()
    if not template.thinks:
        if think is False:
            return {}, ()
        raise Problem(400, "this model does not support thinking. (Leave think out.)", "think")
    if isinstance(think, str):
        if think not in EFFORTS:
            words = ", ".join(EFFORTS)
            message = f"think cannot be '{think:.20}': give true, false, or one of {words}."
            raise Problem(400, message, "think")
        return {"reasoning_effort": think}, ()
    if template.think_switch is not None:
        return {"chat_template_kwargs": {"enable_thinking": think}}, ()
    return {}, () if think else ("think (this model always thinks)",)


# Messages in the form of OpenAI's chat API


def chat_messages(messages: list[Any]) -> list[Any]:
    """Messages whose calls have ids, which results name.

    Ollama's results have the name of their tool, or only its place. Raises Problem 400 for images.
    """
    result: list[Any] = []
    waiting: list[tuple[str, str]] = []  # id and name of calls without a result
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            result.append(message)  # which is refused with the others that are wrong
            continue
        if message.get("images"):
            place = f"messages.{number}.images"
            raise Problem(400, f"{place}: this server reads text only.", place)
        role = message.get("role")
        role = role.lower() if isinstance(role, str) else role
        own: dict[str, Any] = {"role": role, "content": message.get("content") or ""}
        if role == "assistant":
            own["reasoning_content"] = message.get("thinking")
            own["tool_calls"] = calls_with_ids(message.get("tool_calls"), f"call_{number}")
            waiting += [(call["id"], name_of(call)) for call in own["tool_calls"]]
        elif role == "tool":
            own |= answered_call(message, waiting, f"call_{number}")
        result.append(own)
    return result


def calls_with_ids(calls: Any, start: str) -> list[dict[str, Any]]:
    listed = calls if isinstance(calls, list) else [calls] if calls else []
    return [
        {"id": f"{start}_{number}", **(call if isinstance(call, dict) else {})}
        for number, call in enumerate(listed)
    ]


def name_of(call: dict[str, Any]) -> str:
    """The name of a call's tool; empty for a call without one, which is refused later."""
    function = call.get("function")
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def answered_call(
    message: dict[str, Any], waiting: list[tuple[str, str]], otherwise: str
) -> dict[str, str]:
    """The id and the name of the call whose result a message is; removes it from `waiting`.

    That of its id, else of its tool's name, else the first one. otherwise: the id without a call.
    """
    asked_id = message.get("tool_call_id")
    asked_name = message.get("tool_name") or message.get("name")
    for call in waiting:
        if asked_id in (None, "", call[0]) and (asked_id or asked_name in (None, "", call[1])):
            waiting.remove(call)
            return {"tool_call_id": call[0], "name": call[1]}
    named = {"name": str(asked_name)} if asked_name else {}
    return {"tool_call_id": str(asked_id or otherwise), **named}


# Answers in the form of Ollama's API


def tagged(name: str) -> str:
    """A model's name as Ollama lists it: always with a tag."""
    return name if ":" in name else name + LATEST


def time_text(seconds: float) -> str:
    """A time since 1970 as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return round(1e9 * seconds)


def head(model: str) -> dict[str, Any]:
    """The fields that every line of an answer begins with."""
    return {"model": model, "created_at": time_text(time.time())}


def chat_part(text: str, thinking: str = "", calls: Sequence[Any] = ()) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = list(calls)
    return {"message": message}


def generate_part(text: str, thinking: str = "", calls: Sequence[Any] = ()) -> dict[str, Any]:
    return {"response": text, **({"thinking": thinking} if thinking else {})}


def chat_ping(model: str) -> bytes:
    """A line that adds nothing to an answer to /api/chat."""
    return json_line({**head(model), **chat_part(""), "done": False})


def generate_ping(model: str) -> bytes:
    return json_line({**head(model), **generate_part(""), "done": False})


def loaded_reply(body: OllamaBody, model: str, reason: str) -> dict[str, Any]:
    part = chat_part if isinstance(body, OllamaChatBody) else generate_part
    asked = body.model or tagged(model)
    return {**head(asked), **part(""), "done": True, "done_reason": reason}


def write_problem(problem: Problem) -> bytes:
    return json_line(problem.ollama())


class Calls:
    """Writes the calls of an answer. cut: the name of one that the answer's end cut."""

    def __init__(self) -> None:
        self._count = 0
        self.cut: str | None = None

    def add(self, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        """The calls that are complete, in Ollama's form."""
        complete = []
        for call in calls:
            try:
                arguments = json.loads(call.arguments or "{}") if call.complete else None
            except ValueError:
                arguments = None
            if arguments is None:
                self.cut = call.name
                continue
            function = {"index": self._count, "name": call.name, "arguments": arguments}
            self._count += 1
            complete.append({"id": f"call_{uuid.uuid4().hex[:24]}", "function": function})
        return complete


class OllamaWriter:
    def __init__(self, body: OllamaChatBody | GenerateBody, request: AnswerRequest, runner: Runner):
        self._body = body
        self._request = request
        self._runner = runner
        self._model = body.model or tagged(runner.name)
        self._part = chat_part if isinstance(body, OllamaChatBody) else generate_part
        self._calls = Calls()

    async def complete(self, choices: list[PreparedChoice]) -> dict[str, Any]:
        whole = Completion()
        calls: list[dict[str, Any]] = []
        async with aclosing(self._runner.answer(self._request, choices)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    whole.add(event)
                    calls += self._calls.add(event.calls)
        text = whole.text if whole.text.strip() or not calls else ""
        return {
            **head(self._model),
            **self._part(text, whole.thinking, calls),
            **self._logprobs(whole.logprobs),
            **self._end(whole),
        }

    async def stream(self, choices: list[PreparedChoice]) -> AsyncGenerator[bytes]:
        """The answer as lines of JSON. A call is sent when it is complete."""
        last: Delta | None = None
        async with aclosing(self._runner.answer(self._request, choices)) as events:
            async for event in events:
                if isinstance(event, Progress):
                    continue
                last = event
                calls = self._calls.add(event.calls)
                parts = []
                if event.thinking:  # alone: some clients read no text beside it
                    parts.append(self._part("", event.thinking))
                if event.text or calls:
                    parts.append(self._part(event.text, "", calls))
                logprobs = self._logprobs(event.logprobs)
                for part in parts or ([self._part("")] if logprobs else []):
                    yield json_line({**head(self._model), **part, **logprobs, "done": False})
                    logprobs = {}
        assert last is not None
        yield json_line({**head(self._model), **self._part(""), **self._end(last)})

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        if self._request.options.logprobs is None or not logprobs:
            return {}
        return {"logprobs": chat_logprobs(self._runner.pair.tokenizer, logprobs)}

    def _end(self, answer: Delta | Completion) -> dict[str, Any]:
        """The fields of the last line, by the last delta or the whole answer."""
        dflash = self._runner.dflash_fields(self._request, [answer])
        if self._calls.cut is not None:
            dflash["incomplete"] = f"the answer ended inside the call of {self._calls.cut}"
        reason = DONE[answer.finish_reason or "stop"]
        return {"done": True, "done_reason": reason, **self._durations(answer.stats)} | {
            "dflash": dflash
        }

    def _durations(self, stats: Stats) -> dict[str, int]:
        """Counts of tokens, and durations in nanoseconds."""
        return {
            "total_duration": nanoseconds(time.perf_counter() - self._request.began),
            "load_duration": nanoseconds(self._request.load_seconds),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": nanoseconds(stats.prefill_seconds),
            "eval_count": stats.generated,
            "eval_duration": nanoseconds(stats.decode_seconds),
        }
