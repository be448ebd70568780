"""OpenAI's `POST /v1/chat/completions`: a body to a job, deltas to chunks.

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
from dflash_mlx.chat.tool_parser import named_calls
from dflash_mlx.constrained.tool_calls import forced_calls
from dflash_mlx.errors import DFlashError
from dflash_mlx.grammar import Grammar
from dflash_mlx.options import Effort
from dflash_mlx.pair import Pair
from dflash_mlx.types import TokenLogprob

from .job import Delta, Job, Progress, progress, timings, usage
from .job import Whole as WholeAnswer
from .protocol import (
    Fields,
    Problem,
    SamplingFields,
    Settings,
    Whole,
    check_tools,
    event,
    read_body,
    refuse,
)
from .runner import Prepared, Runner

# Messages of OpenAI's chat API in the form that chat templates read.

ROLES = ("system", "developer", "user", "assistant", "tool")


def template_messages(messages: list[Any]) -> Messages:
    """The messages; Problem 400 names what is wrong with which."""
    if not messages:
        raise Problem(400, "messages is empty.", param="messages")
    found: Messages = []
    for number, message in enumerate(messages):
        place = f"messages.{number}"
        one = read_message(message, place)
        if one["role"] == "system" and found and all(m["role"] == "system" for m in found):
            found[0]["content"] += "\n\n" + one["content"]
        else:
            found.append(one)
    return found


def read_message(message: Any, place: str) -> dict[str, Any]:
    """One message."""
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
    found: dict[str, Any] = {"role": role, "content": content or ""}
    if role == "assistant":
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str):
            found["reasoning_content"] = thought
        if calls:
            found["tool_calls"] = read_calls(calls, f"{place}.tool_calls")
            if isinstance(thought, str) and not content:
                found["thinking"] = thought  # gpt-oss's name; it refuses a text beside it
    for name in ("name", "tool_call_id"):
        if isinstance(message.get(name), str):
            found[name] = message[name]
    if role == "tool" and "tool_call_id" not in found:
        raise Problem(400, f"{place}.tool_call_id is missing.", f"{place}.tool_call_id")
    return found


def read_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    """An assistant's calls, their arguments as objects."""
    found = []
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
        found.append(
            {
                "type": "function",
                "id": str(call.get("id", "")),
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return found


def text_of(content: Any, place: str) -> str | None:
    """A content as text; None where there is none. Problem 400 for images and other parts."""
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


# Log-probabilities in the shapes of OpenAI's two completion APIs.

LEAST = -9999.0  # JSON has no infinity; OpenAI's own word for it


def chat_logprobs(
    tokenizer: TokenizerWrapper, found: Sequence[TokenLogprob]
) -> list[dict[str, Any]]:
    """`choices[].logprobs.content` of a chat completion."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.decode([token])
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(text.encode())}

    return [
        entry(one.token, one.logprob) | {"top_logprobs": [entry(*pair) for pair in one.top]}
        for one in found
    ]


def text_logprobs(
    tokenizer: TokenizerWrapper, found: Sequence[TokenLogprob], offset: int
) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion; `offset`: characters before these tokens."""
    texts = [tokenizer.decode([one.token]) for one in found]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(one.logprob, LEAST) for one in found],
        "top_logprobs": [
            {tokenizer.decode([token]): max(logprob, LEAST) for token, logprob in one.top}
            for one in found
        ],
        "text_offset": offsets,
    }


# Tools of a chat request, and whether and which of them the answer calls.

Told = list[dict[str, Any]]


class Function(Fields):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[\w.\-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Fields):
    """One tool."""

    type: Literal["function"]
    function: Function


@dataclass(frozen=True, slots=True)
class Chosen:
    """The form of the answer, and the tools that the model is told of.

    calls: the tools as a parser has to read calls of them; None where none are looked for.
    one_call: the first one ends the answer.
    """

    grammar: Grammar | None
    told: Told
    calls: Told | None
    one_call: bool = False


def chosen_tools(
    tools: list[Tool] | None,
    choice: str | dict[str, Any] | None,
    parallel: bool | None,
    grammar: Grammar | None,
    pair: Pair,
) -> Chosen:
    """What a request's fields say; `grammar` is of an answer that calls nothing.

    A named function is called once; `required` may call several times, unless `parallel` is False.
    Problem 400 for what cannot be had.
    """
    told = [tool.model_dump(exclude_none=True) for tool in tools or []]
    name = named(choice)
    kind = "named" if name else choice or "auto"
    if kind not in ("auto", "none", "required", "named"):
        raise Problem(
            400, "tool_choice must be auto, none, required, or a function.", "tool_choice"
        )
    if kind in ("required", "named") and not told:
        raise Problem(400, "tool_choice needs tools.", "tool_choice")
    if kind == "none" or not told:
        return Chosen(grammar, [], None)
    check_tools(pair)
    may = [tool for tool in told if name in (None, tool["function"]["name"])]
    if not may:
        raise Problem(
            400, f"tool_choice names '{name:.100}', which is none of the tools.", "tool_choice"
        )
    one = parallel is False or kind == "named"
    if kind == "auto" and grammar is None:
        return Chosen(None, told, told, one_call=one)
    what = "tool_choice" if kind != "auto" else "response_format"
    try:
        forced = forced_calls(
            pair.tokenizer, may, most_one=one, otherwise=grammar if kind == "auto" else None
        )
    except DFlashError as error:
        beside = " beside tools" if kind == "auto" else ""
        message = f"{what}{beside} cannot be kept: {error.message}"
        raise Problem(400, f"{message} ({error.hint})", what) from error
    return Chosen(forced.grammar, told, list(forced.tools), one_call=one)


def named(choice: Any) -> str | None:
    """The function that a choice names."""
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
OTHER_WORD = "use response_format"
UNSUPPORTED = {
    "grammar": OTHER_WORD,
    "json_schema": OTHER_WORD,
    "guided_json": OTHER_WORD,
    "structured_outputs": OTHER_WORD,
    "continue_final_message": "an answer is a message of its own",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "web_search_options": "nothing is searched here",
    "audio": "answers are text",
}


class StreamOptions(Fields):
    """What a stream has beside its deltas."""

    include_usage: bool = False


class TemplateFields(Fields):
    """vLLM's and llama-server's way to switch thinking."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


class ChatBody(SamplingFields):
    """A request's body."""

    messages: list[Any]
    model: str | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    n: Whole | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
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
    continue_final_message: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None
    audio: Any = None


def job_of(body: ChatBody, pair: Pair, settings: Settings) -> Job:
    """What a body asks for. Problem 400 for what cannot be had."""
    refuse(body, UNSUPPORTED)
    if body.modalities and body.modalities != ["text"]:
        raise Problem(400, "modalities is not supported: answers are text.", "modalities")
    if body.top_logprobs is not None and not body.logprobs:
        raise Problem(400, "top_logprobs needs logprobs to be true.", "top_logprobs")
    form = grammar_of(body.response_format)
    chosen = chosen_tools(body.tools, body.tool_choice, body.parallel_tool_calls, form, pair)
    think, effort = thinking_of(body, pair)
    options = replace(
        body.options(settings.options),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=stop_strings(body.stop) or settings.options.stop,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        grammar=chosen.grammar,
        tools=chosen.told,
    )
    if think is not None:
        options = replace(options, think=think)
    if effort is not None:
        options = replace(options, reasoning_effort=effort)
    return Job(
        prompt=named_calls(template_messages(body.messages), pair.tokenizer),
        options=options,
        choices=1 if body.n is None else body.n,
        calls=chosen.calls,
        one_call=chosen.one_call,
        progress=bool(body.return_progress),
    )


def grammar_of(form: dict[str, Any] | None) -> Grammar | None:
    """The form that a response_format asks for; None is free text."""
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return None
    if kind == "json_object" and form.get("schema") is None:
        return Grammar("json_object")
    named = form if kind == "json_object" else form.get("json_schema")  # llama-server's, OpenAI's
    schema = named.get("schema") if isinstance(named, dict) else None
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
    """The strings that end an answer."""
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(found) > 16 or any(not one for one in found):
        raise Problem(400, "stop must be up to 16 strings that are not empty.", "stop")
    return found


def thinking_of(body: ChatBody, pair: Pair) -> tuple[bool | None, Effort | None]:
    """Whether to think, and how hard, as far as the model's template knows it."""
    wished = body.chat_template_kwargs or TemplateFields()
    think = wished.enable_thinking if wished.enable_thinking is not None else wished.thinking
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
    """Writes one request's answers, whole or as a stream."""

    def __init__(self, body: ChatBody, job: Job, runner: Runner):
        self._body = body
        self._job = job
        self._runner = runner
        self._tokenizer = runner.pair.tokenizer
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": runner.settings.names[0],
            "system_fingerprint": FINGERPRINT,
        }
        self._ids: dict[tuple[int, int], str] = {}

    async def whole(self, choices: list[Prepared]) -> dict[str, Any]:
        """The answer as one object."""
        answers = await self._runner.whole(self._job, choices)
        stats = [one.stats for one in answers]
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(number, one) for number, one in enumerate(answers)],
            "usage": usage(stats),
            "timings": timings(stats[0]),
            "dflash": self._runner.describe(stats),
        }

    def _choice(self, number: int, answer: WholeAnswer) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text if answer.text.strip() or not answer.calls else None,
            "refusal": None,
        }
        if answer.thinking:
            message |= {"reasoning_content": answer.thinking, "reasoning": answer.thinking}
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": self._call_id(number, place),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for place, call in enumerate(answer.calls)
            ]
        return {
            "index": number,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": FINISH[answer.finish_reason],
        }

    async def stream(self, choices: list[Prepared]) -> AsyncGenerator[bytes]:
        """The answer as events."""
        for one in choices:
            yield self._chunk(one.choice, {"role": "assistant", "content": ""})
        last: dict[int, Any] = {}
        usage_asked = (self._body.stream_options or StreamOptions()).include_usage
        ended = 0
        async with aclosing(self._runner.answer(self._job, choices)) as events:
            async for found in events:
                if isinstance(found, Progress):
                    yield self._progress(found)
                    continue
                last[found.choice] = found.stats
                if line := self._delta(found):
                    yield line
                if found.finish_reason:
                    ended += 1
                    # Only who asks for usage expects a chunk without choices.
                    told = ended == len(choices) and not usage_asked
                    more = self._told(last) if told else {}
                    yield self._chunk(found.choice, {}, FINISH[found.finish_reason], **more)
        if usage_asked:
            counts = usage([last[number] for number in sorted(last)])
            head = {**self._head, "object": "chat.completion.chunk", "choices": []}
            yield event({**head, "usage": counts, **self._told(last)})
        yield event("[DONE]")

    def _told(self, last: dict[int, Any]) -> dict[str, Any]:
        """How fast the answers were found, and how."""
        stats = [last[number] for number in sorted(last)]
        return {"timings": timings(stats[0]), "dflash": self._runner.describe(stats)}

    def _delta(self, delta: Delta) -> bytes | None:
        """One delta as a chunk; None where it adds nothing."""
        change: dict[str, Any] = {}
        if delta.thinking:
            change |= {"reasoning_content": delta.thinking, "reasoning": delta.thinking}
        if delta.text:
            change["content"] = delta.text
        if delta.parts:
            change["tool_calls"] = [
                {
                    "index": part.number,
                    **(
                        {"id": self._call_id(delta.choice, part.number), "type": "function"}
                        if part.name
                        else {}
                    ),
                    "function": {"name": part.name, "arguments": part.arguments}
                    if part.name
                    else {"arguments": part.arguments},
                }
                for part in delta.parts
            ]
        if not change and not delta.logprobs:
            return None
        return self._chunk(delta.choice, change, logprobs=self._logprobs(delta.logprobs))

    def _chunk(
        self,
        choice: int,
        change: dict[str, Any],
        finish: str | None = None,
        *,
        logprobs: Any = None,
        **more: Any,
    ) -> bytes:
        one = {"index": choice, "delta": change, "logprobs": logprobs, "finish_reason": finish}
        return event({**self._head, "object": "chat.completion.chunk", "choices": [one], **more})

    def _progress(self, found: Progress) -> bytes:
        head = {**self._head, "object": "chat.completion.chunk", "choices": []}
        return event({**head, "prompt_progress": progress(found)})

    def _logprobs(self, found: Any) -> dict[str, Any] | None:
        if self._job.options.logprobs is None:
            return None
        return {"content": chat_logprobs(self._tokenizer, found), "refusal": None}

    def _call_id(self, choice: int, number: int) -> str:
        return self._ids.setdefault((choice, number), f"call_{uuid.uuid4().hex[:24]}")


# Requests of other APIs as requests of OpenAI's chat API


def chat_job(values: dict[str, Any], names: dict[str, str], pair: Pair, settings: Settings) -> Job:
    """The job of a chat body with these values, those that are None left out.

    Problem 400 for what cannot be had; `names` are the other API's names of chat fields.
    """
    told = {name: value for name, value in values.items() if value is not None}
    try:
        return job_of(read_body(ChatBody, told), pair, settings)
    except Problem as problem:
        for chat, own in names.items():
            problem.message = re.sub(rf"\b{chat}\b", own, problem.message)
            problem.param = own if problem.param == chat else problem.param
        raise


def sampling_values(body: SamplingFields) -> dict[str, Any]:
    """A body's own values of the fields that all APIs share."""
    return {name: getattr(body, name) for name in SamplingFields.model_fields}
