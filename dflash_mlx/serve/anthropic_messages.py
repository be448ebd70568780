"""Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`: a body to a request.

https://docs.anthropic.com/en/api/messages
"""

import json
import uuid
from collections.abc import Iterator
from typing import Any, Literal

from dflash_mlx.engine.stats import Stats
from dflash_mlx.pair import Pair

from .answer_request import AnswerRequest, Progress
from .body import Fields, SamplingFields, TokenLimit
from .chat_messages import History, field, objects, role_of, unreadable
from .fields import MESSAGES
from .openai_chat import nested_format, sampling_values, to_chat_request
from .protocol import Problem, Settings, wrong
from .streams import sse_event, typed_event
from .writer import ItemChange, ItemsWriter, OutputItem, prompt_progress

# Messages in the form of OpenAI's chat API

# Claude Code adds this note for Anthropic's servers. It changes with each request.
BILLING = "x-anthropic-billing-header:"
Block = tuple[str, dict[str, Any]]  # the path of a block in the body, and the block


def chat_messages(system: Any, messages: list[Any]) -> list[dict[str, Any]]:
    history = History(in_order=False)
    instructions = [*without_billing(blocks_of(system, "system"))]
    if instructions:
        history.messages.append({"role": "system", "content": joined(instructions)})
    for role, blocks in turns_of(messages):
        if role == "system":
            history.messages.append({"role": "system", "content": joined(blocks)})
            continue
        if role == "assistant":
            history.messages.append({"role": "assistant", "content": ""})
        for place, block in blocks:
            (add_said if role == "assistant" else add_asked)(history, block, place)
    return history.messages


def turns_of(messages: list[Any]) -> list[tuple[str, list[Block]]]:
    """The role and the blocks of each turn; consecutive messages of one role are one turn."""
    turns: list[tuple[str, list[Block]]] = []
    for place, message in objects(messages, "messages"):
        role = role_of(message, ("user", "assistant", "system"), place)
        if message.get("content") is None:
            raise wrong(f"{place}.content", "is missing")
        blocks = blocks_of(message["content"], f"{place}.content")
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    return turns


def blocks_of(content: Any, place: str) -> list[Block]:
    if content is None:
        return []
    if isinstance(content, str):
        return [(place, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise wrong(place, "must be a text or a list of blocks")
    return objects(content, place)


def add_said(history: History, block: dict[str, Any], place: str) -> None:
    kind = block.get("type")
    if kind == "thinking":
        if thought := field(block, "thinking", str, place):
            history.assistant("reasoning_content", thought)
    elif kind == "tool_use":
        call_id = field(block, "id", str, place)
        name = field(block, "name", str, place)
        history.call(call_id, name, field(block, "input", dict, place))
    elif kind != "redacted_thinking":  # only Anthropic can decrypt that
        history.assistant("content", text_of(block, place))


def add_asked(history: History, block: dict[str, Any], place: str) -> None:
    """Add a block of a user's turn; each result of a tool is a message of its own."""
    messages = history.messages
    if block.get("type") == "tool_result":
        call_id = field(block, "tool_use_id", str, place)
        result = joined(blocks_of(block.get("content"), f"{place}.content"))
        if block.get("is_error") and "error" not in result.lower():
            result = f"error: {result}" if result else "error"  # no template has a field
        history.result(call_id, result)
    elif messages and messages[-1]["role"] == "user":
        messages[-1]["content"] += "\n" + text_of(block, place)
    else:
        messages.append({"role": "user", "content": text_of(block, place)})


def joined(blocks: list[Block]) -> str:
    return "\n".join(text_of(block, place) for place, block in blocks)


def text_of(block: dict[str, Any], place: str) -> str:
    if block.get("type") != "text":
        raise unreadable(block.get("type"), place)
    return field(block, "text", str, place)


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
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesTool(Fields):
    """A tool. Anthropic's own tools have a `type`."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Fields):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Fields):
    type: Literal["enabled", "adaptive", "disabled"]
    display: str | None = None


class OutputConfig(Fields):
    effort: str | None = None
    format: dict[str, Any] | None = None


class CountBody(SamplingFields):
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


def to_request(body: CountBody, pair: Pair, settings: Settings) -> AnswerRequest:
    """Raises Problem 400 for fields that are wrong or not supported.

    If the context is full before max_tokens, stop_reason is model_context_window_exceeded.
    """
    values = prompt_values(body, pair)
    if isinstance(body, MessagesBody):
        values["stop"] = body.stop_sequences
        values |= {"max_tokens": body.max_tokens, "return_progress": body.return_progress}
    return to_chat_request(values, NAMES, pair, settings)


def prompt_values(body: CountBody, pair: Pair) -> dict[str, Any]:
    check_edits(body.context_management)
    if not body.messages:
        raise wrong("messages", "is empty")
    config = body.output_config or OutputConfig()
    think = None if body.thinking is None else body.thinking.type != "disabled"
    has_switch = pair.template.think_switch is not None
    choice = body.tool_choice
    return {
        **sampling_values(body),
        "messages": chat_messages(body.system, body.messages),
        "tools": [tool_of(tool, f"tools.{n}") for n, tool in enumerate(body.tools or [])] or None,
        "tool_choice": choice_of(choice) if choice else None,
        "parallel_tool_calls": False if choice and choice.disable_parallel_tool_use else None,
        # A model without the switch always thinks, or never does.
        "chat_template_kwargs": {"enable_thinking": think} if has_switch else None,
        "reasoning_effort": None if think is False and has_switch else config.effort,
        "response_format": nested_format(config.format),
    }


def tool_of(tool: MessagesTool, place: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        why = "only tools with an input_schema of their own can be had"
        raise Problem(400, f"{place} is of the type '{tool.type:.40}': {why}.", f"{place}.type")
    if tool.input_schema is None:
        raise wrong(f"{place}.input_schema", "is missing")
    function = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def choice_of(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.type != "tool":
        return CHOICES[choice.type]
    if choice.name is None:
        raise wrong("tool_choice", "of the type tool needs a name")
    return {"type": "function", "function": {"name": choice.name}}


def check_edits(management: dict[str, Any] | None) -> None:
    """Raise Problem 400 for edits of the context; chat templates drop past thinking anyway."""
    edits = (management or {}).get("edits") or []
    for edit in edits if isinstance(edits, list) else [edits]:
        kind = edit.get("type") if isinstance(edit, dict) else None
        if not str(kind).startswith("clear_thinking_"):
            why = f"has the edit '{kind!s:.40}': this server edits no context"
            raise wrong("context_management", why)


# Answers in the form of Anthropic's API

REASONS = {"stop": "end_turn", "length": "max_tokens", "calls": "tool_use"}
UNSIGNED = "unsigned"  # clients keep thinking only with a signature; it is not checked here


class MessagesWriter(ItemsWriter):
    path = MESSAGES
    body_model = MessagesBody
    to_request = staticmethod(to_request)

    def __init__(self, *given: Any):
        super().__init__(*given)
        self._head = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": self.runner.name,
        }

    @classmethod
    def ping(cls, name: str, comment: str) -> bytes:
        return f": {comment}\n".encode() + typed_event("ping")

    @staticmethod
    def problem(problem: Problem) -> bytes:
        return sse_event(problem.anthropic(), "error")

    def whole(self) -> dict[str, Any]:
        return {
            **self._head,
            "content": [self._block(item) for item in self.items.all],
            **self._reason(),
            "usage": usage(self.answer.stats),
            **self.extras(),
        }

    def begin(self) -> Iterator[bytes]:
        prompt = self.choices[0].prompted.request.prompt
        message = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(Stats(prompt_tokens=len(prompt))),
        }
        yield typed_event("message_start", message=message)

    def progress(self, progress: Progress) -> Iterator[bytes]:
        yield typed_event("ping", prompt_progress=prompt_progress(progress))

    def end(self) -> Iterator[bytes]:
        counts = usage(self.answer.stats)
        yield typed_event("message_delta", delta=self._reason(), usage=counts, **self.extras())
        yield typed_event("message_stop")

    def change(self, change: ItemChange) -> Iterator[bytes]:
        item = change.item
        if change.change == "opened":
            block = self._block(item)
            yield typed_event("content_block_start", index=item.number, content_block=block)
        elif change.change == "closed":
            if item.kind == "thinking":
                yield self._delta(item, "signature", "signature", UNSIGNED)
            yield typed_event("content_block_stop", index=item.number)
        elif item.kind == "text":
            yield self._delta(item, "text", "text", change.text)
        elif item.kind == "call":
            yield self._delta(item, "input_json", "partial_json", change.text)
        elif self.body.shows_thinking:
            yield self._delta(item, "thinking", "thinking", change.text)

    def _delta(self, item: OutputItem, kind: str, name: str, text: str) -> bytes:
        delta = {"type": f"{kind}_delta", name: text}
        return typed_event("content_block_delta", index=item.number, delta=delta)

    def _block(self, item: OutputItem) -> dict[str, Any]:
        """An item as a content block; it is empty if the item was just opened."""
        if item.kind == "text":
            return {"type": "text", "text": item.text}
        if item.kind == "thinking":
            text = item.text if self.body.shows_thinking else ""
            signature = UNSIGNED if item.text else ""
            return {"type": "thinking", "thinking": text, "signature": signature}
        head = {"type": "tool_use", "id": f"toolu_{item.key[:24]}", "name": item.name}
        return head | input_of(item.text)

    def _reason(self) -> dict[str, Any]:
        answer = self.answer
        reason = REASONS[answer.finish_reason]
        if answer.stop is not None and reason != "tool_use":
            return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop}
        if reason == "max_tokens" and answer.stats.generated < self.body.max_tokens:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": None}


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
