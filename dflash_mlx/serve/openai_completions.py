"""OpenAI's `POST /v1/completions`: continues a text, without a chat template.

https://platform.openai.com/docs/api-reference/completions
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from dflash_mlx.chat.detokenizer import Detokenizer
from dflash_mlx.pair import Pair
from dflash_mlx.types import TokenLogprob

from .answer_request import AnswerRequest, Delta, Progress, prompt_progress, usage
from .body import Integer, SamplingFields, TokenLimit, answer_range
from .logprobs import text_logprobs
from .openai_chat import OpenAIWriter, StreamOptions, in_order, stop_strings
from .output_format import grammar_of
from .protocol import Problem, Settings, sse_event
from .runner import PreparedChoice, Runner

FINISH = {"stop": "stop", "length": "length"}


class CompletionBody(SamplingFields):
    prompt: str | list[Any]
    model: str | None = None
    max_tokens: TokenLimit | None = None
    n: Integer | None = None
    best_of: Integer | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[Integer, answer_range("logprobs")] | None = None
    return_progress: bool | None = None
    response_format: dict[str, Any] | None = None


def to_request(body: CompletionBody, pair: Pair, settings: Settings) -> AnswerRequest:
    """Raises Problem 400 for fields that are wrong or not supported."""
    choices = 1 if body.n is None else body.n
    if body.best_of is not None and body.best_of != choices:
        raise Problem(400, "best_of is not supported: all answers are sent.", "best_of")
    options = replace(
        body.options(settings.options),
        max_tokens=body.max_tokens,
        stop=stop_strings(body.stop) or settings.options.stop,
        logprobs=body.logprobs,
        grammar=grammar_of(body, body.response_format),
        raw=True,
        think=None,  # without a chat template there is nothing to switch
        reasoning_effort=None,
    )
    return AnswerRequest(
        prompt=read_prompt(body.prompt),
        options=options,
        choices=choices,
        return_progress=bool(body.return_progress),
    )


def read_prompt(prompt: str | list[Any]) -> str | list[int]:
    """A text or token ids, which may also be the only item of a list."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and not all(type(token) is int for token in prompt):
        raise Problem(400, "prompt must be a text or a list of token ids: one a request.", "prompt")
    if not prompt:
        raise Problem(400, "prompt is empty.", "prompt")
    return prompt


class CompletionWriter(OpenAIWriter):
    ids = "cmpl"

    def __init__(self, body: CompletionBody, request: AnswerRequest, runner: Runner):
        super().__init__(body, request, runner)
        self._head["object"] = "text_completion"
        self._read: dict[int, Detokenizer] = {}  # of each choice, for the offsets of its tokens

    async def complete(self, choices: list[PreparedChoice]) -> dict[str, Any]:
        completions = await self._runner.complete(self._request, choices)
        return {
            **self._head,
            "choices": [
                self._choice(choice, done.text, done.logprobs, done.finish_reason)
                for choice, done in zip(choices, completions, strict=True)
            ],
            "usage": usage([completion.stats for completion in completions]),
            **self._extras(completions),
        }

    async def stream(self, choices: list[PreparedChoice]) -> AsyncGenerator[bytes]:
        last: dict[int, Delta] = {}
        include_usage = (self._body.stream_options or StreamOptions()).include_usage
        ended = 0
        async with aclosing(self._runner.answer(self._request, choices)) as events:
            async for event in events:
                if isinstance(event, Progress):
                    progress = prompt_progress(event)
                    yield sse_event({**self._head, "choices": [], "prompt_progress": progress})
                    continue
                last[event.index] = event
                choice = self._choice(
                    choices[event.index], event.text, event.logprobs, event.finish_reason
                )
                ended += event.finish_reason is not None
                is_last = ended == len(choices) and not include_usage
                if event.text or event.logprobs or event.finish_reason:
                    extras = self._extras(in_order(last)) if is_last else {}
                    yield sse_event({**self._head, "choices": [choice], **extras})
        if include_usage:
            counts = usage([delta.stats for delta in in_order(last)])
            head = {**self._head, "choices": []}
            yield sse_event({**head, "usage": counts, **self._extras(in_order(last))})
        yield sse_event("[DONE]")

    def _choice(
        self,
        choice: PreparedChoice,
        text: str,
        logprobs: Sequence[TokenLogprob],
        finish_reason: str | None,
    ) -> dict[str, Any]:
        index = choice.index
        shown = None
        if self._request.options.logprobs is not None:
            if index not in self._read:
                self._read[index] = Detokenizer(self._tokenizer, choice.prompted.before)
            shown = text_logprobs(self._tokenizer, logprobs, self._read[index])
        return {
            "index": index,
            "text": text,
            "logprobs": shown,
            "finish_reason": FINISH[finish_reason] if finish_reason else None,
        }
