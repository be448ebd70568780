"""OpenAI's `POST /v1/chat/completions`: a body to a request, deltas to chunks.

https://platform.openai.com/docs/api-reference/chat
"""

import json
import re
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from mlx_lm.tokenizer_utils import TokenizerWrapper
from pydantic import Field

from dflash_mlx import __version__
from dflash_mlx.chat.messages import Messages
from dflash_mlx.chat.tool_parser import ToolCallDelta, named_calls
from dflash_mlx.constrained.tool_calls import forced_calls
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError
from dflash_mlx.grammar import Grammar
from dflash_mlx.options import Effort
from dflash_mlx.pair import Pair
from dflash_mlx.types import TokenLogprob

from .answer_request import (
    AnswerRequest,
    Completion,
    Delta,
    Progress,
    dflash_fields,
    prompt_progress,
    timings,
    usage,
)
from .protocol import (
    Fields,
    Integer,
    Problem,
    SamplingFields,
    Settings,
    answer_range,
    check_tools,
    read_body,
    reject_unsupported,
    sse_event,
)
from .runner import PreparedChoice, Runner

# Messages in the form of chat templates

ROLES = ("system", "developer", "user", "assistant", "tool")


def template_messages(messages: list[Any]) -> Messages:
    """Raises Problem 400 that names the wrong message and field.

    System messages at the start become one, because many templates allow only one.
    """
    if not messages:
        raise Problem(400, "messages is empty.", param="messages")
    result: Messages = []
    for number, body_message in enumerate(messages):
        message = read_message(body_message, f"messages.{number}")
        is_system = message["role"] == "system"
        if is_system and result and all(earlier["role"] == "system" for earlier in result):
            result[0]["content"] += "\n\n" + message["content"]
        else:
            result.append(message)
    return result


def read_message(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise Problem(400, f"{place} is not an object.", param=place)
    role = message.get("role")
    if role not in ROLES:
        raise Problem(400, f"{place}.role must be one of {', '.join(ROLES)}.", f"{place}.role")
    if role == "developer":
        role = "system"
    content = text_of(message.get("content"), f"{place}.content")
    calls = message.get("tool_calls") or []
    if content is None and role != "assistant":
        raise Problem(400, f"{place}.content is missing.", f"{place}.content")
    result: dict[str, Any] = {"role": role, "content": content or ""}
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str):
            result["reasoning_content"] = reasoning
        if calls:
            result["tool_calls"] = read_calls(calls, f"{place}.tool_calls")
            if isinstance(reasoning, str) and not content:
                result["thinking"] = reasoning  # gpt-oss's template refuses it beside content
    for name in ("name", "tool_call_id"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    if role == "tool" and "tool_call_id" not in result:
        raise Problem(400, f"{place}.tool_call_id is missing.", f"{place}.tool_call_id")
    return result


def read_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    """The calls of an assistant's message, with their arguments as objects."""
    result = []
    for number, call in enumerate(calls if isinstance(calls, list) else [None]):
        call = call if isinstance(call, dict) else {}
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Problem(400, f"{place}.{number} is no call of a function.", place)
        arguments = function.get("arguments") or "{}"
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                raise Problem(
                    400, f"{place}.{number}.function.arguments is not JSON.", place
                ) from None
        result.append(
            {
                "type": "function",
                "id": str(call.get("id", "")),
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return result


def text_of(content: Any, place: str) -> str | None:
    """A content as text; None without one. Raises Problem 400 for images and other parts."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Problem(400, f"{place} must be a text or a list of parts.", place)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise Problem(
                400,
                f"{place}.{number} is of the type '{kind!s:.40}': this server reads text only.",
                f"{place}.{number}",
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise Problem(400, f"{place}.{number} has no text.", f"{place}.{number}")
        texts.append(text)
    return "\n".join(texts)


# Log-probabilities in the forms of OpenAI's two completion APIs

MIN_LOGPROB = -9999.0  # as in OpenAI's API, because JSON has no infinity


def chat_logprobs(
    tokenizer: TokenizerWrapper, logprobs: Sequence[TokenLogprob]
) -> list[dict[str, Any]]:
    """`choices[].logprobs.content` of a chat completion."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.decode([token])
        return {"token": text, "logprob": max(logprob, MIN_LOGPROB), "bytes": list(text.encode())}

    return [
        entry(position.token, position.logprob)
        | {"top_logprobs": [entry(token, logprob) for token, logprob in position.top]}
        for position in logprobs
    ]


def text_logprobs(
    tokenizer: TokenizerWrapper, logprobs: Sequence[TokenLogprob], offset: int
) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion; `offset`: characters before these tokens."""
    texts = [tokenizer.decode([position.token]) for position in logprobs]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(position.logprob, MIN_LOGPROB) for position in logprobs],
        "top_logprobs": [
            {
                tokenizer.decode([token]): max(logprob, MIN_LOGPROB)
                for token, logprob in position.top
            }
            for position in logprobs
        ],
        "text_offset": offsets,
    }


# Tools of a request, and which of them the answer may or must call

ToolSchemas = list[dict[str, Any]]


class Function(Fields):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[\w.\-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Fields):
    """A tool; only functions are supported."""

    type: Literal["function"]
    function: Function


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The grammar of the answer, and the tools in its prompt.

    parser_tools, single_call: as in `AnswerRequest`.
    """

    grammar: Grammar | None
    tools: ToolSchemas
    parser_tools: ToolSchemas | None
    single_call: bool = False


def tool_use(
    tools: list[Tool] | None,
    choice: str | dict[str, Any] | None,
    parallel: bool | None,
    grammar: Grammar | None,
    pair: Pair,
) -> ToolUse:
    """Convert the fields for tools. `grammar`: the grammar of an answer without calls.

    A named function is called once; `required` allows several calls, unless `parallel` is False.
    Raises Problem 400 for fields that contradict each other or are not supported.
    """
    schemas = [tool.model_dump(exclude_none=True) for tool in tools or []]
    name = function_name(choice)
    kind = "named" if name else choice or "auto"
    if kind not in ("auto", "none", "required", "named"):
        raise Problem(
            400, "tool_choice must be auto, none, required, or a function.", "tool_choice"
        )
    if kind in ("required", "named") and not schemas:
        raise Problem(400, "tool_choice needs tools.", "tool_choice")
    if kind == "none" or not schemas:
        return ToolUse(grammar, [], None)
    check_tools(pair)
    callable_tools = [tool for tool in schemas if name in (None, tool["function"]["name"])]
    if not callable_tools:
        raise Problem(
            400, f"tool_choice names '{name:.100}', which is none of the tools.", "tool_choice"
        )
    single_call = parallel is False or kind == "named"
    if kind == "auto" and grammar is None:
        return ToolUse(None, schemas, schemas, single_call)
    field = "tool_choice" if kind != "auto" else "response_format"
    try:
        forced = forced_calls(
            pair.tokenizer,
            callable_tools,
            single_call=single_call,
            otherwise=grammar if kind == "auto" else None,
        )
    except DFlashError as error:
        beside = " beside tools" if kind == "auto" else ""
        message = f"{field}{beside} cannot be kept: {error.message}"
        raise Problem(400, f"{message} ({error.hint})", field) from error
    return ToolUse(forced.grammar, schemas, list(forced.tools), single_call)


def function_name(choice: Any) -> str | None:
    """The function that a tool_choice names, if it names one."""
    if not isinstance(choice, dict):
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise Problem(
            400, "tool_choice must be auto, none, required, or a function.", "tool_choice"
        )
    return name


FINISH = {"stop": "stop", "length": "length", "calls": "tool_calls"}
FINGERPRINT = f"dflash-{__version__}"
USE_RESPONSE_FORMAT = "use response_format"
USE_LOGIT_BIAS = "use logit_bias against the tokens that end an answer"
UNSUPPORTED = {
    "grammar": USE_RESPONSE_FORMAT,
    "json_schema": USE_RESPONSE_FORMAT,
    "guided_json": USE_RESPONSE_FORMAT,
    "structured_outputs": USE_RESPONSE_FORMAT,
    "format": USE_RESPONSE_FORMAT,
    "system": "use a message with the role system",
    "ignore_eos": USE_LOGIT_BIAS,
    "continue_final_message": "an answer is a message of its own",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "web_search_options": "nothing is searched here",
    "audio": "answers are text",
}


class StreamOptions(Fields):
    """include_usage: send the usage in a last chunk without choices."""

    include_usage: bool = False


class TemplateFields(Fields):
    """vLLM's and llama-server's fields to turn thinking on or off."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


class ChatBody(SamplingFields):
    """The body of a request."""

    messages: list[Any]
    model: str | None = None
    max_tokens: Annotated[Integer, answer_range("max_tokens")] | None = None
    max_completion_tokens: Annotated[Integer, answer_range("max_tokens")] | None = None
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
    grammar: Any = None
    json_schema: Any = None
    guided_json: Any = None
    structured_outputs: Any = None
    format: Any = None
    system: Any = None
    ignore_eos: Any = None
    continue_final_message: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None
    audio: Any = None


def to_request(body: ChatBody, pair: Pair, settings: Settings) -> AnswerRequest:
    """Raises Problem 400 for fields that are wrong or not supported."""
    reject_unsupported(body, UNSUPPORTED)
    if body.modalities and body.modalities != ["text"]:
        raise Problem(400, "modalities is not supported: answers are text.", "modalities")
    if body.top_logprobs is not None and not body.logprobs:
        raise Problem(400, "top_logprobs needs logprobs to be true.", "top_logprobs")
    grammar = grammar_of(body.response_format)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls, grammar, pair)
    think, effort = thinking_of(body, pair)
    options = replace(
        body.options(settings.options),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=stop_strings(body.stop) or settings.options.stop,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        grammar=use.grammar,
        tools=use.tools,
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
    )


def grammar_of(form: dict[str, Any] | None) -> Grammar | None:
    """The grammar of a response_format; None for free text."""
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return None
    if kind == "json_object" and form.get("schema") is None:
        return Grammar("json_object")
    # llama-server puts the schema into a json_object, OpenAI into a json_schema.
    holder = form if kind == "json_object" else form.get("json_schema")
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if kind not in ("json_object", "json_schema") or not isinstance(schema, dict):
        raise Problem(
            400,
            "response_format must be text, json_object, or json_schema with a schema.",
            "response_format",
        )
    try:
        return Grammar.of_schema(schema)
    except DFlashError as error:
        raise Problem(400, f"response_format: {error.message}", "response_format") from error


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > 16 or not all(strings):
        raise Problem(400, "stop must be up to 16 strings that are not empty.", "stop")
    return strings


def thinking_of(body: ChatBody, pair: Pair) -> tuple[bool | None, Effort | None]:
    """Whether to think and how hard, as far as the model's template supports it."""
    switches = body.chat_template_kwargs or TemplateFields()
    think = switches.thinking if switches.enable_thinking is None else switches.enable_thinking
    effort = body.reasoning_effort
    if effort is None:
        return think, None
    template = pair.template
    if effort in template.efforts:
        return think, effort  # type: ignore[return-value]
    if template.think_switch is not None:
        return effort != "none" if think is None else think, None
    if effort == "none" or template.effort_switch is None:
        return think, None  # a model that does not think has no effort to set
    raise Problem(
        400,
        f"reasoning_effort cannot be '{effort:.20}': give {', '.join(template.efforts)}.",
        "reasoning_effort",
    )


class ChatWriter:
    """Writes the answers to one request, as one object or as a stream."""

    def __init__(self, body: ChatBody, request: AnswerRequest, runner: Runner):
        self._body = body
        self._request = request
        self._runner = runner
        self._tokenizer = runner.pair.tokenizer
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": runner.name,
            "system_fingerprint": FINGERPRINT,
        }
        self._ids: dict[tuple[int, int], str] = {}

    async def complete(self, choices: list[PreparedChoice]) -> dict[str, Any]:
        """The answer as one object."""
        completions = await self._runner.complete(self._request, choices)
        stats = [completion.stats for completion in completions]
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [
                self._choice(index, completion) for index, completion in enumerate(completions)
            ],
            "usage": usage(stats),
            "timings": timings(stats[0]),
            "dflash": self._dflash_fields(stats),
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
            message["tool_calls"] = [
                {
                    "id": self._call_id(index, number),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for number, call in enumerate(completion.calls)
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(completion.logprobs),
            "finish_reason": FINISH[completion.finish_reason],
        }

    async def stream(self, choices: list[PreparedChoice]) -> AsyncGenerator[bytes]:
        """The answer as server-sent events."""
        for choice in choices:
            yield self._chunk(choice.index, {"role": "assistant", "content": ""})
        stats: dict[int, Stats] = {}
        include_usage = (self._body.stream_options or StreamOptions()).include_usage
        ended = 0
        async with aclosing(self._runner.answer(self._request, choices)) as events:
            async for event in events:
                if isinstance(event, Progress):
                    yield self._progress(event)
                    continue
                stats[event.index] = event.stats
                if line := self._delta(event):
                    yield line
                if event.finish_reason:
                    ended += 1
                    # Only clients that ask for usage expect a chunk without choices.
                    is_last = ended == len(choices) and not include_usage
                    extras = self._extras(stats) if is_last else {}
                    yield self._chunk(event.index, {}, FINISH[event.finish_reason], **extras)
        if include_usage:
            counts = usage([stats[index] for index in sorted(stats)])
            head = {**self._head, "object": "chat.completion.chunk", "choices": []}
            yield sse_event({**head, "usage": counts, **self._extras(stats)})
        yield sse_event("[DONE]")

    def _extras(self, stats: dict[int, Stats]) -> dict[str, Any]:
        """Fields beyond OpenAI's API."""
        ordered = [stats[index] for index in sorted(stats)]
        return {"timings": timings(ordered[0]), "dflash": self._dflash_fields(ordered)}

    def _dflash_fields(self, stats: list[Stats]) -> dict[str, Any]:
        return dflash_fields(stats, self._runner.pair, self._runner.settings.options.mode)

    def _delta(self, delta: Delta) -> bytes | None:
        """A delta as a chunk; None if it adds nothing."""
        change: dict[str, Any] = {}
        if delta.thinking:
            change["reasoning_content"] = delta.thinking
            change["reasoning"] = delta.thinking
        if delta.text:
            change["content"] = delta.text
        if delta.parts:
            change["tool_calls"] = [self._call_delta(delta.index, part) for part in delta.parts]
        if not change and not delta.logprobs:
            return None
        return self._chunk(delta.index, change, logprobs=self._logprobs(delta.logprobs))

    def _call_delta(self, index: int, part: ToolCallDelta) -> dict[str, Any]:
        """A part of a call; only the first one has its id and name."""
        if not part.name:
            return {"index": part.number, "function": {"arguments": part.arguments}}
        return {
            "index": part.number,
            "id": self._call_id(index, part.number),
            "type": "function",
            "function": {"name": part.name, "arguments": part.arguments},
        }

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

    def _call_id(self, index: int, number: int) -> str:
        return self._ids.setdefault((index, number), f"call_{uuid.uuid4().hex[:24]}")


# Requests of other APIs as requests of OpenAI's chat API


def to_chat_request(
    values: dict[str, Any], names: dict[str, str], pair: Pair, settings: Settings
) -> AnswerRequest:
    """The request of a chat body with these values; None is a missing value.

    Raises Problem 400 as `to_request`. `names`: the other API's names of chat fields, for errors.
    """
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return to_request(read_body(ChatBody, given), pair, settings)
    except Problem as problem:
        for chat_name, own_name in names.items():
            problem.message = re.sub(rf"\b{chat_name}\b", own_name, problem.message)
            if problem.param == chat_name:
                problem.param = own_name
        raise


def sampling_values(body: SamplingFields) -> dict[str, Any]:
    """A body's values of the fields that all APIs share."""
    return {name: getattr(body, name) for name in SamplingFields.model_fields}
