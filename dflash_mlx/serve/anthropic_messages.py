"""Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`: a body to a request.

https://docs.anthropic.com/en/api/messages
"""

import json
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from dflash_mlx.engine.stats import Stats
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
from .body import Fields, SamplingFields, TokenLimit
from .openai_chat import sampling_values, to_chat_request
from .protocol import Problem, Settings, as_problem, sse_event
from .runner import PreparedChoice, Runner

# Messages in the form of OpenAI's chat API

# Claude Code adds this note for Anthropic's servers. It changes with each request.
BILLING = "x-anthropic-billing-header:"
Block = tuple[str, dict[str, Any]]  # the path of a block in the body, and the block


def chat_messages(system: Any, messages: list[Any]) -> list[dict[str, Any]]:
    """Raises Problem 400 that names the block that is wrong or not supported."""
    result: list[dict[str, Any]] = []
    instructions = [*without_billing(blocks_of(system, "system"))]
    if instructions:
        result.append({"role": "system", "content": joined(instructions)})
    names: dict[str, str] = {}
    for role, blocks in turns_of(messages):
        if role == "assistant":
            result.append(assistant_message(blocks, names))
        elif role == "system":
            result.append({"role": "system", "content": joined(blocks)})
        else:
            result += user_messages(blocks, names)
    return result


def turns_of(messages: list[Any]) -> list[tuple[str, list[Block]]]:
    """The role and the blocks of each turn; consecutive messages of one role are one turn."""
    turns: list[tuple[str, list[Block]]] = []
    for number, message in enumerate(messages):
        place = f"messages.{number}"
        if not isinstance(message, dict):
            raise Problem(400, f"{place} is not an object.", place)
        role = message.get("role")
        if role not in ("user", "assistant", "system"):
            raise Problem(400, f"{place}.role must be user, assistant or system.", f"{place}.role")
        if message.get("content") is None:
            raise Problem(400, f"{place}.content is missing.", f"{place}.content")
        blocks = blocks_of(message["content"], f"{place}.content")
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    return turns


def blocks_of(content: Any, place: str) -> list[Block]:
    """The blocks of a content; a text is one block."""
    if content is None:
        return []
    if isinstance(content, str):
        return [(place, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise Problem(400, f"{place} must be a text or a list of blocks.", place)
    for number, block in enumerate(content):
        if not isinstance(block, dict):
            raise Problem(400, f"{place}.{number} is not an object.", f"{place}.{number}")
    return [(f"{place}.{number}", block) for number, block in enumerate(content)]


def assistant_message(blocks: list[Block], names: dict[str, str]) -> dict[str, Any]:
    """An assistant's turn. Adds its calls to `names`, tool names by call id."""
    texts = []
    thoughts = []
    calls = []
    for place, block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(field(block, "thinking", str, place))
        elif kind == "tool_use":
            call_id = field(block, "id", str, place)
            name = field(block, "name", str, place)
            function = {"name": name, "arguments": field(block, "input", dict, place)}
            calls.append({"id": call_id, "type": "function", "function": function})
            names[call_id] = name
        elif kind != "redacted_thinking":  # only Anthropic can decrypt that
            texts.append(text_of(block, place))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def user_messages(blocks: list[Block], names: dict[str, str]) -> list[dict[str, Any]]:
    """A user's turn; each result of a tool is a message of its own."""
    messages: list[dict[str, Any]] = []
    for place, block in blocks:
        if block.get("type") == "tool_result":
            call_id = field(block, "tool_use_id", str, place)
            result = joined(blocks_of(block.get("content"), f"{place}.content"))
            if block.get("is_error") and "error" not in result.lower():
                result = f"error: {result}" if result else "error"  # no template has a field
            name = {"name": names[call_id]} if call_id in names else {}
            messages.append({"role": "tool", "tool_call_id": call_id, **name, "content": result})
            continue
        text = text_of(block, place)
        if messages and messages[-1]["role"] == "user":
            messages[-1]["content"] += "\n" + text
        else:
            messages.append({"role": "user", "content": text})
    return messages


def joined(blocks: list[Block]) -> str:
    return "\n".join(text_of(block, place) for place, block in blocks)


def text_of(block: dict[str, Any], place: str) -> str:
    """Raises Problem 400 for images and other blocks without text."""
    if block.get("type") != "text":
        raise Problem(
            400,
            f"{place} is of the type '{block.get('type')!s:.40}': this server reads text only.",
            place,
        )
    return field(block, "text", str, place)


def field(block: dict[str, Any], name: str, kind: type, place: str) -> Any:
    """Raises Problem 400 if the field is missing or has another type."""
    if not isinstance(block.get(name), kind):
        what = "a text" if kind is str else "an object"
        raise Problem(400, f"{place}.{name} must be {what}.", f"{place}.{name}")
    return block[name]


def without_billing(blocks: list[Block]) -> Iterator[Block]:
    """The blocks without Claude Code's billing note, which is a line at the start of one."""
    for place, block in blocks:
        text = block.get("text")
        if isinstance(text, str) and text.startswith(BILLING):
            text = text.partition("\n")[2]
            if not text:
                continue
            block = {**block, "text": text}
        yield place, block


NAMES = {
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
THINKING = {"enabled": True, "adaptive": True, "disabled": False}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesTool(Fields):
    """A tool. Anthropic's own tools have a `type`."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Fields):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Fields):
    """Whether the model thinks; a token budget is not supported."""

    type: str
    display: str | None = None


class OutputConfig(Fields):
    effort: str | None = None
    format: dict[str, Any] | None = None


class CountBody(SamplingFields):
    """The body of count_tokens: the fields that make the prompt."""

    messages: list[Any]
    model: str | None = None
    system: str | list[Any] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: dict[str, Any] | None = None


class MessagesBody(CountBody):
    """The body of a request. `seed` and the penalties are beyond Anthropic's API."""

    max_tokens: TokenLimit
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    return_progress: bool | None = None

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"


def to_request(body: MessagesBody, pair: Pair, settings: Settings) -> AnswerRequest:
    """Raises Problem 400 for fields that are wrong or not supported.

    If the context is full before max_tokens, stop_reason is model_context_window_exceeded.
    """
    values = {**prompt_values(body, pair), "stop": body.stop_sequences}
    values |= {"max_tokens": body.max_tokens, "return_progress": body.return_progress}
    return to_chat_request(values, NAMES, pair, settings)


def to_count_request(body: CountBody, pair: Pair, settings: Settings) -> AnswerRequest:
    return to_chat_request(prompt_values(body, pair), NAMES, pair, settings)


def prompt_values(body: CountBody, pair: Pair) -> dict[str, Any]:
    """The fields of a chat body, except those for the length of the answer."""
    check_edits(body.context_management)
    if not body.messages:
        raise Problem(400, "messages is empty.", "messages")
    config = body.output_config or OutputConfig()
    think = thinking_of(body.thinking)
    template = pair.template
    effort = config.effort
    if think is False and template.think_switch is not None:
        effort = None
    choice = body.tool_choice
    return {
        **sampling_values(body),
        "messages": chat_messages(body.system, body.messages),
        "tools": [tool_of(tool, f"tools.{n}") for n, tool in enumerate(body.tools or [])] or None,
        "tool_choice": choice_of(choice) if choice else None,
        "parallel_tool_calls": False if choice and choice.disable_parallel_tool_use else None,
        # A model without the switch always thinks, or never does.
        "chat_template_kwargs": {"enable_thinking": think} if template.think_switch else None,
        "reasoning_effort": effort,
        "response_format": format_of(config.format),
    }


def tool_of(tool: MessagesTool, place: str) -> dict[str, Any]:
    """A tool in the form of chat templates."""
    if tool.type not in (None, "custom"):
        raise Problem(
            400,
            f"{place} is of the type '{tool.type:.40}': only tools with an input_schema of their "
            "own can be had.",
            f"{place}.type",
        )
    if tool.input_schema is None:
        raise Problem(400, f"{place}.input_schema is missing.", f"{place}.input_schema")
    function = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def choice_of(choice: ToolChoice) -> str | dict[str, Any]:
    """A tool_choice in the form of OpenAI's chat API."""
    if choice.type == "tool" and choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in CHOICES:
        raise Problem(
            400, "tool_choice.type must be auto, any, none, or tool with a name.", "tool_choice"
        )
    return CHOICES[choice.type]


def thinking_of(thinking: Thinking | None) -> bool | None:
    """Whether to think; None leaves that to the server's settings."""
    if thinking is None:
        return None
    if thinking.type not in THINKING:
        raise Problem(
            400, f"thinking.type must be {', '.join(THINKING)}: it is '{thinking.type:.20}'.",
            "thinking.type",
        )  # fmt: skip
    return THINKING[thinking.type]


def format_of(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """The format as `response_format` of a chat body."""
    if form is None or form.get("type") != "json_schema":
        return form
    schema = {"name": "output", "schema": form.get("schema"), "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def check_edits(management: dict[str, Any] | None) -> None:
    """Raise Problem 400 for edits of the context; chat templates drop past thinking anyway."""
    edits = (management or {}).get("edits") or []
    for edit in edits if isinstance(edits, list) else [edits]:
        kind = edit.get("type") if isinstance(edit, dict) else None
        if not str(kind).startswith("clear_thinking_"):
            raise Problem(
                400,
                f"context_management has the edit '{kind!s:.40}': this server edits no context.",
                "context_management",
            )


# Answers in the form of Anthropic's API

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def ping(comment: str) -> bytes:
    """An event that clients leave out, after a comment."""
    return f": {comment}\n".encode() + PING


REASONS = {"stop": "end_turn", "length": "max_tokens", "calls": "tool_use"}
UNSIGNED = "unsigned"  # clients keep thinking only with a signature; it is not checked here


def write_problem(problem: Problem) -> bytes:
    return sse_event(problem.anthropic(), "error")


class MessagesWriter:
    def __init__(self, body: MessagesBody, request: AnswerRequest, runner: Runner):
        self._body = body
        self._request = request
        self._runner = runner
        self._head = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": runner.name,
        }
        self._items = OutputItems()
        self._ids: dict[int, str] = {}

    async def complete(self, choices: list[PreparedChoice]) -> dict[str, Any]:
        last = await self._items.add_all(self._runner.answer(self._request, choices))
        return {
            **self._head,
            "content": [self._block(item) for item in self._items.all],
            **self._reason(last),
            "usage": usage(last.stats),
            **self._extras(last),
        }

    async def stream(self, choices: list[PreparedChoice]) -> AsyncGenerator[bytes]:
        """The answer as server-sent events; an error is the last event."""
        try:
            yield self._start(choices[0])
            async with aclosing(self._runner.answer(self._request, choices)) as events:
                async for event in events:
                    if isinstance(event, Progress):
                        progress = prompt_progress(event)
                        yield sse_event({"type": "ping", "prompt_progress": progress}, "ping")
                        continue
                    for change in self._items.add(event):
                        for line in self._change_events(change):
                            yield line
                    if event.finish_reason:
                        yield self._message_delta(event)
            yield sse_event({"type": "message_stop"}, "message_stop")
        except Exception as error:
            yield write_problem(as_problem(error))

    def _start(self, choice: PreparedChoice) -> bytes:
        message = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(Stats(prompt_tokens=len(choice.prompted.request.prompt))),
        }
        return sse_event({"type": "message_start", "message": message}, "message_start")

    def _change_events(self, change: ItemChange) -> list[bytes]:
        item = change.item
        at = {"index": item.number}
        if change.change == "opened":
            start = {"type": "content_block_start", **at, "content_block": self._block(item)}
            return [sse_event(start, "content_block_start")]
        if change.change == "closed":
            events = []
            if item.kind == "thinking":
                events.append(self._delta(item, {"type": "signature_delta", "signature": UNSIGNED}))
            events.append(sse_event({"type": "content_block_stop", **at}, "content_block_stop"))
            return events
        if item.kind == "thinking":
            if not self._body.shows_thinking:
                return []
            return [self._delta(item, {"type": "thinking_delta", "thinking": change.text})]
        if item.kind == "text":
            return [self._delta(item, {"type": "text_delta", "text": change.text})]
        return [self._delta(item, {"type": "input_json_delta", "partial_json": change.text})]

    def _delta(self, item: OutputItem, delta: dict[str, Any]) -> bytes:
        return sse_event(
            {"type": "content_block_delta", "index": item.number, "delta": delta},
            "content_block_delta",
        )

    def _message_delta(self, last: Delta) -> bytes:
        data = {"type": "message_delta", "delta": self._reason(last), "usage": usage(last.stats)}
        return sse_event({**data, **self._extras(last)}, "message_delta")

    def _block(self, item: OutputItem) -> dict[str, Any]:
        """An item as a content block; it is empty if the item was just opened."""
        if item.kind == "text":
            return {"type": "text", "text": item.text}
        if item.kind == "thinking":
            text = item.text if self._body.shows_thinking else ""
            return {
                "type": "thinking",
                "thinking": text,
                "signature": UNSIGNED if item.text else "",
            }
        call_id = self._ids.setdefault(item.number, f"toolu_{uuid.uuid4().hex[:24]}")
        return {"type": "tool_use", "id": call_id, "name": item.name, **input_of(item.text)}

    def _reason(self, last: Delta) -> dict[str, Any]:
        reason = REASONS[last.finish_reason or "stop"]
        if last.stop is not None and reason != "tool_use":
            reason = "stop_sequence"
        elif reason == "max_tokens" and last.stats.generated < self._body.max_tokens:
            reason = "model_context_window_exceeded"
        return {
            "stop_reason": reason,
            "stop_sequence": last.stop if reason == "stop_sequence" else None,
        }

    def _extras(self, last: Delta) -> dict[str, Any]:
        return {
            "timings": timings(last.stats),
            "dflash": self._runner.dflash_fields(self._request, [last]),
        }


def usage(stats: Stats) -> dict[str, Any]:
    """Anthropic's usage; its input_tokens exclude cached tokens."""
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.cached_tokens,
        "output_tokens": stats.generated,
    }


def input_of(arguments: str) -> dict[str, Any]:
    """A call's arguments. Incomplete JSON is kept in the field `partial_json`."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return {"input": value}
    return {"input": {}, "partial_json": arguments}
