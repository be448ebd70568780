"""A request of any API in one form, and how far its prompt is read."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from dflash_mlx.options import GenerationOptions
from dflash_mlx.session import Prompt, Reply, Session


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A request for several answers (`choices`) to one prompt.

    prompt: messages for the chat template, a text, or token ids. options: of each answer; the
    server's settings replace a `max_tokens` of None. parser_tools: the tools whose calls are
    parsed; None if calls are text. single_call: the first call ends an answer.
    ignored: the fields of the body that have no effect, as "name (why)". context: the limit for
    prompt and answer in tokens, if it is below the model's. began: when the request came, by
    `time.perf_counter`; its model was ready after `load_seconds`.
    """

    prompt: Prompt
    options: GenerationOptions
    choices: int = 1
    parser_tools: Sequence[dict[str, Any]] | None = None
    single_call: bool = False
    return_progress: bool = False
    ignored: tuple[str, ...] = ()
    context: int | None = None
    began: float = field(default_factory=time.perf_counter)
    load_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Prefill: `processed` of `total` prompt tokens, including the `cached` ones, after `ms`."""

    processed: int
    total: int
    cached: int
    ms: float

    @classmethod
    def of(cls, answer: Reply | Session, began: float) -> Self:
        stats = answer.stats
        ms = 1e3 * (time.perf_counter() - began)
        return cls(answer.prompt_read, stats.prompt_tokens, stats.cached_tokens, ms)
