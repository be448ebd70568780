"""Ollama's `POST /api/chat` and `POST /api/generate`: a body to a request, deltas to lines of JSON.

https://docs.ollama.com/api
"""

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from dflash_mlx.answer import Answer, found
from dflash_mlx.options import EFFORTS
from dflash_mlx.pair import Pair
from dflash_mlx.speculation.sampling import HISTORY
from dflash_mlx.types import Block, TokenLogprob

from . import openai_completions
from .answer_request import AnswerRequest
from .body import NO_LIMIT, SamplingFields, answer_range, read_body
from .chat_messages import Tool
from .fields import OLLAMA_CHAT, OLLAMA_GENERATE
from .keep_alive import parse_keep_alive
from .openai_chat import given, own_names, sampling_values, to_chat_request
from .openai_completions import CompletionBody
from .protocol import LATEST, Problem, Settings, wrong
from .streams import JSON_LINES, json_line
from .writer import Writer

NAMES = {"reasoning_effort": "think", "response_format": "format", "max_tokens": "num_predict"}
DONE = {"stop": "stop", "length": "length", "calls": "stop"}


class ModelOptions(SamplingFields):
    """The fields that Ollama's clients put into the object `options`.

    num_ctx: the limit for prompt and answer in tokens. num_predict: that of the answer; below 1
    the rest of the context.
    """

    num_ctx: Annotated[int, Field(ge=2)] | None = None
    num_predict: Annotated[int, Field(ge=-2)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1)] | None = None
    stop: str | list[str] | None = None


class OllamaBody(ModelOptions):
    """What both bodies have. `options` may hold the fields of `ModelOptions`, which leave it.

    asked: the name of the field with the prompt. stream: is true unless a body says no.
    keep_alive: seconds loaded after the answer; None is the server's.
    """

    asked: ClassVar[str]
    model: str | None = None
    stream: bool = True
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: Annotated[float, BeforeValidator(parse_keep_alive)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, answer_range("logprobs")] | None = None

    @model_validator(mode="before")
    @classmethod
    def merge_options(cls, body: dict[str, Any]) -> dict[str, Any]:
        """The body with its options beside its other fields.

        Raises Problem 400 for options that are fields of the body, and for a field in both places.
        """
        options = {} if body.get("options") is None else body["options"]
        if not isinstance(options, dict):
            raise wrong("options", "must be an object")
        for name in options:
            if name in cls.model_fields and name not in ModelOptions.model_fields:
                raise Problem(400, f"options.{name} is a field of the body itself.", "options")
            if name in body:
                raise wrong(name, "is in options and beside it: give one")
        ours = ("options", "stream") if body.get("stream") is None else ("options",)
        return {name: value for name, value in body.items() if name not in ours} | options

    @property
    def only_loads(self) -> bool:
        return not getattr(self, self.asked)


class OllamaChatBody(OllamaBody):
    asked: ClassVar[str] = "messages"
    messages: list[Any] | None = None
    tools: list[Tool] | None = None


class GenerateBody(OllamaBody):
    """The body of /api/generate. raw: without the chat template."""

    asked: ClassVar[str] = "prompt"
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


def to_request(
    body: OllamaChatBody | GenerateBody, pair: Pair, settings: Settings
) -> AnswerRequest:
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
    window = body.repeat_last_n
    if window not in (None, 0, HISTORY) and request.options.sampling.penalised:
        why = f"cannot be {window}: penalties look at the last {HISTORY} tokens"
        raise wrong("repeat_last_n", why)
    return replace(request, ignored=(*request.ignored, *ignored), context=body.num_ctx)


def to_raw_request(body: GenerateBody, pair: Pair, settings: Settings) -> AnswerRequest:
    for name in ("system", "think"):
        if getattr(body, name):
            raise wrong(name, "needs the chat template, which raw leaves out")
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


def format_of(form: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if form is None or form == "":
        return None
    if form == "json":
        return {"type": "json_object"}
    if isinstance(form, str):
        raise wrong("format", f"cannot be '{form:.40}': give json or a schema")
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
            raise wrong("think", f"cannot be '{think:.20}': give true, false, or one of {words}")
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
            calls = message.get("tool_calls") or []
            own["tool_calls"] = []
            for place, call in enumerate(calls if isinstance(calls, list) else [calls]):
                call = {"id": f"call_{number}_{place}"} | (call if isinstance(call, dict) else {})
                own["tool_calls"].append(call)
                function = call.get("function")
                name = str(function.get("name", "")) if isinstance(function, dict) else ""
                waiting.append((call["id"], name))
        elif role == "tool":
            own |= answered_call(message, waiting, f"call_{number}")
        result.append(own)
    return result


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
    return name if ":" in name else name + LATEST


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return round(1e9 * seconds)


class OllamaWriter(Writer):
    """Writes lines of JSON; a call is in the line after its end."""

    to_request = staticmethod(to_request)
    content_type = JSON_LINES

    def __init__(self, *given: Any):
        super().__init__(*given)
        self._model = self.body.model or tagged(self.runner.name)
        self._count = 0
        self._cut: str | None = None  # the name of a call that the answer's end cut

    @classmethod
    def part(cls, text: str, thinking: str, calls: Sequence[Any]) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def line(
        cls, name: str, text: str = "", thinking: str = "", calls: Sequence[Any] = (), **more: Any
    ) -> dict[str, Any]:
        part = cls.part(text, thinking, calls)
        return {"model": name, "created_at": time_text(time.time()), **part, **more}

    @classmethod
    def ping(cls, name: str, comment: str) -> bytes:
        return json_line(cls.line(name, done=False))

    @classmethod
    def loading(cls, name: str) -> bytes:
        return cls.ping(name, "")

    @staticmethod
    def problem(problem: Problem) -> bytes:
        return json_line(problem.ollama())

    @classmethod
    def loaded(cls, body: OllamaBody, model: str, reason: str) -> dict[str, Any]:
        return cls.line(body.model or tagged(model), done=True, done_reason=reason)

    def whole(self) -> dict[str, Any]:
        (answer,) = self.answers
        calls = self._calls(answer)
        text = answer.text if answer.text.strip() or not calls else ""
        more = self._logprobs(answer.logprobs) | self._end()
        return self.line(self._model, text, answer.thinking, calls, **more)

    def block(self, index: int, block: Block) -> Iterator[bytes]:
        calls = self._calls(block)
        more: dict[str, Any] = self._logprobs(block.logprobs) | {"done": False}
        if block.thinking:  # alone: some clients read no text beside it
            yield json_line(self.line(self._model, "", block.thinking, **more))
            more = {"done": False}
        if block.text or calls or "logprobs" in more:
            yield json_line(self.line(self._model, block.text, "", calls, **more))

    def end(self) -> Iterator[bytes]:
        yield json_line(self.line(self._model, **self._end()))

    def _calls(self, answer: Answer | Block) -> list[dict[str, Any]]:
        complete = []
        for call in found(answer):
            try:
                arguments = json.loads(call.arguments or "{}") if call.complete else None
            except ValueError:
                arguments = None
            if arguments is None:
                self._cut = call.name
                continue
            function = {"index": self._count, "name": call.name, "arguments": arguments}
            self._count += 1
            complete.append({"id": f"call_{uuid.uuid4().hex[:24]}", "function": function})
        return complete

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        content = self.logprobs(logprobs)
        return {"logprobs": content} if content else {}

    def _end(self) -> dict[str, Any]:
        """The fields of the last line. Durations are in nanoseconds."""
        (answer,) = self.answers
        stats = answer.stats
        dflash = self.dflash()
        if self._cut is not None:
            dflash["incomplete"] = f"the answer ended inside the call of {self._cut}"
        return {
            "done": True,
            "done_reason": DONE[answer.finish_reason],
            "total_duration": nanoseconds(time.perf_counter() - self.request.began),
            "load_duration": nanoseconds(self.request.load_seconds),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": nanoseconds(stats.prefill_seconds),
            "eval_count": stats.generated,
            "eval_duration": nanoseconds(stats.decode_seconds),
            "dflash": dflash,
        }


class OllamaChatWriter(OllamaWriter):
    path = OLLAMA_CHAT
    body_model = OllamaChatBody

    @classmethod
    def part(cls, text: str, thinking: str, calls: Sequence[Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = list(calls)
        return {"message": message}


class GenerateWriter(OllamaWriter):
    path = OLLAMA_GENERATE
    body_model = GenerateBody

    @classmethod
    def part(cls, text: str, thinking: str, calls: Sequence[Any]) -> dict[str, Any]:
        return {"response": text, **({"thinking": thinking} if thinking else {})}
