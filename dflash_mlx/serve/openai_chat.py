"""OpenAI's `POST /v1/chat/completions`: a body to a request, deltas to chunks.

https://platform.openai.com/docs/api-reference/chat
"""

import re
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar

from dflash_mlx import __version__
from dflash_mlx.chat.template import EFFORT_VARIABLES
from dflash_mlx.chat.tool_parser import ToolCall, named_calls
from dflash_mlx.options import EFFORTS
from dflash_mlx.pair import Pair
from dflash_mlx.types import TokenLogprob

from .answer_request import (
    AnswerRequest,
    Completion,
    Delta,
    Progress,
    prompt_progress,
    timings,
    usage,
)
from .body import Fields, Integer, SamplingFields, TokenLimit, answer_range, read_body
from .chat_messages import template_messages
from .chat_tools import Tool, tool_use
from .fields import MAX_IGNORED, shown_name
from .logprobs import chat_logprobs
from .output_format import grammar_of
from .protocol import Problem, Settings, sse_event
from .runner import PreparedChoice, Runner

LEVELS = ("none", *EFFORTS)
FINISH = {"stop": "stop", "length": "length", "calls": "tool_calls"}


class StreamOptions(Fields):
    """include_usage: send the usage in a last chunk without choices."""

    include_usage: bool = False


class TemplateFields(Fields):
    """vLLM's and llama-server's fields to turn thinking on or off.

    Others are variables of the template, or without an effect.
    """

    enable_thinking: bool | None = None
    thinking: bool | None = None


class ChatBody(SamplingFields):
    messages: list[Any]
    model: str | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    n: Integer | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Integer, answer_range("logprobs")] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateFields | None = None
    modalities: list[str] | None = None
    return_progress: bool | None = None
    return_passes: bool | None = None


def to_request(body: ChatBody, pair: Pair, settings: Settings) -> AnswerRequest:
    """Raises Problem 400 for fields that are wrong or not supported."""
    if body.modalities and body.modalities != ["text"]:
        raise Problem(400, "modalities is not supported: answers are text.", "modalities")
    if body.top_logprobs is not None and not body.logprobs:
        raise Problem(400, "top_logprobs needs logprobs to be true.", "top_logprobs")
    grammar = grammar_of(body, body.response_format)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls, grammar, pair)
    think, effort, ignored = thinking_of(body, pair)
    variables, unread = variables_of(body, pair)
    options = replace(
        body.options(settings.options),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=stop_strings(body.stop) or settings.options.stop,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        grammar=use.grammar,
        tools=use.tools,
        chat_template_kwargs=variables,
    )
    if think is not None:
        options = replace(options, think=think)
    if effort is not None:
        options = replace(options, reasoning_effort=effort)
    return AnswerRequest(
        prompt=named_calls(template_messages(body.messages), pair.tokenizer),
        options=options,
        choices=1 if body.n is None else body.n,
        parser_tools=use.parser_tools,
        single_call=use.single_call,
        return_progress=bool(body.return_progress),
        ignored=(*ignored, *unread),
    )


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > 16 or not all(strings):
        raise Problem(400, "stop must be up to 16 strings that are not empty.", "stop")
    return strings


def thinking_of(body: ChatBody, pair: Pair) -> tuple[bool | None, str | None, list[str]]:
    """Whether to think and how hard, as far as the model's template supports it.

    Also what becomes of an effort that the template lacks: it is the nearest one.
    """
    switches = body.chat_template_kwargs or TemplateFields()
    think = switches.thinking if switches.enable_thinking is None else switches.enable_thinking
    effort = body.reasoning_effort or effort_in(switches)
    template = pair.template
    efforts = template.efforts
    if effort is None or effort in efforts:
        return think, effort, []
    if template.think_switch is not None and (effort == "none" or not efforts):
        return effort != "none" if think is None else think, None, []
    if not efforts:
        return think, None, []  # a model that does not think has no effort to set
    if effort not in LEVELS:
        message = f"reasoning_effort cannot be '{effort:.20}': give {', '.join(efforts)}."
        raise Problem(400, message, "reasoning_effort")
    place = LEVELS.index(effort)
    nearest = min(efforts, key=lambda known: abs(LEVELS.index(known) - place - 0.1))
    return think, nearest, [f"reasoning_effort {effort} (this model has {nearest} nearest to it)"]


def effort_in(switches: TemplateFields) -> str | None:
    """An effort among the variables of the template."""
    values = switches.model_extra or {}
    return next((v for n in EFFORT_VARIABLES if isinstance(v := values.get(n), str)), None)


def variables_of(body: ChatBody, pair: Pair) -> tuple[dict[str, Any], list[str]]:
    """The other variables of the template in a body, and those that it does not read."""
    given = (body.chat_template_kwargs or TemplateFields()).model_extra or {}
    known = pair.template.variables
    others = {n: v for n, v in given.items() if n not in EFFORT_VARIABLES or not isinstance(v, str)}
    unread = [shown_name(f"chat_template_kwargs.{name}") for name in others if name not in known]
    if len(unread) > MAX_IGNORED:
        raise Problem(400, "more than 200 fields of the body have no effect.")
    read = {name: value for name, value in others.items() if name in known}
    return read, [f"{name} (the chat template does not read it)" for name in unread]


def write_problem(problem: Problem) -> bytes:
    return sse_event(problem.openai()) + sse_event("[DONE]")


class OpenAIWriter:
    """Writes the answers to one request; the chat API and that of completions add their own form.

    ids: how the answers' ids begin.
    """

    ids: ClassVar[str]

    def __init__(self, body: Any, request: AnswerRequest, runner: Runner):
        self._body = body
        self._request = request
        self._runner = runner
        self._tokenizer = runner.pair.tokenizer
        self._head = {
            "id": f"{self.ids}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": runner.name,
            "system_fingerprint": f"dflash-{__version__}",
        }

    def _extras(self, ended: Sequence[Delta | Completion]) -> dict[str, Any]:
        """Fields beyond OpenAI's API, by the end of each choice."""
        dflash = self._runner.dflash_fields(self._request, ended)
        return {"timings": timings(ended[0].stats), "dflash": dflash}


class ChatWriter(OpenAIWriter):
    ids = "chatcmpl"

    async def complete(self, choices: list[PreparedChoice]) -> dict[str, Any]:
        completions = await self._runner.complete(self._request, choices)
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [
                self._choice(index, completion) for index, completion in enumerate(completions)
            ],
            "usage": usage([completion.stats for completion in completions]),
            **self._extras(completions),
        }

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        has_content = completion.text.strip() or not completion.calls
        message: dict[str, Any] = {
            "role": "assistant",
            "content": completion.text if has_content else None,
            "refusal": None,
        }
        if completion.thinking:
            message["reasoning_content"] = completion.thinking
            message["reasoning"] = completion.thinking
        if completion.calls:
            message["tool_calls"] = [call_fields(call) for call in completion.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(completion.logprobs),
            "finish_reason": FINISH[completion.finish_reason],
        }

    async def stream(self, choices: list[PreparedChoice]) -> AsyncGenerator[bytes]:
        for choice in choices:
            yield self._chunk(choice.index, {"role": "assistant", "content": ""})
        last: dict[int, Delta] = {}
        include_usage = (self._body.stream_options or StreamOptions()).include_usage
        ended = 0
        async with aclosing(self._runner.answer(self._request, choices)) as events:
            async for event in events:
                if isinstance(event, Progress):
                    yield self._progress(event)
                    continue
                last[event.index] = event
                if line := self._delta(event):
                    yield line
                if event.finish_reason:
                    ended += 1
                    # Only clients that ask for usage expect a chunk without choices.
                    is_last = ended == len(choices) and not include_usage
                    extras = self._extras(in_order(last)) if is_last else {}
                    yield self._chunk(event.index, {}, FINISH[event.finish_reason], **extras)
        if include_usage:
            counts = usage([delta.stats for delta in in_order(last)])
            head = {**self._head, "object": "chat.completion.chunk", "choices": []}
            yield sse_event({**head, "usage": counts, **self._extras(in_order(last))})
        yield sse_event("[DONE]")

    def _delta(self, delta: Delta) -> bytes | None:
        """A delta as a chunk; None if it adds nothing."""
        change: dict[str, Any] = {}
        if delta.thinking:
            change["reasoning_content"] = delta.thinking
            change["reasoning"] = delta.thinking
        if delta.text:
            change["content"] = delta.text
        if delta.calls:
            change["tool_calls"] = [
                {"index": call.number, **call_fields(call)} for call in delta.calls
            ]
        extras: dict[str, Any] = {}
        if self._body.return_passes and delta.target_pass:
            extras["dflash"] = {"pass": asdict(delta.target_pass)}
        if not change and not delta.logprobs and not extras:
            return None
        return self._chunk(delta.index, change, logprobs=self._logprobs(delta.logprobs), **extras)

    def _chunk(
        self,
        index: int,
        change: dict[str, Any],
        finish_reason: str | None = None,
        *,
        logprobs: Any = None,
        **extras: Any,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": change,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        head = {**self._head, "object": "chat.completion.chunk"}
        return sse_event({**head, "choices": [choice], **extras})

    def _progress(self, progress: Progress) -> bytes:
        head = {**self._head, "object": "chat.completion.chunk", "choices": []}
        return sse_event({**head, "prompt_progress": prompt_progress(progress)})

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if self._request.options.logprobs is None:
            return None
        return {"content": chat_logprobs(self._tokenizer, logprobs), "refusal": None}


def in_order(last: Mapping[int, Delta]) -> list[Delta]:
    """The last delta of each choice."""
    return [last[index] for index in sorted(last)]


def call_fields(call: ToolCall) -> dict[str, Any]:
    """A call with a new id."""
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


# Requests of other APIs as requests of OpenAI's chat API


def to_chat_request(
    values: dict[str, Any], names: dict[str, str], pair: Pair, settings: Settings
) -> AnswerRequest:
    """The request of a chat body with these values; None is a missing value.

    Raises Problem 400 as `to_request`. `names`: the other API's names of chat fields, for errors.
    """
    with own_names(names):
        return to_request(read_body(ChatBody, given(values)), pair, settings)


def given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def own_names(names: dict[str, str]) -> Iterator[None]:
    """Errors inside have the names of another API's fields; `names`: by OpenAI's names."""
    try:
        yield
    except Problem as problem:
        for chat_name, own_name in names.items():
            problem.message = re.sub(rf"\b{chat_name}\b", own_name, problem.message)
            if problem.param == chat_name:
                problem.param = own_name
        raise


def sampling_values(body: SamplingFields) -> dict[str, Any]:
    return {name: getattr(body, name) for name in SamplingFields.model_fields}
