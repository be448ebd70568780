"""OpenAI's `POST /v1/chat/completions`: a body to a job, deltas to chunks.

https://platform.openai.com/docs/api-reference/chat
"""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import Field

from dflash_mlx import __version__
from dflash_mlx.chat.numbered_calls import named_calls
from dflash_mlx.errors import DFlashError
from dflash_mlx.pair import Pair
from dflash_mlx.structure.grammar import Grammar
from dflash_mlx.types import Effort

from .chat_messages import template_messages
from .fields import Fields, SamplingFields, Whole, refuse
from .job import Delta, Job, Progress
from .job import Whole as WholeAnswer
from .numbers import progress, timings, usage
from .openai_logprobs import chat_logprobs
from .problem import Problem
from .runner import Prepared, Runner
from .settings import Settings
from .sse import event
from .tool_choice import Tool, chosen_tools

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
    return Job(
        prompt=named_calls(template_messages(body.messages), pair.target.tokenizer),
        sampling=body.params(settings.sampling),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=stop_strings(body.stop),
        choices=1 if body.n is None else body.n,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        think=think,
        effort=effort,
        grammar=chosen.grammar,
        tools=chosen.told,
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
    template = pair.target.template
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
        self._body, self._job, self._runner = body, job, runner
        self._tokenizer = runner.pair.target.tokenizer
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
        if self._job.logprobs is None:
            return None
        return {"content": chat_logprobs(self._tokenizer, found), "refusal": None}

    def _call_id(self, choice: int, number: int) -> str:
        return self._ids.setdefault((choice, number), f"call_{uuid.uuid4().hex[:24]}")
