"""A whole answer, as `generate` returns it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dflash_mlx.engine.stats import Stats

from .types import Block, TokenLogprob


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer: its tokens (with a stop token), its text, and its statistics.

    finish_reason: "stop", "length", or "interrupted" by a callback. logprobs: those of `tokens`, if
    they were requested.
    """

    tokens: list[int]
    text: str
    thinking: str
    finish_reason: str
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] = ()

    @classmethod
    def of(cls, blocks: Sequence[Block], stats: Stats, *, interrupted: bool = False) -> Self:
        reason = blocks[-1].finish_reason or "length"
        return cls(
            tokens=[token for block in blocks for token in block.tokens],
            text="".join(block.text for block in blocks),
            thinking="".join(block.thinking for block in blocks),
            finish_reason="interrupted" if interrupted else reason,
            stats=stats,
            logprobs=tuple(entry for block in blocks for entry in block.logprobs),
        )
