"""The functions most scripts need: `stream` and `generate`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dflash_mlx.engine.stats import Stats

from .option_keywords import options_of, takes_options
from .options import GenerationOptions
from .pair import Pair
from .session import Prompt, Session
from .types import Block, Progress, TokenLogprob, silent


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer: its tokens (with a stop token), its text, and its statistics.

    logprobs: those of `tokens`, if they were requested.
    """

    tokens: list[int]
    text: str
    thinking: str
    finish_reason: str
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] = ()


@takes_options
def stream(
    pair: Pair,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    *,
    on_prefill: Progress = silent,
    **keywords: Any,
) -> Iterator[Block]:
    """Answer one prompt block by block.

    Options are a `GenerationOptions` or its fields; `help(dflash_mlx.GenerationOptions)` explains
    them. `on_prefill(done, total)` counts the prompt tokens that are read.
    """
    asked = options_of(options, keywords, "dflash")
    return Session(pair, mode=asked.mode).stream(prompt, asked, on_prefill=on_prefill)


@takes_options
def generate(
    pair: Pair,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    *,
    on_prefill: Progress = silent,
    **keywords: Any,
) -> Result:
    """Answer one prompt and return the whole answer; arguments as `stream`."""
    asked = options_of(options, keywords, "dflash")
    session = Session(pair, mode=asked.mode)
    blocks = list(session.stream(prompt, asked, on_prefill=on_prefill))
    return Result(
        tokens=[token for block in blocks for token in block.tokens],
        text="".join(block.text for block in blocks),
        thinking="".join(block.thinking for block in blocks),
        finish_reason=blocks[-1].finish_reason or "length",
        stats=session.stats,
        logprobs=tuple(entry for block in blocks for entry in block.logprobs),
    )
