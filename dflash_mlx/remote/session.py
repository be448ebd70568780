"""Answers from the model of a server, with the interface of `Session` and without MLX."""

import json
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from dflash_mlx.address import Address
from dflash_mlx.chat.messages import Messages, is_begun
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.grammar import Grammar
from dflash_mlx.option_keywords import options_of, takes_options
from dflash_mlx.options import GenerationOptions, SamplingParams, declared
from dflash_mlx.types import Block, Call, Progress, silent

from .client import NO_ENDPOINT, broken_off, error_message, read_json, stream_events

# The options of an answer as fields of a request

# The kinds of servers, by `owned_by` in their lists of models.
KINDS = {"dflash": "dflash serve", "vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}
OTHER = "this server"
OPENAI_FIELDS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
ALWAYS_SENT = ("temperature", "top_p")
RENAMED_FIELDS = {("llamacpp", "repetition_penalty"): "repeat_penalty"}
XTC_FIELDS = ("xtc_probability", "xtc_threshold")
XTC_KINDS = ("dflash", "llamacpp")
RULE_FIELDS = ("min_tokens", "ignore_eos", "bad_words")
RULE_KINDS = ("dflash", "vllm")
PROGRESS_KINDS = ("dflash", "llamacpp")
# The fields with which servers go on from a last message of the assistant's.
GO_ON_FIELDS: dict[str, dict[str, bool]] = {
    "dflash": {},
    "llamacpp": {},
    "sglang": {"continue_final_message": True},
    "vllm": {"continue_final_message": True, "add_generation_prompt": False},
}


def sampling_fields(params: SamplingParams, kind: str) -> dict[str, Any]:
    """The sampling parameters as fields.

    Fields outside of OpenAI's API are sent to known kinds of servers only. They are sent even if
    the parameter is off, because the server's default may be another one.
    """
    if params.logit_bias:
        raise UsageError("logit_bias names token ids, which may differ on the server.")
    sampling: dict[str, Any] = {}
    for option in declared(SamplingParams):
        value = getattr(params, option.name)
        is_off = value == option.default
        if option.name in OPENAI_FIELDS:
            if option.name in ALWAYS_SENT or not is_off:
                sampling[option.name] = value
        elif option.name in XTC_FIELDS and (is_off or kind in XTC_KINDS):
            if not is_off:
                sampling[option.name] = value
        elif kind in KINDS and option.name not in XTC_FIELDS:
            if option.name == "top_k" and is_off:
                value = -1  # SGLang's value for off
            sampling[RENAMED_FIELDS.get((kind, option.name), option.name)] = value
        elif not is_off:
            raise no_field(option.flag)
    return sampling


def rule_fields(options: GenerationOptions, kind: str) -> dict[str, Any]:
    if options.stop_token_ids or options.allowed_token_ids:
        raise UsageError("stop_token_ids and allowed_token_ids may differ on the server.")
    rules = {name: getattr(options, name) for name in RULE_FIELDS if getattr(options, name)}
    for name in rules:
        if kind not in RULE_KINDS:
            raise no_field(name)
    return rules


def thinking_fields(think: bool | None, effort: str | None, kind: str) -> dict[str, Any]:
    thinking: dict[str, Any] = {}
    template_options: dict[str, Any] = {}
    if think is not None:
        if kind not in KINDS:
            raise no_field("--think" if think else "--no-think")
        template_options["enable_thinking"] = think
    if effort is not None and kind == "llamacpp":
        template_options["reasoning_effort"] = effort
    elif effort is not None:
        thinking["reasoning_effort"] = effort
    if template_options:
        thinking["chat_template_kwargs"] = template_options
    return thinking


def format_fields(grammar: Grammar | None) -> dict[str, Any]:
    if grammar is None:
        return {}
    if grammar.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if grammar.kind != "json_schema":
        raise no_field("--grammar")
    json_schema = {"name": "answer", "schema": json.loads(grammar.text), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def no_field(option: str) -> UsageError:
    return UsageError(f"the API of {OTHER} has no field for {option}.", hint=f"leave {option} out")


def request_fields(kind: str, options: GenerationOptions) -> dict[str, Any]:
    """The fields of a request without model and messages.

    Options that only apply to a local model are left out. Raises UsageError for other options that
    the server's API has no field for.
    """
    return {
        **sampling_fields(options.sampling, kind),
        **thinking_fields(options.think, options.reasoning_effort, kind),
        **format_fields(options.structure),
        **rule_fields(options, kind),
        **({} if options.max_tokens is None else {"max_tokens": options.max_tokens}),
        **({"stop": list(options.stop)} if options.stop else {}),
        **({"tools": list(options.tools)} if options.tools else {}),
        **({"return_progress": True} if kind in PROGRESS_KINDS else {}),
        "stream": True,
        "stream_options": {"include_usage": True},
    }


# The statistics of an answer, as far as the server reports them

COUNTS = frozenset({"generated", "prompt_tokens", "cached_tokens", "drafted", "accepted"})


@dataclass(slots=True)
class RemoteStats(Stats):
    """The statistics of a server's answer.

    unknown: the counts that the server has not reported. reported: values that have no field here.
    Times are the server's, or if it reports none, measured here with the time of the network;
    first_token_seconds is always measured here.
    """

    unknown: frozenset[str] = COUNTS
    reported: dict[str, Any] = field(default_factory=dict)

    def update(self, chunk: dict[str, Any]) -> None:
        """Read OpenAI's `usage`, llama-server's `timings` and dflash's `dflash` in a chunk."""
        usage = object_at(chunk, "usage")
        timings = object_at(chunk, "timings")
        self._count("prompt_tokens", usage.get("prompt_tokens"))
        self._count("generated", usage.get("completion_tokens"))
        details = object_at(usage, "prompt_tokens_details")
        self._count("cached_tokens", timings.get("cache_n", details.get("cached_tokens")))
        self._count("drafted", timings.get("draft_n"))
        self._count("accepted", timings.get("draft_n_accepted"))
        for name, key in (("prefill_seconds", "prompt_ms"), ("decode_seconds", "predicted_ms")):
            if is_number(timings.get(key)):
                setattr(self, name, timings[key] / 1e3)
        if "predicted_per_second" in timings:
            self.reported["rate"] = timings["predicted_per_second"]
        self.reported |= object_at(chunk, "dflash")
        self.verifies = int(self._reported_number("verifies") or 0)
        if isinstance(self.reported.get("seed"), int):
            self.seed = self.reported["seed"]

    def _count(self, name: str, value: Any) -> None:
        if isinstance(value, int) and not isinstance(value, bool):
            setattr(self, name, value)
            self.unknown -= {name}

    @property
    def acceptance_length(self) -> float:
        """1.0 if the server does not report it."""
        return self._reported_number("acceptance_length") or 1.0

    @property
    def tokens_per_second(self) -> float:
        """The server's rate, else the tokens after the first one divided by `decode_seconds`."""
        return self._reported_number("rate") or Stats.tokens_per_second.__get__(self)

    def _reported_number(self, name: str) -> float | None:
        value = self.reported.get(name)
        return float(value) if is_number(value) else None


def object_at(data: dict[str, Any], name: str) -> dict[str, Any]:
    """The JSON object in a field; empty if the field is missing or another value."""
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def objects_at(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The JSON objects in the list of a field; empty if the field is missing or another value."""
    values = data.get(name)
    values = values if isinstance(values, list) else []
    return [value for value in values if isinstance(value, dict)]


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


# The models of a server

FINISH_REASONS = {"length": "length", "max_tokens": "length"}  # all others mean stop
FAILURE_REASONS = ("content_filter", "abort", "error")  # finish reasons of incomplete answers
MAX_NAMES = 6  # models in a hint


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server with one of its models. kind: a key of KINDS, or empty for an unknown kind.

    context_length: the maximum number of tokens of prompt and answer; 0 if it is not known. key:
    left out of the repr.
    """

    address: Address
    model: str
    kind: str = ""
    context_length: int = 0
    draft_name: str | None = None
    key: str | None = field(default=None, repr=False)

    @property
    def target_name(self) -> str:
        """The address with the model, which chats save as the name of their target."""
        return f"{self.address.url}#{self.model}"


def connect(address: Address, key: str | None = None) -> RemoteServer:
    """Get a server's list of models, and choose the one that the address names, or the only one.

    Raises DFlashError for a server that cannot be used, UsageError for a model that it does not
    have, and if it has several models and the address names none.
    """
    response = read_json(f"{address.url}/models", key)
    if not isinstance(response, dict) or not isinstance(response.get("data"), list):
        raise DFlashError(f"{address.url} is not an OpenAI-compatible API.", hint=NO_ENDPOINT)
    entries = objects_at(response, "data")
    models = {entry["id"]: entry for entry in entries if type(entry.get("id")) is str}
    names = ", ".join([*models][:MAX_NAMES]) + (", ..." if len(models) > MAX_NAMES else "")
    name = address.model
    # Our server begins with the model that it was started for.
    if name is None and (len(models) == 1 or {*map(kind_of, models.values())} == {"dflash"}):
        name = next(iter(models))
    if name is None:
        raise UsageError(
            f"{address.url} has {len(models)} models."
            if models
            else f"{address.url} names no model.",
            hint=f"name one: {address.url}#NAME" + (f", with {names}" if names else ""),
        )
    if name not in models:
        raise UsageError(
            f"{address.url} has no model '{name:.100}'.", hint=f"it has {names or 'none'}"
        )
    model = models[name]
    length = model.get("max_model_len")
    draft = model.get("draft")
    return RemoteServer(
        address,
        name,
        kind_of(model),
        context_length=length if isinstance(length, int) else 0,
        draft_name=draft if isinstance(draft, str) else None,
        key=key,
    )


def kind_of(model: dict[str, Any]) -> str:
    owner = model.get("owned_by")
    return owner if owner in KINDS else ""


class RemoteSession:
    """Answers of one model, one after another. stats, calls: of the last answer.

    counted: the tokens of the last prompt that the server counted, and its `prompt_length`. Each
    request has all messages; servers have prefix caches of their own.
    """

    def __init__(self, server: RemoteServer):
        self.server = server
        self.stats = RemoteStats()
        self.calls: tuple[Call, ...] = ()
        self.counted = (0, 0)
        # The index in `calls` and the id of a call, by the index that the server gives it.
        self._call_places: dict[int, tuple[int, Any]] = {}

    @takes_options
    def stream(
        self,
        prompt: Messages,
        options: GenerationOptions | None = None,
        *,
        on_prefill: Progress = silent,
        **keywords: Any,
    ) -> Generator[Block]:
        """Answer messages block by block, with the options that `request_fields` can send.

        `on_prefill(done, total)` gets the server's progress in prompt tokens, and (0, 0) while
        no text arrives; an exception in it ends the answer. Closing the iterator closes the
        connection. The last block has the finish reason and the calls. Raises DFlashError for a
        refused request, ServerLost for an answer that breaks off.
        """
        blocks = self.stream_several(
            prompt, options_of(options, keywords, "dflash"), 1, on_prefill=on_prefill
        )
        return first_of(blocks)

    def stream_several(
        self,
        messages: Messages,
        options: GenerationOptions,
        count: int,
        *,
        on_prefill: Progress = silent,
    ) -> Generator[tuple[int, Block, Stats]]:
        """As `stream`, `count` answers at once (`n`), each block with its answer's number from 0.

        A server that ignores `n` sends fewer. The statistics are those of all answers together.
        """
        kind = self.server.kind
        body = {"model": self.server.model, "messages": api_messages(messages)}
        body |= request_fields(kind, options) | ({"n": count} if count > 1 else {})
        if is_begun(messages):
            if kind not in GO_ON_FIELDS:
                raise UsageError(
                    f"{OTHER} may not go on from the text of an answer.",
                    hint="ask it in words to go on",
                )
            body |= GO_ON_FIELDS[kind]
        self.stats = RemoteStats()
        self.calls = ()
        self._call_places = {}
        return self._blocks(body, on_prefill)

    def _blocks(
        self, body: dict[str, Any], on_prefill: Progress
    ) -> Generator[tuple[int, Block, Stats]]:
        url = self.server.address.url
        finish_reasons: dict[int, str] = {}
        length = prompt_length(body["messages"], body.get("tools", ()))
        on_prefill(0, 0)
        endpoint = f"{url}/chat/completions"
        events = stream_events(endpoint, self.server.key, body, lambda: on_prefill(0, 0))
        with closing(events):
            for event in events:
                if event.get("error"):
                    raise broken_off(url, error_message(event)[:300].rstrip("."))
                self.stats.update(event)
                if self.stats.prompt_tokens:
                    self.counted = self.stats.prompt_tokens, length
                if progress := object_at(event, "prompt_progress"):
                    report_progress(on_prefill, progress)
                for choice in objects_at(event, "choices"):
                    number = number_of(choice, body.get("n", 1))
                    if reason := choice.get("finish_reason"):
                        finish_reasons[number] = reason
                    delta = object_at(choice, "delta")
                    self._add_calls(objects_at(delta, "tool_calls"))
                    block = block_of(delta)
                    if block.text or block.thinking:
                        self.stats.record_arrival()
                        yield number, block, self.stats
                    else:
                        on_prefill(0, 0)
        if not finish_reasons:
            raise broken_off(url, "the connection ended")
        for reason in finish_reasons.values():
            if reason in FAILURE_REASONS:
                raise broken_off(url, f"the server says {reason}")
        for number, reason in finish_reasons.items():
            end = FINISH_REASONS.get(reason, "stop")
            yield number, Block((), finish_reason=end, calls=self.calls), self.stats

    def _add_calls(self, deltas: list[dict[str, Any]]) -> None:
        """Add the tool-call deltas of an event: a name starts a call, arguments continue it.

        Some servers repeat name and id in every delta, others give all calls the same index.
        """
        calls = list(self.calls)
        for delta in deltas:
            function = object_at(delta, "function")
            name = function.get("name")
            arguments = function.get("arguments")
            call_id = delta.get("id")
            index = delta.get("index")
            if not isinstance(index, int):
                index = len(calls)
            place, known_id = self._call_places.get(index, (len(calls), None))
            is_new = place == len(calls) or (call_id and known_id and call_id != known_id)
            if name and is_new:
                place = len(calls)
                known_id = call_id
                calls.append(Call(name, ""))
            if place == len(calls):
                raise broken_off(self.server.address.url, "a call of a tool has no beginning")
            self._call_places[index] = (place, known_id)
            if not isinstance(arguments, str):
                arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
            calls[place] = replace(calls[place], arguments=calls[place].arguments + arguments)
        self.calls = tuple(calls)


def first_of(numbered: Generator[tuple[int, Block, Stats]]) -> Generator[Block]:
    with closing(numbered):
        for _, block, _ in numbered:
            yield block


def block_of(delta: dict[str, Any]) -> Block:
    thinking = delta.get("reasoning_content") or delta.get("reasoning")
    text = delta.get("content") or delta.get("refusal")
    if isinstance(text, list):  # of content parts
        texts = [part.get("text") for part in text if isinstance(part, dict)]
        text = "".join(part for part in texts if isinstance(part, str))
    return Block(
        (),
        text=text if isinstance(text, str) else "",
        thinking=thinking if isinstance(thinking, str) else "",
    )


def prompt_length(messages: Messages, tools: Sequence[dict[str, Any]]) -> int:
    """The characters of a request's prompt as JSON, whose markup stands for the chat template's."""
    return len(json.dumps([*messages, *tools], ensure_ascii=False))


def number_of(choice: dict[str, Any], count: int) -> int:
    """The number of a choice, below `count`; 0 if the request asked for one."""
    number = choice.get("index")
    return number if isinstance(number, int) and 0 <= number < count else 0


def report_progress(on_prefill: Progress, progress: dict[str, Any]) -> None:
    done = progress.get("processed")
    total = progress.get("total")
    cached = progress.get("cache")
    if is_number(done) and is_number(total):
        cached = cached if is_number(cached) else 0
        on_prefill(int(done - cached), int(total - cached))


def api_messages(messages: Sequence[dict[str, Any]]) -> Messages:
    """The messages in the format of the API: without `thinking`, arguments of calls as JSON text.

    Thinking is already in `reasoning_content`; `thinking` is the name in gpt-oss's template.
    """
    converted: Messages = []
    for message in messages:
        message = {name: value for name, value in message.items() if name != "thinking"}
        calls = []
        for call in message.get("tool_calls") or ():
            arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            calls.append({**call, "function": {**call["function"], "arguments": arguments}})
        converted.append({**message, "tool_calls": calls} if calls else message)
    return converted
