"""OpenAI's `POST /v1/responses`, stateless: a body to a request.

https://platform.openai.com/docs/api-reference/responses
"""

import json
import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from dflash_mlx.pair import Pair

from .answer_request import (
    AnswerRequest,
    Delta,
    ItemChange,
    OutputItem,
    OutputItems,
    Progress,
    prompt_progress,
    timings,
)
from .body import NO_LIMIT, Fields, SamplingFields, TokenLimit
from .openai_chat import sampling_values, to_chat_request
from .protocol import Problem, Settings, as_problem, sse_event
from .response_input import chat_messages
from .response_tools import ClientTool, choice_of, read_tools
from .runner import PreparedChoice, Runner

NAMES = {"reasoning_effort": "reasoning.effort", "response_format": "text.format"}


class Reasoning(Fields):
    """How hard to think, and whether the thinking is sent as a summary."""

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
    """Raises Problem 400 for fields that are wrong or not supported."""
    tools = read_tools(body.tools or [])
    reasoning = body.reasoning or Reasoning()
    form = (body.text or TextConfig()).format
    values = {
        **sampling_values(body),
        "messages": chat_messages(body.instructions, body.input, tools),
        "max_tokens": body.max_output_tokens,
        "stop": body.stop,
        "tools": [tool.function for tool in tools.all] or None,
        "tool_choice": choice_of(body.tool_choice, tools),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": reasoning.effort,
        "response_format": format_of(form),
        "return_progress": body.return_progress,
    }
    request = to_chat_request(values, NAMES, pair, settings)
    return request.with_ignored(tools.ignored)


def format_of(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """The format as `response_format` of a chat body."""
    if form is None or form.get("type") != "json_schema":
        return form
    return {
        "type": "json_schema",
        "json_schema": {name: value for name, value in form.items() if name != "type"},
    }


# The response object, and the items of its output

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


class ResponseObject:
    """The response object of one answer, in all its states."""

    def __init__(self, body: ResponsesBody, request: AnswerRequest, runner: Runner):
        self._body = body
        self._request = request
        self._runner = runner
        self._tools = read_tools(body.tools or [])
        self._id = f"resp_{uuid.uuid4().hex}"
        self._began = int(time.time())
        self._ids: dict[int, tuple[str, str]] = {}  # item id and call id, by item number

    def begun(self) -> dict[str, Any]:
        return self._object("in_progress")

    def ended(self, items: list[OutputItem], last: Delta) -> dict[str, Any]:
        """The response at its end; its status is incomplete if the answer was cut."""
        cut = last.finish_reason == "length"
        status = "incomplete" if cut else "completed"
        output = [self.item(item, status_of(item)) for item in items]
        stats = last.stats
        thought = "".join(item.text for item in items if item.kind == "thinking")
        thinking = len(self._runner.pair.encode(thought)) if thought else 0
        return {
            **self._object(status, output),
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
            "timings": timings(stats),
            "dflash": self._runner.dflash_fields(self._request, [last]),
        }

    def failed(self, items: list[OutputItem], problem: Problem) -> dict[str, Any]:
        code = "server_error" if problem.status >= 500 else "invalid_prompt"
        output = [self.item(item, "incomplete") for item in items]
        error = {"error": {"code": code, "message": problem.message}}
        return {**self._object("failed", output), **error}

    def item(self, item: OutputItem, status: str, *, empty: bool = False) -> dict[str, Any]:
        """An item of the output; it is `empty` when it is opened."""
        item_id, call_id = self.ids(item)
        result: dict[str, Any] = {"id": item_id, "status": status}
        parts = [] if empty else [self.part(item, item.text)]
        if item.kind == "text":
            return {**result, "type": "message", "role": "assistant", "content": parts}
        if item.kind == "thinking":
            place = {"content": parts} if self.form(item) is REASONING else {"summary": parts}
            return {**result, "type": "reasoning", "summary": [], **place}
        tool = self.tool(item)
        result |= {"call_id": call_id, "name": tool.name}
        if tool.namespace is not None:
            result["namespace"] = tool.namespace
        value = "" if empty else self.value(item)
        if tool.is_text:
            return {**result, "type": "custom_tool_call", "input": value}
        return {**result, "type": "function_call", "arguments": value}

    def ids(self, item: OutputItem) -> tuple[str, str]:
        prefix = "ctc" if item.kind == "call" and self.tool(item).is_text else PREFIXES[item.kind]
        new = f"{prefix}_{uuid.uuid4().hex}", f"call_{uuid.uuid4().hex[:24]}"
        return self._ids.setdefault(item.number, new)

    def form(self, item: OutputItem) -> Form:
        if item.kind == "text":
            return TEXT
        return SUMMARY if self._body.summarises else REASONING

    def part(self, item: OutputItem, text: str) -> dict[str, Any]:
        more = {"annotations": [], "logprobs": []} if item.kind == "text" else {}
        return {"type": self.form(item).part, "text": text, **more}

    def tool(self, item: OutputItem) -> ClientTool:
        """The tool of a call; an unknown name stays as it is."""
        return self._tools.by_model_name(item.name) or ClientTool(item.name, item.name, {})

    def value(self, item: OutputItem) -> str:
        """A call's arguments, or the text of a call of a custom tool."""
        if self.tool(item).is_text:
            try:
                return str(json.loads(item.text)["input"])
            except (ValueError, RecursionError, KeyError, TypeError):
                return item.text  # incomplete, or not in the requested form
        return item.text

    def _object(self, status: str, output: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        body = self._body
        limit = body.max_output_tokens
        sampling = self._request.options.sampling
        reasoning = body.reasoning or Reasoning()
        config = body.text or TextConfig()
        verbosity = {"verbosity": config.verbosity} if config.verbosity else {}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._began,
            "completed_at": None,
            "status": status,
            "model": self._runner.name,
            "output": output or [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "instructions": body.instructions,
            "max_output_tokens": None if limit == NO_LIMIT else limit,
            "max_tool_calls": None,
            "tools": [self._tool(tool) for tool in self._tools.all],
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

    def _tool(self, tool: ClientTool) -> dict[str, Any]:
        """A tool with its name in the prompt."""
        if tool.is_text:
            return {**tool.fields, "name": tool.model_name}
        given = {name: tool.fields.get(name) for name in ("type", "description", "parameters")}
        return {**given, "name": tool.model_name, "strict": False}


def status_of(item: OutputItem) -> str:
    return "incomplete" if item.cut else "completed"


# Answers in the form of the responses API


def write_problem(problem: Problem) -> bytes:
    error = {"code": problem.code or problem.kind, "message": problem.message}
    return sse_event({"type": "error", **error, "param": problem.param}, "error")


class ResponsesWriter:
    def __init__(self, body: ResponsesBody, request: AnswerRequest, runner: Runner):
        self._request = request
        self._runner = runner
        self._response = ResponseObject(body, request, runner)
        self._items = OutputItems()
        self._sent = 0

    async def complete(self, choices: list[PreparedChoice]) -> dict[str, Any]:
        last = await self._items.add_all(self._runner.answer(self._request, choices))
        return self._response.ended(self._items.all, last)

    async def stream(self, choices: list[PreparedChoice]) -> AsyncGenerator[bytes]:
        """The answer as server-sent events; an error is the last event."""
        begun = self._response.begun()
        try:
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
            async with aclosing(self._runner.answer(self._request, choices)) as events:
                async for event in events:
                    if isinstance(event, Progress):
                        progress = prompt_progress(event)
                        yield self._event(
                            "response.in_progress", response=begun, prompt_progress=progress
                        )
                        continue
                    for change in self._items.add(event):
                        for line in self._change_events(change):
                            yield line
                    if event.finish_reason:
                        ended = self._response.ended(self._items.all, event)
                        yield self._event(f"response.{ended['status']}", response=ended)
        except Exception as error:
            failed = self._response.failed(self._items.all, as_problem(error))
            yield self._event("response.failed", response=failed)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._sent, **fields}
        self._sent += 1
        return sse_event(data, kind)

    def _change_events(self, change: ItemChange) -> Iterator[bytes]:
        item = change.item
        index = {"output_index": item.number}
        item_id, _ = self._response.ids(item)
        at = {**index, "item_id": item_id}
        if change.change == "opened":
            opened = self._response.item(item, "in_progress", empty=True)
            yield self._event("response.output_item.added", **index, item=opened)
        yield from (self._call if item.kind == "call" else self._text)(change, at)
        if change.change == "closed":
            closed = self._response.item(item, status_of(item))
            yield self._event("response.output_item.done", **index, item=closed)

    def _text(self, change: ItemChange, at: dict[str, Any]) -> Iterator[bytes]:
        item = change.item
        form = self._response.form(item)
        at = {**at, form.index: 0}
        logprobs = {"logprobs": []} if item.kind == "text" else {}
        if change.change == "opened":
            part = self._response.part(item, "")
            yield self._event(f"{form.part_event}.added", **at, part=part)
        elif change.change == "added":
            yield self._event(f"{form.text_event}.delta", **at, delta=change.text, **logprobs)
        else:
            part = self._response.part(item, item.text)
            yield self._event(f"{form.text_event}.done", **at, text=item.text, **logprobs)
            yield self._event(f"{form.part_event}.done", **at, part=part)

    def _call(self, change: ItemChange, at: dict[str, Any]) -> Iterator[bytes]:
        """The events of a call; the text of a custom tool is inside JSON."""
        tool = self._response.tool(change.item)
        value = self._response.value(change.item)
        if change.change == "added" and not tool.is_text:
            kind = "response.function_call_arguments.delta"
            yield self._event(kind, **at, delta=change.text)
        elif change.change == "closed" and tool.is_text:
            yield self._event("response.custom_tool_call_input.delta", **at, delta=value)
            yield self._event("response.custom_tool_call_input.done", **at, input=value)
        elif change.change == "closed":
            kind = "response.function_call_arguments.done"
            yield self._event(kind, **at, name=tool.name, arguments=value)
