"""OpenAI's `POST /v1/completions`: text goes on from a prompt, without a chat template.

https://platform.openai.com/docs/api-reference/completions
"""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from dflash_mlx.pair import Pair

from .job import Job, Progress, progress, timings, usage
from .openai_chat import FINGERPRINT, StreamOptions, stop_strings, text_logprobs
from .protocol import Problem, SamplingFields, Settings, Whole, event, refuse
from .runner import Prepared, Runner

FINISH = {"stop": "stop", "length": "length"}
UNSUPPORTED = {"suffix": "text is only added at the end", "echo": "the prompt is not sent back"}


class CompletionBody(SamplingFields):
    """A request's body."""

    prompt: str | list[Any]
    model: str | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    n: Whole | None = None
    best_of: Whole | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    return_progress: bool | None = None
    suffix: Any = None
    echo: Any = None


def job_of(body: CompletionBody, pair: Pair, settings: Settings) -> Job:
    """What a body asks for. Problem 400 for what cannot be had."""
    refuse(body, UNSUPPORTED)
    choices = 1 if body.n is None else body.n
    if body.best_of is not None and body.best_of != choices:
        raise Problem(400, "best_of is not supported: all answers are sent.", "best_of")
    options = replace(
        body.options(settings.options),
        max_tokens=body.max_tokens,
        stop=stop_strings(body.stop) or settings.options.stop,
        logprobs=body.logprobs,
        raw=True,
        think=None,  # a chat template's switches
        reasoning_effort=None,
    )
    return Job(
        prompt=one_prompt(body.prompt),
        options=options,
        choices=choices,
        progress=bool(body.return_progress),
    )


def one_prompt(prompt: str | list[Any]) -> str | list[int]:
    """A text or token ids, also as the only one of a list."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and not all(type(one) is int for one in prompt):
        raise Problem(400, "prompt must be a text or a list of token ids: one a request.", "prompt")
    if not prompt:
        raise Problem(400, "prompt is empty.", "prompt")
    return prompt


class CompletionWriter:
    """Writes one request's answers, whole or as a stream."""

    def __init__(self, body: CompletionBody, job: Job, runner: Runner):
        self._body = body
        self._job = job
        self._runner = runner
        self._tokenizer = runner.pair.tokenizer
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": runner.settings.names[0],
            "system_fingerprint": FINGERPRINT,
        }

    async def whole(self, choices: list[Prepared]) -> dict[str, Any]:
        """The answer as one object."""
        answers = await self._runner.whole(self._job, choices)
        stats = [one.stats for one in answers]
        return {
            **self._head,
            "choices": [
                self._choice(number, one.text, one.logprobs, one.finish_reason, 0)
                for number, one in enumerate(answers)
            ],
            "usage": usage(stats),
            "timings": timings(stats[0]),
            "dflash": self._runner.describe(stats),
        }

    async def stream(self, choices: list[Prepared]) -> AsyncGenerator[bytes]:
        """The answer as events."""
        last: dict[int, Any] = {}
        lengths = [0] * len(choices)
        usage_asked = (self._body.stream_options or StreamOptions()).include_usage
        ended = 0
        async with aclosing(self._runner.answer(self._job, choices)) as events:
            async for found in events:
                if isinstance(found, Progress):
                    yield event({**self._head, "choices": [], "prompt_progress": progress(found)})
                    continue
                number = found.choice
                last[number] = found.stats
                one = self._choice(
                    number, found.text, found.logprobs, found.finish_reason, lengths[number]
                )
                lengths[number] += len(found.text)
                ended += found.finish_reason is not None
                told = ended == len(choices) and not usage_asked
                if found.text or found.logprobs or found.finish_reason:
                    more = self._told(last) if told else {}
                    yield event({**self._head, "choices": [one], **more})
        if usage_asked:
            counts = usage([last[number] for number in sorted(last)])
            yield event({**self._head, "choices": [], "usage": counts, **self._told(last)})
        yield event("[DONE]")

    def _told(self, last: dict[int, Any]) -> dict[str, Any]:
        """How fast the answers were found, and how."""
        stats = [last[number] for number in sorted(last)]
        return {"timings": timings(stats[0]), "dflash": self._runner.describe(stats)}

    def _choice(
        self, number: int, text: str, logprobs: Any, finish: str | None, offset: int
    ) -> dict[str, Any]:
        told = None
        if self._job.options.logprobs is not None:
            told = text_logprobs(self._tokenizer, logprobs, offset)
        return {
            "index": number,
            "text": text,
            "logprobs": told,
            "finish_reason": FINISH[finish] if finish else None,
        }
