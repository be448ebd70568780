"""The functions most scripts need: `stream` and `generate`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .pair import Pair
from .session import Mode, Prompt, Session
from .stats import Stats
from .types import Block, SamplingParams


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer: its tokens (a stop token included), its text, and its numbers."""

    tokens: list[int]
    text: str
    thinking: str
    finish_reason: str
    stats: Stats


def stream(
    pair: Pair,
    prompt: Prompt,
    *,
    sampling: SamplingParams | None = None,
    max_tokens: int = 512,
    mode: Mode = "dflash",
    block_size: int | None = None,
    **options: Any,
) -> Iterator[Block]:
    """Answer one prompt block by block; `options` are those of `Session.stream`."""
    return Session(pair, mode=mode).stream(
        prompt, sampling=sampling, max_tokens=max_tokens, block_size=block_size, **options
    )


def generate(
    pair: Pair,
    prompt: Prompt,
    *,
    sampling: SamplingParams | None = None,
    max_tokens: int = 512,
    mode: Mode = "dflash",
    block_size: int | None = None,
    **options: Any,
) -> Result:
    """Answer one prompt and return when the answer is whole."""
    session = Session(pair, mode=mode)
    blocks = list(
        session.stream(
            prompt, sampling=sampling, max_tokens=max_tokens, block_size=block_size, **options
        )
    )
    return Result(
        tokens=[token for block in blocks for token in block.tokens],
        text="".join(block.text for block in blocks),
        thinking="".join(block.thinking for block in blocks),
        finish_reason=blocks[-1].finish_reason or "length",
        stats=session.stats,
    )
