"""The response object of OpenAI's responses API, and the items of its output."""

import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

from .items import Item
from .job import Delta, Job
from .numbers import timings
from .openai_responses import Reasoning, ResponsesBody, TextConfig
from .problem import Problem
from .responses_tools import Offer, offers_of
from .runner import Runner

PREFIXES = {"thinking": "rs", "text": "msg", "call": "fc"}


@dataclass(frozen=True, slots=True)
class Form:
    """How the text of an item is written: its part's type, and the names of its events."""

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
    """One response, from its beginning to its end."""

    def __init__(self, body: ResponsesBody, job: Job, runner: Runner):
        self._body, self._job, self._runner = body, job, runner
        self._offers = offers_of(body.tools or [])
        self._id, self._began = f"resp_{uuid.uuid4().hex}", int(time.time())
        self._ids: dict[int, tuple[str, str]] = {}  # an item's id, and its call's

    def begun(self) -> dict[str, Any]:
        """The response before its answer."""
        return self._object("in_progress")

    def ended(self, items: list[Item], last: Delta) -> dict[str, Any]:
        """The whole response; it is incomplete where its answer was cut."""
        cut = last.finish_reason == "length"
        status = "incomplete" if cut else "completed"
        output = [self.item(item, "completed") for item in items[:-1]]
        output += [self.item(item, status) for item in items[-1:]]
        stats = last.stats
        thought = "".join(item.text for item in items if item.kind == "thinking")
        thinking = len(self._runner.pair.target.encode(thought)) if thought else 0
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
            "dflash": {**self._runner.describe([stats]), "ignored": list(self._offers.ignored)},
        }

    def failed(self, items: list[Item], problem: Problem) -> dict[str, Any]:
        """The response that a problem broke off."""
        code = "server_error" if problem.status >= 500 else "invalid_prompt"
        output = [self.item(item, "incomplete") for item in items]
        error = {"error": {"code": code, "message": problem.message}}
        return {**self._object("failed", output), **error}

    def item(self, item: Item, status: str, *, empty: bool = False) -> dict[str, Any]:
        """An item of the output; one that has just been opened is `empty`."""
        number, call = self.ids(item)
        found: dict[str, Any] = {"id": number, "status": status}
        parts = [] if empty else [self.part(item, item.text)]
        if item.kind == "text":
            return {**found, "type": "message", "role": "assistant", "content": parts}
        if item.kind == "thinking":
            place = {"content": parts} if self.form(item) is REASONING else {"summary": parts}
            return {**found, "type": "reasoning", "summary": [], **place}
        offer = self.offer(item)
        found |= {"call_id": call, "name": offer.name}
        if offer.namespace is not None:
            found["namespace"] = offer.namespace
        value = "" if empty else self.value(item)
        if offer.is_text:
            return {**found, "type": "custom_tool_call", "input": value}
        return {**found, "type": "function_call", "arguments": value}

    def ids(self, item: Item) -> tuple[str, str]:
        """An item's id, and that of the call that it may be."""
        prefix = "ctc" if item.kind == "call" and self.offer(item).is_text else PREFIXES[item.kind]
        new = f"{prefix}_{uuid.uuid4().hex}", f"call_{uuid.uuid4().hex[:24]}"
        return self._ids.setdefault(item.number, new)

    def form(self, item: Item) -> Form:
        """How an item of text or thinking is written."""
        if item.kind == "text":
            return TEXT
        return SUMMARY if self._body.summarises else REASONING

    def part(self, item: Item, text: str) -> dict[str, Any]:
        """The one part of an item of text or thinking."""
        more = {"annotations": [], "logprobs": []} if item.kind == "text" else {}
        return {"type": self.form(item).part, "text": text, **more}

    def offer(self, item: Item) -> Offer:
        """The tool that a call calls; a name that nobody offered stays as it is."""
        return self._offers.told(item.name) or Offer(item.name, item.name, {})

    def value(self, item: Item) -> str:
        """A call's arguments, or the text that a custom tool is called with."""
        if self.offer(item).is_text:
            try:
                return str(json.loads(item.text)["input"])
            except (ValueError, RecursionError, KeyError, TypeError):
                return item.text  # it was cut, or is no call of the form that was asked for
        return item.text

    def _object(self, status: str, output: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        body, sampling = self._body, self._job.sampling
        reasoning, config = body.reasoning or Reasoning(), body.text or TextConfig()
        verbosity = {"verbosity": config.verbosity} if config.verbosity else {}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._began,
            "completed_at": None,
            "status": status,
            "model": self._runner.settings.names[0],
            "output": output or [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "tools": [self._tool(offer) for offer in self._offers.all],
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

    def _tool(self, offer: Offer) -> dict[str, Any]:
        """A tool that the model was told of, with the name that it was told."""
        if offer.is_text:
            return {**offer.fields, "name": offer.told}
        given = {name: offer.fields.get(name) for name in ("type", "description", "parameters")}
        return {**given, "name": offer.told, "strict": False}
