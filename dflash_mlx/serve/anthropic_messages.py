"""Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`: a body to a job.

https://docs.anthropic.com/en/api/messages
"""

import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from dflash_mlx.engine.stats import Stats
from dflash_mlx.pair import Pair

from .job import Delta, Item, Items, Job, Progress, Step, progress, timings
from .openai_chat import chat_job, sampling_values
from .protocol import Fields, Problem, SamplingFields, Settings, Whole, as_problem, event, refuse
from .runner import Prepared, Runner

# Messages of Anthropic's API as those of OpenAI's chat API

# Claude Code's note to Anthropic's servers: other in each request, and not for the model.
BILLING = "x-anthropic-billing-header:"
Block = tuple[str, dict[str, Any]]  # its place in the request, and the block


def chat_messages(system: Any, messages: list[Any]) -> list[dict[str, Any]]:
    """The messages; Problem 400 names the block that is wrong or cannot be read."""
    found: list[dict[str, Any]] = []
    told = [block for block in blocks_of(system, "system") if not is_billing(block)]
    if told:
        found.append({"role": "system", "content": joined(told)})
    names: dict[str, str] = {}
    turns = turns_of(messages)
    for role, blocks in turns:
        if role == "assistant":
            found.append(assistant(blocks, names))
        elif role == "system":
            found.append({"role": "system", "content": joined(blocks)})
        else:
            found += user(blocks, names)
    if turns and turns[-1][0] == "assistant":
        raise Problem(
            400,
            "the last message is the assistant's: this server cannot go on from its text. "
            "(End with the user's message.)",
            "messages",
        )
    return found


def turns_of(messages: list[Any]) -> list[tuple[str, list[Block]]]:
    """Each turn's role and blocks."""
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
    """A content as blocks; a text is one."""
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


def assistant(blocks: list[Block], names: dict[str, str]) -> dict[str, Any]:
    """An assistant's turn; `names` learns the names of its calls by their ids."""
    texts = []
    thoughts = []
    calls = []
    for place, block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(field(block, "thinking", str, place))
        elif kind == "tool_use":
            number = field(block, "id", str, place)
            name = field(block, "name", str, place)
            function = {"name": name, "arguments": field(block, "input", dict, place)}
            calls.append({"id": number, "type": "function", "function": function})
            names[number] = name
        elif kind != "redacted_thinking":  # nobody but its maker can read that
            texts.append(text_of(block, place))
    found: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        found["reasoning_content"] = "\n".join(thoughts)
    if calls:
        found["tool_calls"] = calls
    return found


def user(blocks: list[Block], names: dict[str, str]) -> list[dict[str, Any]]:
    """A user's turn: results of tools are messages of their own."""
    found: list[dict[str, Any]] = []
    for place, block in blocks:
        if block.get("type") == "tool_result":
            number = field(block, "tool_use_id", str, place)
            result = joined(blocks_of(block.get("content"), f"{place}.content"))
            if block.get("is_error") and "error" not in result.lower():
                result = f"error: {result}" if result else "error"  # templates have no place for it
            name = {"name": names[number]} if number in names else {}
            found.append({"role": "tool", "tool_call_id": number, **name, "content": result})
            continue
        text = text_of(block, place)
        if found and found[-1]["role"] == "user":
            found[-1]["content"] += "\n" + text
        else:
            found.append({"role": "user", "content": text})
    return found


def joined(blocks: list[Block]) -> str:
    """Blocks of text as one text."""
    return "\n".join(text_of(block, place) for place, block in blocks)


def text_of(block: dict[str, Any], place: str) -> str:
    """A block's text. Problem 400 for images and other blocks."""
    if block.get("type") != "text":
        raise Problem(
            400,
            f"{place} is of the type '{block.get('type')!s:.40}': this server reads text only.",
            place,
        )
    return field(block, "text", str, place)


def field(block: dict[str, Any], name: str, kind: type, place: str) -> Any:
    """A block's field. Problem 400 where it is missing or of another type."""
    if not isinstance(block.get(name), kind):
        what = "a text" if kind is str else "an object"
        raise Problem(400, f"{place}.{name} must be {what}.", f"{place}.{name}")
    return block[name]


def is_billing(block: Block) -> bool:
    """Whether a block of the system prompt is no instruction."""
    text = block[1].get("text")
    return isinstance(text, str) and text.startswith(BILLING)


UNSUPPORTED = {
    "container": "nothing is run here",
    "mcp_servers": "this server calls no other",
    "output_format": "use output_config.format",
}
NAMES = {
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
THINKING = {"enabled": True, "adaptive": True, "disabled": False}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesTool(Fields):
    """One tool; those with a type of their own are Anthropic's."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Fields):
    """Whether and which tools are called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Fields):
    """Whether the model thinks; a budget of tokens cannot be set."""

    type: str
    display: str | None = None


class OutputConfig(Fields):
    """How hard to think, and the form of the answer."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class CountBody(SamplingFields):
    """A body of count_tokens: what the prompt is made of."""

    messages: list[Any]
    model: str | None = None
    system: str | list[Any] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    container: Any = None
    mcp_servers: Any = None
    output_format: Any = None
    context_management: dict[str, Any] | None = None


class MessagesBody(CountBody):
    """A request's body. `seed` and the penalties are beyond Anthropic's."""

    max_tokens: Annotated[Whole, Field(ge=1)]
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    return_progress: bool | None = None

    @property
    def shows_thinking(self) -> bool:
        """Whether the text of thinking is sent."""
        return self.thinking is None or self.thinking.display != "omitted"


def job_of(body: MessagesBody, pair: Pair, settings: Settings) -> Job:
    """What a body asks for. Problem 400 for what cannot be had.

    An answer ends where the context does, whatever max_tokens says: with a stop_reason of its own.
    """
    values = {**prompt_values(body, pair), "stop": body.stop_sequences}
    values |= {"max_tokens": body.max_tokens, "return_progress": body.return_progress}
    return replace(chat_job(values, NAMES, pair, settings), clip=True)


def count_job_of(body: CountBody, pair: Pair, settings: Settings) -> Job:
    """What a body of count_tokens asks for: a prompt."""
    return chat_job(prompt_values(body, pair), NAMES, pair, settings)


def prompt_values(body: CountBody, pair: Pair) -> dict[str, Any]:
    """A body's prompt and how it is answered, as a chat body's fields."""
    refuse(body, UNSUPPORTED)
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
        # A model without the switch thinks, or does not, as it always does.
        "chat_template_kwargs": {"enable_thinking": think} if template.think_switch else None,
        "reasoning_effort": effort,
        "response_format": format_of(config.format),
    }


def tool_of(tool: MessagesTool, place: str) -> dict[str, Any]:
    """A tool in the form that chat templates read."""
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
    """A tool_choice in the words of OpenAI's chat API."""
    if choice.type == "tool" and choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in CHOICES:
        raise Problem(
            400, "tool_choice.type must be auto, any, none, or tool with a name.", "tool_choice"
        )
    return CHOICES[choice.type]


def thinking_of(thinking: Thinking | None) -> bool | None:
    """Whether to think; None is what the server's settings say."""
    if thinking is None:
        return None
    if thinking.type not in THINKING:
        raise Problem(
            400, f"thinking.type must be {', '.join(THINKING)}: it is '{thinking.type:.20}'.",
            "thinking.type",
        )  # fmt: skip
    return THINKING[thinking.type]


def format_of(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """The form of the answer as a chat body's response_format."""
    if form is None or form.get("type") != "json_schema":
        return form
    schema = {"name": "output", "schema": form.get("schema"), "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def check_edits(management: dict[str, Any] | None) -> None:
    """Problem 400 for edits of the context; past thinking is the chat template's matter anyway."""
    edits = (management or {}).get("edits") or []
    for edit in edits if isinstance(edits, list) else [edits]:
        kind = edit.get("type") if isinstance(edit, dict) else None
        if not str(kind).startswith("clear_thinking_"):
            raise Problem(
                400,
                f"context_management has the edit '{kind!s:.40}': this server edits no context.",
                "context_management",
            )


# Answers as Anthropic's API writes them

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
REASONS = {"stop": "end_turn", "length": "max_tokens", "calls": "tool_use"}
UNSIGNED = "unsigned"  # clients keep thinking only with a signature, which nobody checks here


class MessagesWriter:
    """Writes one request's answer, whole or as a stream."""

    def __init__(self, body: MessagesBody, job: Job, runner: Runner):
        self._body = body
        self._job = job
        self._runner = runner
        self._head = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": runner.settings.names[0],
        }
        self._items = Items()
        self._ids: dict[int, str] = {}

    async def whole(self, choices: list[Prepared]) -> dict[str, Any]:
        """The answer as one object."""
        last = await self._items.add_all(self._runner.answer(self._job, choices))
        return {
            **self._head,
            "content": [self._block(item) for item in self._items.all],
            **self._reason(last),
            "usage": usage(last.stats),
            **self._told(last),
        }

    async def stream(self, choices: list[Prepared]) -> AsyncGenerator[bytes]:
        """The answer as events; a problem is the last one."""
        try:
            yield self._start(choices[0])
            async with aclosing(self._runner.answer(self._job, choices)) as events:
                async for found in events:
                    if isinstance(found, Progress):
                        told = {"prompt_progress": progress(found)}
                        yield event({"type": "ping", **told}, "ping")
                        continue
                    for step in self._items.add(found):
                        for line in self._step(step):
                            yield line
                    if found.finish_reason:
                        yield self._ending(found)
            yield event({"type": "message_stop"}, "message_stop")
        except Exception as error:
            yield event(as_problem(error).anthropic(), "error")

    def _start(self, one: Prepared) -> bytes:
        message = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(Stats(prompt_tokens=len(one.prompted.request.prompt))),
        }
        return event({"type": "message_start", "message": message}, "message_start")

    def _step(self, step: Step) -> list[bytes]:
        """What a step of the answer's items is in events."""
        item = step.item
        at = {"index": step.item.number}
        if step.change == "opened":
            block = self._block(item)
            return [
                event({"type": "content_block_start", **at, "content_block": block},
                      "content_block_start")
            ]  # fmt: skip
        if step.change == "closed":
            lines = []
            if item.kind == "thinking":
                lines.append(self._delta(item, {"type": "signature_delta", "signature": UNSIGNED}))
            return [*lines, event({"type": "content_block_stop", **at}, "content_block_stop")]
        if item.kind == "thinking":
            if not self._body.shows_thinking:
                return []
            return [self._delta(item, {"type": "thinking_delta", "thinking": step.text})]
        if item.kind == "text":
            return [self._delta(item, {"type": "text_delta", "text": step.text})]
        return [self._delta(item, {"type": "input_json_delta", "partial_json": step.text})]

    def _delta(self, item: Item, delta: dict[str, Any]) -> bytes:
        return event(
            {"type": "content_block_delta", "index": item.number, "delta": delta},
            "content_block_delta",
        )

    def _ending(self, last: Delta) -> bytes:
        found = {"type": "message_delta", "delta": self._reason(last), "usage": usage(last.stats)}
        return event({**found, **self._told(last)}, "message_delta")

    def _block(self, item: Item) -> dict[str, Any]:
        """An item as a content block; one that has just been opened has nothing in it."""
        if item.kind == "text":
            return {"type": "text", "text": item.text}
        if item.kind == "thinking":
            text = item.text if self._body.shows_thinking else ""
            return {
                "type": "thinking",
                "thinking": text,
                "signature": UNSIGNED if item.text else "",
            }
        number = self._ids.setdefault(item.number, f"toolu_{uuid.uuid4().hex[:24]}")
        return {"type": "tool_use", "id": number, "name": item.name, **input_of(item.text)}

    def _reason(self, last: Delta) -> dict[str, Any]:
        """Why the answer ended."""
        reason = REASONS[last.finish_reason or "stop"]
        if last.stop is not None:
            reason = "stop_sequence"
        elif reason == "max_tokens" and last.stats.generated < self._body.max_tokens:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": last.stop}

    def _told(self, last: Delta) -> dict[str, Any]:
        """What is beyond Anthropic's API."""
        return {"timings": timings(last.stats), "dflash": self._runner.describe([last.stats])}


def usage(stats: Stats) -> dict[str, Any]:
    """Anthropic's usage: tokens from the cache are not among the input's."""
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.cached_tokens,
        "output_tokens": stats.generated,
    }


def input_of(arguments: str) -> dict[str, Any]:
    """A call's arguments; those that were cut stay readable as `partial_json`."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return {"input": found}
    return {"input": {}, "partial_json": arguments}
