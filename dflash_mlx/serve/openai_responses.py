"""OpenAI's `POST /v1/responses`, stateless: a body to a job.

https://platform.openai.com/docs/api-reference/responses
"""

from typing import Annotated, Any

from pydantic import Field

from dflash_mlx.pair import Pair

from .as_chat import chat_job, sampling_values
from .fields import Fields, SamplingFields, Whole, refuse
from .job import Job
from .responses_items import chat_messages
from .responses_tools import choice_of, offers_of
from .settings import Settings

KEPT = "nothing is kept here: send the whole conversation as input"
UNSUPPORTED = {
    "previous_response_id": KEPT,
    "conversation": KEPT,
    "prompt": "no prompts are kept here",
    "background": "an answer is found while its client waits",
    "top_logprobs": "chat completions have it",
}
NAMES = {"reasoning_effort": "reasoning.effort", "response_format": "text.format"}


class Reasoning(Fields):
    """How hard to think, and whether thinking is sent as a summary."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextConfig(Fields):
    """The form of the answer; how long it is cannot be set."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesBody(SamplingFields):
    """A request's body. `seed`, `stop` and the penalties are beyond OpenAI's."""

    input: str | list[Any]
    instructions: str | None = None
    model: str | None = None
    max_output_tokens: Annotated[Whole, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    return_progress: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    background: Any = None
    top_logprobs: Any = None

    @property
    def summarises(self) -> bool:
        """Whether thinking is sent as a summary, which is all of it, and not as reasoning text."""
        reasoning = self.reasoning or Reasoning()
        return bool(reasoning.summary or reasoning.generate_summary)


def job_of(body: ResponsesBody, pair: Pair, settings: Settings) -> Job:
    """What a body asks for. Problem 400 for what cannot be had."""
    refuse(body, UNSUPPORTED)
    offers = offers_of(body.tools or [])
    reasoning, form = body.reasoning or Reasoning(), (body.text or TextConfig()).format
    values = {
        **sampling_values(body),
        "messages": chat_messages(body.instructions, body.input, offers),
        "max_tokens": body.max_output_tokens,
        "stop": body.stop,
        "tools": [offer.function for offer in offers.all] or None,
        "tool_choice": choice_of(body.tool_choice, offers),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": reasoning.effort,
        "response_format": format_of(form),
        "return_progress": body.return_progress,
    }
    return chat_job(values, NAMES, pair, settings)


def format_of(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """The form of the answer as a chat body's response_format."""
    if form is None or form.get("type") != "json_schema":
        return form
    return {
        "type": "json_schema",
        "json_schema": {name: value for name, value in form.items() if name != "type"},
    }
