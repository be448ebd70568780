"""The functions most scripts need: `stream` and `generate`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Unpack

from dflash_mlx.engine.stats import Stats

from .engine.request import Mode
from .pair import Pair
from .session import AnswerOptions, Prompt, Session, check_names
from .types import Block, Progress, silent


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer: its tokens (a stop token included), its text, and its numbers."""

    tokens: list[int]
    text: str
    thinking: str
    finish_reason: str
    stats: Stats


@check_names
def stream(
    pair: Pair,
    prompt: Prompt,
    *,
    mode: Mode = "dflash",
    on_prefill: Progress = silent,
    **options: Unpack[AnswerOptions],
) -> Iterator[Block]:
    """Answer one prompt block by block; the options are those of `Session.prepare`."""
    return Session(pair, mode=mode).stream(prompt, on_prefill=on_prefill, **options)


@check_names
def generate(
    pair: Pair,
    prompt: Prompt,
    *,
    mode: Mode = "dflash",
    on_prefill: Progress = silent,
    **options: Unpack[AnswerOptions],
) -> Result:
    """Answer one prompt and return when the answer is whole; arguments as `stream`."""
    session = Session(pair, mode=mode)
    blocks = list(session.stream(prompt, on_prefill=on_prefill, **options))
    return Result(
        tokens=[token for block in blocks for token in block.tokens],
        text="".join(block.text for block in blocks),
        thinking="".join(block.thinking for block in blocks),
        finish_reason=blocks[-1].finish_reason or "length",
        stats=session.stats,
    )
