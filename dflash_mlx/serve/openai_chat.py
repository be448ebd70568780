"""OpenAI's `POST /v1/chat/completions`: a body to a request, deltas to chunks.

https://platform.openai.com/docs/api-reference/chat
"""

import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from dflash_mlx import __version__
from dflash_mlx.answer import Answer
from dflash_mlx.chat.template import EFFORT_VARIABLES
from dflash_mlx.chat.tool_parser import named_calls
from dflash_mlx.options import EFFORTS, GenerationOptions
from dflash_mlx.pair import Pair
from dflash_mlx.types import Block, Call, TokenLogprob

from .answer_request import AnswerRequest, Progress
from .body import Fields, SamplingFields, TokenLimit, answer_range, grammar_of, read_body
from .chat_messages import Tool, template_messages, tool_use
from .fields import CHAT, MAX_IGNORED, shown_name
from .protocol import Problem, Settings, wrong
from .streams import sse_event
from .writer import Writer, prompt_progress, usage

LEVELS = ("none", *EFFORTS)
FINISH = {"stop": "stop", "length": "length", "calls": "tool_calls"}


class StreamOptions(Fields):
    """include_usage: send the usage in a last chunk without choices."""

    include_usage: bool = False


class TemplateFields(Fields):
    """vLLM's and llama-server's fields to turn thinking on or off.

    Others are variables of the template, or without an effect.
    """

    enable_thinking: bool | None = None
    thinking: bool | None = None


class OpenAIBody(SamplingFields):
    model: str | None = None
    max_tokens: TokenLimit | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    return_progress: bool | None = None

    def options(self, defaults: GenerationOptions) -> GenerationOptions:
        strings = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if len(strings) > 16 or not all(strings):
            raise wrong("stop", "must be up to 16 strings that are not empty")
        options = replace(super().options(defaults), max_tokens=self.max_tokens)
        return replace(options, stop=strings) if strings else options


class ChatBody(OpenAIBody):
    messages: list[Any]
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, answer_range("logprobs")] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateFields | None = None
    modalities: list[str] | None = None
    return_passes: bool | None = None


def to_request(body: ChatBody, pair: Pair, settings: Settings) -> AnswerRequest:
    """Raises Problem 400 for fields that are wrong or not supported."""
    if body.modalities and body.modalities != ["text"]:
        raise wrong("modalities", "is not supported: answers are text")
    if body.top_logprobs is not None and not body.logprobs:
        raise wrong("top_logprobs", "needs logprobs to be true")
    grammar = grammar_of(body, body.response_format)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls, grammar, pair)
    think, effort, ignored = thinking_of(body, pair)
    variables, unread = variables_of(body, pair)
    options = body.options(settings.options)
    options = replace(
        options,
        max_tokens=body.max_completion_tokens or options.max_tokens,
        think=options.think if think is None else think,
        reasoning_effort=options.reasoning_effort if effort is None else effort,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        grammar=use.grammar,
        tools=use.tools,
        chat_template_kwargs=variables,
    )
    return AnswerRequest(
        prompt=named_calls(template_messages(body.messages), pair.tokenizer),
        options=options,
        choices=1 if body.n is None else body.n,
        parser_tools=use.parser_tools,
        single_call=use.single_call,
        return_progress=bool(body.return_progress),
        ignored=(*ignored, *unread),
    )


def thinking_of(body: ChatBody, pair: Pair) -> tuple[bool | None, str | None, list[str]]:
    """Whether to think and how hard, as far as the model's template supports it.

    Also what becomes of an effort that the template lacks: it is the nearest one.
    """
    switches = body.chat_template_kwargs or TemplateFields()
    think = switches.thinking if switches.enable_thinking is None else switches.enable_thinking
    values = switches.model_extra or {}
    named = (v for n in EFFORT_VARIABLES if isinstance(v := values.get(n), str))
    effort = body.reasoning_effort or next(named, None)
    template = pair.template
    efforts = template.efforts
    if effort is None or effort in efforts:
        return think, effort, []
    if template.think_switch is not None and (effort == "none" or not efforts):
        return effort != "none" if think is None else think, None, []
    if not efforts:
        return think, None, []  # a model that does not think has no effort to set
    if effort not in LEVELS:
        why = f"cannot be '{effort:.20}': give {', '.join(efforts)}"
        raise wrong("reasoning_effort", why)
    place = LEVELS.index(effort)
    nearest = min(efforts, key=lambda known: abs(LEVELS.index(known) - place - 0.1))
    return think, nearest, [f"reasoning_effort {effort} (this model has {nearest} nearest to it)"]


def variables_of(body: ChatBody, pair: Pair) -> tuple[dict[str, Any], list[str]]:
    """The other variables of the template in a body, and those that it does not read."""
    given = (body.chat_template_kwargs or TemplateFields()).model_extra or {}
    known = pair.template.variables
    others = {n: v for n, v in given.items() if n not in EFFORT_VARIABLES or not isinstance(v, str)}
    unread = [shown_name(f"chat_template_kwargs.{name}") for name in others if name not in known]
    if len(unread) > MAX_IGNORED:
        raise Problem(400, f"more than {MAX_IGNORED} fields of the body have no effect.")
    read = {name: value for name, value in others.items() if name in known}
    return read, [f"{name} (the chat template does not read it)" for name in unread]


class OpenAIWriter(Writer):
    """What the APIs of chat and of text completions have in common.

    ids: how the answers' ids begin. kinds: the names of a whole answer and of a chunk.
    """

    ids: ClassVar[str]
    kinds: ClassVar[tuple[str, str]]

    def __init__(self, body: Any, *more: Any):
        super().__init__(body, *more)
        self._sends_usage = (body.stream_options or StreamOptions()).include_usage
        self._unfinished = len(self.choices)  # in the stream, which answers run ahead of
        self._head = {
            "id": f"{self.ids}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": self.runner.name,
            "system_fingerprint": f"dflash-{__version__}",
        }

    @staticmethod
    def problem(problem: Problem) -> bytes:
        return sse_event(problem.openai()) + sse_event("[DONE]")

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        raise NotImplementedError

    def whole(self) -> dict[str, Any]:
        return {
            **self._head,
            "object": self.kinds[0],
            "choices": [self.choice(index, answer) for index, answer in enumerate(self.answers)],
            **self._usage(),
        }

    def progress(self, progress: Progress) -> Iterator[bytes]:
        yield self.chunk([], prompt_progress=prompt_progress(progress))

    def end(self) -> Iterator[bytes]:
        if self._sends_usage:
            yield self.chunk([], **self._usage())
        yield sse_event("[DONE]")

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return sse_event({**self._head, "object": self.kinds[1], "choices": choices, **more})

    def last_extras(self) -> dict[str, Any]:
        """The extras beside the end of the last choice.

        Only clients that ask for usage expect a chunk without choices, which then has them.
        """
        self._unfinished -= 1
        return {} if self._unfinished or self._sends_usage else self.extras()

    def _usage(self) -> dict[str, Any]:
        return {"usage": usage([answer.stats for answer in self.answers]), **self.extras()}


class ChatWriter(OpenAIWriter):
    path = CHAT
    bare = True
    body_model = ChatBody
    to_request = staticmethod(to_request)
    ids = "chatcmpl"
    kinds = ("chat.completion", "chat.completion.chunk")

    def __init__(self, *given: Any):
        super().__init__(*given)
        self._calls = Counter[int]()  # sent of each choice
        self._passes = Counter[int]()

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        has_content = answer.text.strip() or not answer.calls
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text if has_content else None,
            "refusal": None,
            **thinking_fields(answer.thinking),
        }
        if answer.calls:
            message["tool_calls"] = [call_fields(call) for call in answer.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": FINISH[answer.finish_reason],
        }

    def begin(self) -> Iterator[bytes]:
        for choice in self.choices:
            yield self._piece(choice.index, {"role": "assistant", "content": ""})

    def block(self, index: int, block: Block) -> Iterator[bytes]:
        change = thinking_fields(block.thinking)
        if block.text:
            change["content"] = block.text
        if block.calls:
            change["tool_calls"] = [
                {"index": number, **call_fields(call)}
                for number, call in enumerate(block.calls, self._calls[index])
            ]
            self._calls[index] += len(block.calls)
        extras: dict[str, Any] = {}
        if self.body.return_passes:
            drafts = {"drafted": block.drafted, "accepted": block.accepted}
            number = {"number": self._passes[index], "tokens": len(block.tokens)}
            extras["dflash"] = {"pass": number | drafts}
            self._passes[index] += 1
        if change or block.logprobs or extras:
            logprobs = self._logprobs(block.logprobs)
            yield self._piece(index, change, logprobs=logprobs, **extras)
        if block.finish_reason:
            reason = FINISH[block.finish_reason]
            yield self._piece(index, {}, reason, **self.last_extras())

    def _piece(
        self,
        index: int,
        change: dict[str, Any],
        finish_reason: str | None = None,
        *,
        logprobs: Any = None,
        **extras: Any,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": change,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        return self.chunk([choice], **extras)

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        content = self.logprobs(logprobs)
        return None if content is None else {"content": content, "refusal": None}


def thinking_fields(thinking: str) -> dict[str, Any]:
    return {"reasoning_content": thinking, "reasoning": thinking} if thinking else {}


def call_fields(call: Call) -> dict[str, Any]:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


# Requests of other APIs as requests of OpenAI's chat API


def to_chat_request(
    values: dict[str, Any], names: dict[str, str], pair: Pair, settings: Settings
) -> AnswerRequest:
    """The request of a chat body with these values; None is a missing value.

    Raises Problem 400 as `to_request`. `names`: the other API's names of chat fields, for errors.
    """
    with own_names(names):
        return to_request(read_body(ChatBody, given(values)), pair, settings)


def given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def own_names(names: dict[str, str]) -> Iterator[None]:
    """Errors inside have the names of another API's fields; `names`: by OpenAI's names."""
    try:
        yield
    except Problem as problem:
        for chat_name, own_name in names.items():
            problem.message = re.sub(rf"\b{chat_name}\b", own_name, problem.message)
            if problem.param == chat_name:
                problem.param = own_name
        raise


def sampling_values(body: SamplingFields) -> dict[str, Any]:
    return {name: getattr(body, name) for name in SamplingFields.model_fields}


def nested_format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """A format whose schema is beside its type as `response_format`."""
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": form}
