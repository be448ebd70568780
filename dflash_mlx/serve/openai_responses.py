"""OpenAI's `POST /v1/responses`, stateless: a body to a request.

https://platform.openai.com/docs/api-reference/responses
"""

import json
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from dflash_mlx.pair import Pair

from .answer_request import AnswerRequest, Progress
from .body import NO_LIMIT, Fields, SamplingFields, TokenLimit
from .fields import RESPONSES
from .openai_chat import nested_format, sampling_values, to_chat_request
from .protocol import Problem, Settings, as_problem
from .response_input import ClientTool, chat_messages, choice_of, read_tools
from .streams import typed_event
from .writer import ItemChange, ItemsWriter, OutputItem, prompt_progress

NAMES = {"reasoning_effort": "reasoning.effort", "response_format": "text.format"}


class Reasoning(Fields):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextConfig(Fields):
    """The format of the answer; `verbosity` has no effect."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesBody(SamplingFields):
    """The body of a request. `seed`, `stop` and the penalties are beyond OpenAI's API."""

    input: str | list[Any]
    instructions: str | None = None
    model: str | None = None
    max_output_tokens: TokenLimit | None = None
    stop: str | list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    return_progress: bool | None = None

    @property
    def summarises(self) -> bool:
        """Whether the thinking is sent as summary (all of it) instead of as reasoning text."""
        reasoning = self.reasoning or Reasoning()
        return bool(reasoning.summary or reasoning.generate_summary)


def to_request(body: ResponsesBody, pair: Pair, settings: Settings) -> AnswerRequest:
    tools, ignored = read_tools(body.tools or [])
    reasoning = body.reasoning or Reasoning()
    values = {
        **sampling_values(body),
        "messages": chat_messages(body.instructions, body.input, tools),
        "max_tokens": body.max_output_tokens,
        "stop": body.stop,
        "tools": [tool.function for tool in tools] or None,
        "tool_choice": choice_of(body.tool_choice, tools),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": reasoning.effort,
        "response_format": nested_format((body.text or TextConfig()).format),
        "return_progress": body.return_progress,
    }
    request = to_chat_request(values, NAMES, pair, settings)
    return replace(request, ignored=(*request.ignored, *ignored))


# The response object, and the items of its output

FUNCTION_ARGUMENTS = "function_call_arguments"
PREFIXES = {"thinking": "rs", "text": "msg", "call": "fc"}


@dataclass(frozen=True, slots=True)
class Form:
    """How the text of an item is written: the type of its part, the names of its events."""

    part: str
    part_event: str
    text_event: str
    index: str = "content_index"


TEXT = Form("output_text", "response.content_part", "response.output_text")
REASONING = Form("reasoning_text", "response.content_part", "response.reasoning_text")
SUMMARY = Form(
    "summary_text",
    "response.reasoning_summary_part",
    "response.reasoning_summary_text",
    "summary_index",
)


class ResponsesWriter(ItemsWriter):
    path = RESPONSES
    bare = True
    body_model = ResponsesBody
    to_request = staticmethod(to_request)

    def __init__(self, *given: Any):
        super().__init__(*given)
        self._tools, _ = read_tools(self.body.tools or [])
        self._id = f"resp_{uuid.uuid4().hex}"
        self._began = int(time.time())
        self._sent = 0

    @staticmethod
    def problem(problem: Problem) -> bytes:
        error = {"code": problem.code or problem.kind, "message": problem.message}
        return typed_event("error", **error, param=problem.param)

    def whole(self) -> dict[str, Any]:
        """The response at its end; its status is incomplete if the answer was cut."""
        answer = self.answer
        cut = answer.finish_reason == "length"
        output = [self._item(item, status_of(item)) for item in self.items.all]
        stats = answer.stats
        thinking = len(self.runner.pair.encode(answer.thinking)) if answer.thinking else 0
        return {
            **self._response("incomplete" if cut else "completed", output),
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": stats.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": stats.cached_tokens,
                    "cache_write_tokens": 0,
                },
                "output_tokens": stats.generated,
                "output_tokens_details": {"reasoning_tokens": min(thinking, stats.generated)},
                "total_tokens": stats.prompt_tokens + stats.generated,
            },
            **self.extras(),
        }

    async def stream(self) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(super().stream()) as events:
                async for event in events:
                    yield event
        except Exception as error:
            yield self._failed(as_problem(error))

    def begin(self) -> Iterator[bytes]:
        begun = self._response("in_progress")
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def progress(self, progress: Progress) -> Iterator[bytes]:
        response = self._response("in_progress")
        counts = prompt_progress(progress)
        yield self._event("response.in_progress", response=response, prompt_progress=counts)

    def change(self, change: ItemChange) -> Iterator[bytes]:
        item = change.item
        index = {"output_index": item.number}
        at = {**index, "item_id": self._item_id(item)}
        if change.change == "opened":
            opened = self._item(item, "in_progress", empty=True)
            yield self._event("response.output_item.added", **index, item=opened)
        yield from (self._call if item.kind == "call" else self._text)(change, at)
        if change.change == "closed":
            closed = self._item(item, status_of(item))
            yield self._event("response.output_item.done", **index, item=closed)

    def end(self) -> Iterator[bytes]:
        ended = self.whole()
        yield self._event(f"response.{ended['status']}", response=ended)

    def _failed(self, problem: Problem) -> bytes:
        code = "server_error" if problem.status >= 500 else "invalid_prompt"
        output = [self._item(item, "incomplete") for item in self.items.all]
        error = {"error": {"code": code, "message": problem.message}}
        return self._event("response.failed", response=self._response("failed", output) | error)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sent += 1
        return typed_event(kind, sequence_number=self._sent - 1, **fields)

    def _text(self, change: ItemChange, at: dict[str, Any]) -> Iterator[bytes]:
        item = change.item
        form = self._form(item)
        at = {**at, form.index: 0}
        logprobs = {"logprobs": []} if item.kind == "text" else {}
        if change.change == "opened":
            yield self._event(f"{form.part_event}.added", **at, part=self._part(item, ""))
        elif change.change == "added":
            yield self._event(f"{form.text_event}.delta", **at, delta=change.text, **logprobs)
        else:
            yield self._event(f"{form.text_event}.done", **at, text=item.text, **logprobs)
            yield self._event(f"{form.part_event}.done", **at, part=self._part(item, item.text))

    def _call(self, change: ItemChange, at: dict[str, Any]) -> Iterator[bytes]:
        tool = self._tool(change.item)
        kind = "response." + ("custom_tool_call_input" if tool.is_text else FUNCTION_ARGUMENTS)
        value = self._value(change.item)
        if change.change == "added" and not tool.is_text:
            yield self._event(f"{kind}.delta", **at, delta=change.text)
        elif change.change == "closed" and tool.is_text:
            yield self._event(f"{kind}.delta", **at, delta=value)
            yield self._event(f"{kind}.done", **at, input=value)
        elif change.change == "closed":
            yield self._event(f"{kind}.done", **at, name=tool.name, arguments=value)

    def _item(self, item: OutputItem, status: str, *, empty: bool = False) -> dict[str, Any]:
        result: dict[str, Any] = {"id": self._item_id(item), "status": status}
        parts = [] if empty else [self._part(item, item.text)]
        if item.kind == "text":
            return {**result, "type": "message", "role": "assistant", "content": parts}
        if item.kind == "thinking":
            place = {"content": parts} if self._form(item) is REASONING else {"summary": parts}
            return {**result, "type": "reasoning", "summary": [], **place}
        tool = self._tool(item)
        result |= {"call_id": f"call_{item.key[:24]}", "name": tool.name}
        if tool.namespace is not None:
            result["namespace"] = tool.namespace
        value = "" if empty else self._value(item)
        if tool.is_text:
            return {**result, "type": "custom_tool_call", "input": value}
        return {**result, "type": "function_call", "arguments": value}

    def _item_id(self, item: OutputItem) -> str:
        prefix = "ctc" if item.kind == "call" and self._tool(item).is_text else PREFIXES[item.kind]
        return f"{prefix}_{item.key}"

    def _form(self, item: OutputItem) -> Form:
        if item.kind == "text":
            return TEXT
        return SUMMARY if self.body.summarises else REASONING

    def _part(self, item: OutputItem, text: str) -> dict[str, Any]:
        more = {"annotations": [], "logprobs": []} if item.kind == "text" else {}
        return {"type": self._form(item).part, "text": text, **more}

    def _tool(self, item: OutputItem) -> ClientTool:
        """The tool of a call; an unknown name stays as it is."""
        found = (tool for tool in self._tools if tool.model_name == item.name)
        return next(found, ClientTool(item.name, item.name, {}))

    def _value(self, item: OutputItem) -> str:
        """A call's arguments, or the text of a call of a custom tool."""
        if self._tool(item).is_text:
            try:
                return str(json.loads(item.text)["input"])
            except (ValueError, RecursionError, KeyError, TypeError):
                return item.text  # incomplete, or not in the requested form
        return item.text

    def _response(self, status: str, output: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        body: ResponsesBody = self.body
        limit = body.max_output_tokens
        sampling = self.request.options.sampling
        reasoning = body.reasoning or Reasoning()
        config = body.text or TextConfig()
        verbosity = {"verbosity": config.verbosity} if config.verbosity else {}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._began,
            "completed_at": None,
            "status": status,
            "model": self.runner.name,
            "output": list(output),
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "instructions": body.instructions,
            "max_output_tokens": None if limit == NO_LIMIT else limit,
            "max_tool_calls": None,
            "tools": [shown_tool(tool) for tool in self._tools],
            "tool_choice": body.tool_choice or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
            "text": {"format": config.format or {"type": "text"}, **verbosity},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "top_logprobs": 0,
            "truncation": "disabled",
            "store": False,
            "background": False,
            "previous_response_id": None,
            "service_tier": "default",
            "safety_identifier": None,
            "prompt_cache_key": None,
            "metadata": body.metadata or {},
        }


def shown_tool(tool: ClientTool) -> dict[str, Any]:
    if tool.is_text:
        return {**tool.fields, "name": tool.model_name}
    given = {name: tool.fields.get(name) for name in ("type", "description", "parameters")}
    return {**given, "name": tool.model_name, "strict": False}


def status_of(item: OutputItem) -> str:
    return "incomplete" if item.cut else "completed"
