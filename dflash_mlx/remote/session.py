"""The models of a server, and answers of one: with the interface of `Session`, without MLX."""

import json
import re
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from dflash_mlx.chat.messages import Messages
from dflash_mlx.engine.stats import Stats
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.grammar import Grammar
from dflash_mlx.options import (
    GenerationOptions,
    SamplingParams,
    declared,
    options_of,
    takes_options,
)
from dflash_mlx.tools.call import Call
from dflash_mlx.types import Block, Progress, silent

from .client import NO_ENDPOINT, Address, lost, message_of

# Options of an answer as fields of a request, for the servers that know them.

# By what a server's list of models says who owns them.
KINDS = {"dflash": "dflash serve", "vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}
OTHER = "this server"
OPENAI_FIELDS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
ALWAYS_SENT = ("temperature", "top_p")
OWN_NAMES = {("llamacpp", "repetition_penalty"): "repeat_penalty"}
WITH_PROGRESS = ("dflash", "llamacpp")


def sampling_fields(params: SamplingParams, kind: str) -> dict[str, Any]:
    """How tokens are chosen. What is off is said to be off, where only servers that are known have
    the field: their own default may be another.
    """
    if params.logit_bias:
        raise UsageError("logit_bias is of token ids, which a server elsewhere may not share.")
    sent: dict[str, Any] = {}
    for one in declared(SamplingParams):
        value = getattr(params, one.name)
        is_off = value == one.default
        if one.name in OPENAI_FIELDS:
            if one.name in ALWAYS_SENT or not is_off:
                sent[one.name] = value
        elif kind in KINDS:
            value = -1 if one.name == "top_k" and is_off else value  # SGLang's word for off
            sent[OWN_NAMES.get((kind, one.name), one.name)] = value
        elif not is_off:
            raise no_field(one.flag)
    return sent


def thinking_fields(think: bool | None, effort: str | None, kind: str) -> dict[str, Any]:
    """Whether and how hard to think."""
    found, template = dict[str, Any](), dict[str, Any]()
    if think is not None:
        if kind not in KINDS:
            raise no_field("--think" if think else "--no-think")
        template["enable_thinking"] = think
    if effort is not None and kind == "llamacpp":
        template["reasoning_effort"] = effort
    elif effort is not None:
        found["reasoning_effort"] = effort
    return found | ({"chat_template_kwargs": template} if template else {})


def form_fields(grammar: Grammar | None) -> dict[str, Any]:
    """The form of the answer."""
    if grammar is None:
        return {}
    if grammar.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if grammar.kind != "json_schema":
        raise no_field("--grammar")
    form = {"name": "answer", "schema": json.loads(grammar.text), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def no_field(option: str) -> UsageError:
    """An option that cannot be sent."""
    return UsageError(f"the API of {OTHER} has no field for {option}.", hint=f"leave {option} out")


def request_fields(kind: str, options: GenerationOptions) -> dict[str, Any]:
    """A request without its model and messages; what only a model here has is not sent.

    UsageError for an option that the server has no field for.
    """
    return {
        **sampling_fields(options.sampling, kind),
        **thinking_fields(options.think, options.reasoning_effort, kind),
        **form_fields(options.structure),
        **({} if options.max_tokens is None else {"max_tokens": options.max_tokens}),
        **({"stop": list(options.stop)} if options.stop else {}),
        **({"tools": list(options.tools)} if options.tools else {}),
        **({"return_progress": True} if kind in WITH_PROGRESS else {}),
        "stream": True,
        "stream_options": {"include_usage": True},
    }


# Counts and times of an answer that a server gave, as far as it tells them.

COUNTS = frozenset({"generated", "prompt_tokens", "cached_tokens", "drafted", "accepted"})


@dataclass(slots=True)
class RemoteStats(Stats):
    """As `Stats`; what stands in `unknown` the server has not told, and its field says nothing.

    Times are the server's own where it tells them, else those seen here, the network's included.
    """

    unknown: frozenset[str] = COUNTS
    told: dict[str, Any] = field(default_factory=dict)

    def arrived(self) -> None:
        """Some of the answer has come."""
        now = time.perf_counter()
        if self._first is None:
            self._first = now
            self.prefill_seconds = now - self._began
        self.decode_seconds = now - self._first

    def take(self, chunk: dict[str, Any]) -> None:
        """Take what a chunk tells: OpenAI's usage, llama-server's timings, what `dflash` adds."""
        usage, timings = of(chunk, "usage"), of(chunk, "timings")
        self._count("prompt_tokens", usage.get("prompt_tokens"))
        self._count("generated", usage.get("completion_tokens"))
        details = of(usage, "prompt_tokens_details")
        self._count("cached_tokens", timings.get("cache_n", details.get("cached_tokens")))
        self._count("drafted", timings.get("draft_n"))
        self._count("accepted", timings.get("draft_n_accepted"))
        for name, key in (("prefill_seconds", "prompt_ms"), ("decode_seconds", "predicted_ms")):
            if is_number(timings.get(key)):
                setattr(self, name, timings[key] / 1e3)
        if "predicted_per_second" in timings:
            self.told["rate"] = timings["predicted_per_second"]
        self.told |= of(chunk, "dflash")
        if isinstance(self.told.get("seed"), int):
            self.seed = self.told["seed"]

    def _count(self, name: str, value: Any) -> None:
        if isinstance(value, int) and not isinstance(value, bool):
            setattr(self, name, value)
            self.unknown -= {name}

    @property
    def verifies(self) -> int:
        """As the server tells; 0 where it does not."""
        return int(self._told("verifies") or 0)

    @property
    def acceptance_length(self) -> float:
        """Likewise, 1.0."""
        return self._told("acceptance_length") or 1.0

    @property
    def tokens_per_second(self) -> float:
        """The server's own rate, else that of the tokens it counted over the seconds seen here."""
        if told := self._told("rate"):
            return told
        if self.generated < 2 or not self.decode_seconds:
            return 0.0
        return (self.generated - 1) / self.decode_seconds

    def _told(self, name: str) -> float | None:
        value = self.told.get(name)
        return float(value) if is_number(value) else None


def of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object; an empty one where it is not."""
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a server's JSON is a number that can be shown."""
    return isinstance(value, int | float) and not isinstance(value, bool)


ENDS = {"length": "length", "max_tokens": "length"}
BROKEN = ("content_filter", "abort", "error")  # ends that are none of the model's
SHOWN = 6  # names of models in a hint


@dataclass(frozen=True, slots=True)
class Server:
    """One model of a server. `kind` is a key of KINDS, or empty for a server that is not known.

    context_length: the most tokens of a prompt with its answer, 0 where it is not told. The key is
    in no text of this object.
    """

    address: Address
    model: str
    kind: str = ""
    context_length: int = 0
    draft_name: str | None = None
    key: str | None = field(default=None, repr=False)

    @property
    def target_name(self) -> str:
        """What a chat calls it, and finds it again by: the address with the model."""
        return f"{self.address.url}#{self.model}"

    @property
    def drafts(self) -> bool:
        """Whether somebody here can ask it to draft, or not to."""
        return False

    def not_here(self, what: str) -> UsageError:
        """The error for what needs the model itself."""
        return UsageError(
            f"{what} needs a model on this machine, and a server answers here.",
            hint="begin a chat or an answer with --model ID, a Hub id or a folder",
        )


def connect(address: Address, key: str | None = None) -> Server:
    """Ask a server for its models, and choose the one that is named, or the only one.

    DFlashError for a server that cannot be used, UsageError for a model that it does not have, and
    where it has several and none is named.
    """
    from .client import read_json

    if key is not None and not re.fullmatch(r"[\x21-\x7e]+", key):
        raise UsageError("the key has characters that no key has.", hint="check its file")
    found = read_json(f"{address.url}/models", key)
    data = found.get("data") if isinstance(found, dict) else None
    if not isinstance(data, list):
        raise DFlashError(f"{address.url} is no OpenAI-compatible API.", hint=NO_ENDPOINT)
    models = {
        one["id"]: one for one in data if isinstance(one, dict) and type(one.get("id")) is str
    }
    names = ", ".join([*models][:SHOWN]) + (", ..." if len(models) > SHOWN else "")
    name = address.model or (next(iter(models)) if len(models) == 1 else None)
    if name is None and models and {kind_of(one) for one in models.values()} == {"dflash"}:
        name = next(iter(models))  # the others are names of the same model
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
    chosen = models[name]
    length, draft = chosen.get("max_model_len"), chosen.get("draft")
    return Server(
        address,
        name,
        kind_of(chosen),
        length if isinstance(length, int) else 0,
        draft if isinstance(draft, str) else None,
        key,
    )


def kind_of(model: dict[str, Any]) -> str:
    """What serves a model, by what the list says of it."""
    owner = model.get("owned_by")
    return owner if owner in KINDS else ""


class RemoteSession:
    """Answers of one model, one after another; `stats` and `calls` are of the last one.

    It keeps nothing of a conversation: servers find by themselves what they have read before.
    counted: the tokens of the last prompt that the server counted, and its `prompt_length`.
    """

    mode = "server"

    def __init__(self, server: Server):
        self.server, self.stats = server, RemoteStats()
        self.calls: tuple[Call, ...] = ()
        self.counted = (0, 0)
        self._begun: dict[int, tuple[int, Any]] = {}  # a call's place and id, by the server's index

    @takes_options
    def stream(
        self,
        messages: Messages,
        options: GenerationOptions | None = None,
        *,
        on_prefill: Progress = silent,
        **keywords: Any,
    ) -> Generator[Block]:
        """Answer messages as the text comes, by the options that `request_fields` can send.

        `on_prefill(done, total)` counts prompt tokens where the server tells them, and is called
        with (0, 0) while nothing comes; what it raises ends the answer. Closing the iterator cuts
        the connection. The last block has the finish reason, once all numbers are known. Raises
        DFlashError for what is refused, ServerLost where an answer breaks off.
        """
        body = {"model": self.server.model, "messages": api_messages(messages)}
        body |= request_fields(self.server.kind, options_of(options, keywords, "dflash"))
        self.stats, self.calls, self._begun = RemoteStats(), (), {}
        return self._blocks(body, on_prefill)

    def _blocks(self, body: dict[str, Any], on_prefill: Progress) -> Generator[Block]:
        """Send a request, and give its answer."""
        from .client import EventReader, events

        url, ended = self.server.address.url, ""
        length = prompt_length(body["messages"], body.get("tools", ()))
        on_prefill(0, 0)
        reader = EventReader(f"{url}/chat/completions", self.server.key, body)
        try:
            for chunk in events(reader.lines(lambda: on_prefill(0, 0)), url):
                if chunk.get("error"):
                    raise lost(url, message_of(chunk)[:300].rstrip("."))
                self.stats.take(chunk)
                if self.stats.prompt_tokens:
                    self.counted = self.stats.prompt_tokens, length
                if told := of(chunk, "prompt_progress"):
                    report(on_prefill, told)
                for choice in choices_of(chunk):
                    ended = choice.get("finish_reason") or ended
                    block = self._block(of(choice, "delta"))
                    if block.text or block.thinking:
                        self.stats.arrived()
                        yield block
        finally:
            reader.close()
        if not ended or ended in BROKEN:
            why = f"the server says {ended}" if ended else "the connection ended"
            raise lost(url, why)
        yield Block((), finish_reason=ENDS.get(ended, "stop"))

    def split(self, block: Block) -> Block:
        """The block without calls, which the server keeps apart: as `CallSplitter` does."""
        return block

    def _block(self, delta: dict[str, Any]) -> Block:
        """What a delta adds."""
        self._take_calls(delta.get("tool_calls"))
        thinking = delta.get("reasoning_content") or delta.get("reasoning")
        text = delta.get("content") or delta.get("refusal")
        texts = [one if isinstance(one, str) else "" for one in (text, thinking)]
        return Block((), text=texts[0], thinking=texts[1])

    def _take_calls(self, found: Any) -> None:
        """Add what a delta says of calls: a name begins one, the arguments come in pieces.

        Some servers repeat name and id in every piece, others give all calls one index.
        """
        calls = list(self.calls)
        for one in found if isinstance(found, list) else []:
            one = one if isinstance(one, dict) else {}
            function, index, call_id = of(one, "function"), one.get("index"), one.get("id")
            name, arguments = function.get("name"), function.get("arguments")
            if not isinstance(index, int):
                index = len(calls)
            place, known = self._begun.get(index, (len(calls), None))
            if name and (place == len(calls) or (call_id and known and call_id != known)):
                place, known = len(calls), call_id
                calls.append(Call(name, ""))
            if place == len(calls):
                raise lost(self.server.address.url, "a call of a tool has no beginning")
            self._begun[index] = place, known
            if not isinstance(arguments, str):
                arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
            calls[place] = replace(calls[place], arguments=calls[place].arguments + arguments)
        self.calls = tuple(calls)


def prompt_length(messages: Messages, tools: Sequence[dict[str, Any]]) -> int:
    """The characters of a request's prompt; JSON's marks stand for those of a chat template."""
    return len(json.dumps([*messages, *tools], ensure_ascii=False))


def choices_of(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of a chunk; there is one at most, because one was asked for."""
    found = chunk.get("choices")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def report(on_prefill: Progress, told: dict[str, Any]) -> None:
    """Tell how far the prompt is read, without what was cached."""
    done, total, cached = (told.get(name) for name in ("processed", "total", "cache"))
    if is_number(done) and is_number(total):
        cached = cached if is_number(cached) else 0
        on_prefill(int(done - cached), int(total - cached))


def api_messages(messages: Sequence[dict[str, Any]]) -> Messages:
    """The messages as the API has them: arguments of calls are JSON text, thinking has one name."""
    found: Messages = []
    for message in messages:
        message = {name: value for name, value in message.items() if name != "thinking"}
        if message.get("tool_calls"):
            message["tool_calls"] = [with_text(call) for call in message["tool_calls"]]
        found.append(message)
    return found


def with_text(call: dict[str, Any]) -> dict[str, Any]:
    """A call with its arguments as JSON text."""
    function = call["function"]
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}
