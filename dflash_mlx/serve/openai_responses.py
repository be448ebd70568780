"""OpenAI's `POST /v1/responses`, stateless: a body to a job.

https://platform.openai.com/docs/api-reference/responses
"""

import json
import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from dflash_mlx.pair import Pair

from .job import Delta, Item, Items, Job, Progress, Step, progress, timings
from .openai_chat import chat_job, sampling_values, text_of
from .protocol import Fields, Problem, SamplingFields, Settings, Whole, as_problem, event, refuse
from .runner import Prepared, Runner

# Tools of OpenAI's responses API

# What OpenAI's servers run. Codex offers these with every request and asks for none, so the model
# is not told of them, and the response says so. Any other tool that is missing is refused.
LEFT_OUT = ("web_search", "image_generation", "tool_search")
TEXT_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "the text of the call"}},
    "required": ["input"],
}


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool: its name for the model, its name and namespace for the client, and its fields.

    `is_text`: a custom tool, called with a text; the model gives that as the argument `input`.
    """

    told: str
    name: str
    fields: dict[str, Any]
    namespace: str | None = None
    is_text: bool = False

    @property
    def grammar(self) -> str | None:
        """What the text of a custom tool has to be like; None where it is free."""
        form = self.fields.get("format")
        if not isinstance(form, dict) or form.get("type") != "grammar":
            return None
        return str(form.get("definition"))

    @property
    def function(self) -> dict[str, Any]:
        """The tool in the form that chat templates read."""
        about, parameters = self.fields.get("description") or "", self.fields.get("parameters")
        if self.is_text:
            if self.grammar is not None:
                about += f"\nThe input follows this grammar:\n{self.grammar}"
            parameters = TEXT_INPUT
        function = {"name": self.told, "description": about, "parameters": parameters or {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Offers:
    """A request's tools. `ignored` are the fields of the request that change nothing here."""

    all: tuple[Offer, ...] = ()
    ignored: tuple[str, ...] = ()

    def told(self, name: str) -> Offer | None:
        """The tool that the model calls so."""
        return next((one for one in self.all if one.told == name), None)


def offers_of(tools: list[Any]) -> Offers:
    """The tools. Problem 400 for one that cannot be had."""
    found: list[Offer] = []
    ignored: list[str] = []
    for number, tool in enumerate(tools):
        place = f"tools.{number}"
        if not isinstance(tool, dict):
            raise Problem(400, f"{place} is not an object.", place)
        kind = tool.get("type")
        if isinstance(kind, str) and kind.startswith(LEFT_OUT):
            ignored.append(f"{place} ({kind:.40})")
        elif kind == "namespace":
            inner = tool.get("tools")
            if not isinstance(inner, list):
                raise Problem(400, f"{place}.tools must be a list.", f"{place}.tools")
            name = text(tool, "name", place)
            found += [offer_of(one, f"{place}.tools.{n}", name) for n, one in enumerate(inner)]
        else:
            found.append(offer_of(tool, place))
        if kind == "custom" and found[-1].grammar is not None:
            ignored.append(f"{place}.format (the model is told of it, and not forced)")
    return Offers(tuple(found), tuple(ignored))


def offer_of(tool: Any, place: str, namespace: str | None = None) -> Offer:
    """One tool that the client runs."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in ("function", "custom"):
        raise Problem(
            400,
            f"{place} is of the type '{kind!s:.40}': this server offers only tools that the "
            "client runs, of the types function and custom.",
            f"{place}.type",
        )
    name = text(tool, "name", place)
    if tool.get("description") is not None:
        text(tool, "description", place)
    told = name if namespace is None else f"{namespace.removesuffix('__')}__{name}"
    return Offer(told, name, tool, namespace, is_text=kind == "custom")


def choice_of(choice: Any, offers: Offers) -> Any:
    """A tool_choice in the words of OpenAI's chat API."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") in ("function", "custom"):
        name = text(choice, "name", "tool_choice")
        found = next((one.told for one in offers.all if name in (one.told, one.name)), name)
        return {"type": "function", "function": {"name": found}}
    raise Problem(
        400,
        f"tool_choice cannot be of the type '{choice.get('type')!s:.40}': give auto, none, "
        "required, or a function.",
        "tool_choice",
    )


def text(fields: dict[str, Any], name: str, place: str) -> str:
    """A field that is a text. Problem 400 where it is not."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise Problem(400, f"{place}.{name} must be a text.", f"{place}.{name}")
    return value


# Input items of OpenAI's responses API as messages of its chat API.

ROLES = ("user", "assistant", "system", "developer")
# The order of an assistant's turn.
RANKS = ("reasoning_content", "content", "tool_calls")


def chat_messages(instructions: str | None, given: Any, offers: Offers) -> list[dict[str, Any]]:
    """The messages; Problem 400 names the item that is wrong or cannot be read."""
    history = History(offers)
    if instructions:
        history.messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not given:
        raise Problem(400, "input is empty.", "input")
    for number, item in enumerate(given):
        if not isinstance(item, dict):
            raise Problem(400, f"input.{number} is not an object.", f"input.{number}")
        history.add(item, f"input.{number}")
    return history.messages


class History:
    """Messages that grow by items."""

    def __init__(self, offers: Offers):
        self.messages: list[dict[str, Any]] = []
        self._offers = offers
        self._names: dict[str, str] = {}  # of calls by their ids

    def add(self, item: dict[str, Any], place: str) -> None:
        """Add one item."""
        kind = item.get("type") or "message"
        if kind == "message":
            self._message(item, place)
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            if thought := "\n".join(thoughts(parts, place)):
                self._assistant("reasoning_content", thought)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, place, is_text=kind == "custom_tool_call")
        elif kind in ("function_call_output", "custom_tool_call_output"):
            number = text(item, "call_id", place)
            name = {"name": self._names[number]} if number in self._names else {}
            output = text_of(item.get("output"), f"{place}.output") or ""
            message = {"role": "tool", "tool_call_id": number, **name, "content": output}
            self.messages.append(message)
        else:
            why = "nothing is kept here" if kind == "item_reference" else "it cannot be read"
            raise Problem(400, f"{place} is of the type '{kind!s:.40}': {why}.", place)

    def _message(self, item: dict[str, Any], place: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise Problem(400, f"{place}.role must be one of {', '.join(ROLES)}.", f"{place}.role")
        content = text_of(item.get("content"), f"{place}.content")
        if content is None:
            raise Problem(400, f"{place}.content is missing.", f"{place}.content")
        if role == "assistant":
            self._assistant("content", content)
        else:
            self.messages.append({"role": role, "content": content})

    def _call(self, item: dict[str, Any], place: str, *, is_text: bool) -> None:
        number, name = text(item, "call_id", place), text(item, "name", place)
        if is_text:
            arguments: Any = {"input": text(item, "input", place)}
        else:
            try:
                arguments = json.loads(text(item, "arguments", place) or "{}")
            except (ValueError, RecursionError):
                place = f"{place}.arguments"
                raise Problem(400, f"{place} is not JSON.", place) from None
        key = (item.get("namespace"), name)
        told = [one.told for one in self._offers.all if (one.namespace, one.name) == key]
        self._names[number] = told[0] if told else name
        function = {"name": self._names[number], "arguments": arguments}
        call = {"id": number, "type": "function", "function": function}
        self._assistant("tool_calls", [call])

    def _assistant(self, field: str, value: Any) -> None:
        """Add to the assistant's turn; a new one begins where it would go back in its order."""
        last = self.messages[-1] if self.messages else {"role": ""}
        later = RANKS[RANKS.index(field) + 1 :]
        if last["role"] != "assistant" or any(last.get(name) for name in later):
            self.messages.append({"role": "assistant", field: value})
        elif isinstance(value, str) and last.get(field):
            last[field] += "\n" + value
        else:
            last[field] = last.get(field, type(value)()) + value


def thoughts(parts: Any, place: str) -> list[str]:
    """The texts of a reasoning item's content or summary."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise Problem(400, f"{place} must have lists of parts.", place)
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


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


# The response object of OpenAI's responses API, and the items of its output.

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
        body, sampling = self._body, self._job.options.sampling
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


# Answers as OpenAI's responses API writes them


class ResponsesWriter:
    """Writes one request's answer, whole or as a stream."""

    def __init__(self, body: ResponsesBody, job: Job, runner: Runner):
        self._job, self._runner = job, runner
        self._response = ResponseObject(body, job, runner)
        self._items = Items()
        self._sent = 0

    async def whole(self, choices: list[Prepared]) -> dict[str, Any]:
        """The answer as one object."""
        last = await self._items.add_all(self._runner.answer(self._job, choices))
        return self._response.ended(self._items.all, last)

    async def stream(self, choices: list[Prepared]) -> AsyncGenerator[bytes]:
        """The answer as events; a problem is the last one."""
        begun = self._response.begun()
        try:
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
            async with aclosing(self._runner.answer(self._job, choices)) as events:
                async for found in events:
                    if isinstance(found, Progress):
                        told = {"response": begun, "prompt_progress": progress(found)}
                        yield self._event("response.in_progress", **told)
                        continue
                    steps = list(self._items.add(found))
                    for step in steps:
                        cut = found.finish_reason == "length" and step is steps[-1]
                        for line in self._step(step, cut=cut):
                            yield line
                    if found.finish_reason:
                        ended = self._response.ended(self._items.all, found)
                        yield self._event(f"response.{ended['status']}", response=ended)
        except Exception as error:
            failed = self._response.failed(self._items.all, as_problem(error))
            yield self._event("response.failed", response=failed)

    def _event(self, kind: str, **fields: Any) -> bytes:
        found = {"type": kind, "sequence_number": self._sent, **fields}
        self._sent += 1
        return event(found, kind)

    def _step(self, step: Step, *, cut: bool) -> Iterator[bytes]:
        """What a step of the answer's items is in events; `cut`: its item is not whole."""
        item = step.item
        index = {"output_index": item.number}
        at = {**index, "item_id": self._response.ids(item)[0]}
        inside = self._call if item.kind == "call" else self._text
        if step.change == "opened":
            found = self._response.item(item, "in_progress", empty=True)
            yield self._event("response.output_item.added", **index, item=found)
        yield from inside(step, at)
        if step.change == "closed":
            found = self._response.item(item, "incomplete" if cut else "completed")
            yield self._event("response.output_item.done", **index, item=found)

    def _text(self, step: Step, at: dict[str, Any]) -> Iterator[bytes]:
        """The events of the one part of text or thinking."""
        item, form = step.item, self._response.form(step.item)
        at = {**at, form.index: 0}
        more = {"logprobs": []} if item.kind == "text" else {}
        if step.change == "opened":
            part = self._response.part(item, "")
            yield self._event(f"{form.part_event}.added", **at, part=part)
        elif step.change == "added":
            yield self._event(f"{form.text_event}.delta", **at, delta=step.text, **more)
        else:
            part = self._response.part(item, item.text)
            yield self._event(f"{form.text_event}.done", **at, text=item.text, **more)
            yield self._event(f"{form.part_event}.done", **at, part=part)

    def _call(self, step: Step, at: dict[str, Any]) -> Iterator[bytes]:
        """The events of a call; the text of a custom tool is inside of JSON until that ends."""
        offer, value = self._response.offer(step.item), self._response.value(step.item)
        if step.change == "added" and not offer.is_text:
            kind = "response.function_call_arguments.delta"
            yield self._event(kind, **at, delta=step.text)
        elif step.change == "closed" and offer.is_text:
            yield self._event("response.custom_tool_call_input.delta", **at, delta=value)
            yield self._event("response.custom_tool_call_input.done", **at, input=value)
        elif step.change == "closed":
            kind = "response.function_call_arguments.done"
            yield self._event(kind, **at, name=offer.name, arguments=value)
