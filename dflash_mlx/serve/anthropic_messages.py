"""Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`: a body to a job.

https://docs.anthropic.com/en/api/messages
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from dflash_mlx.pair import Pair

from .anthropic_blocks import chat_messages
from .as_chat import chat_job, sampling_values
from .fields import Fields, SamplingFields, Whole, refuse
from .job import Job
from .problem import Problem
from .settings import Settings

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
    template = pair.target.template
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
