"""Notices an answer that repeats itself, and says what helps."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_mlx.options import SamplingParams

from ..answer import Answer
from ..backend.base import ModelInfo
from ..resolve import RECOMMENDED
from ..terminal.output import format_count

if TYPE_CHECKING:
    from dflash_mlx import Block

# Part of an answer that counts as a loop; lists and tables repeat fewer tokens.
LONGEST = 100  # tokens of the part, at most
TIMES = 4  # that it comes in a row, at least
TOKENS = 48  # of all repetitions together, at least
TAIL = (TIMES + 1) * LONGEST  # tokens of a running answer that are looked at
WORD = re.compile(r"\s*(?:\w+|[^\w\s])")  # about a token, for servers that send none


@dataclass(frozen=True, slots=True)
class Loop:
    """A part of an answer: the same `length` tokens, `times` times."""

    length: int
    times: int


def find_loop(tokens: Sequence[object]) -> Loop | None:
    """The shortest part of up to 100 tokens that comes four times or more; None without one."""
    for period in range(1, LONGEST + 1):
        equal = longest = 0  # tokens in a row that are the same as those one period before
        for token, before in zip(tokens[period:], tokens, strict=False):
            equal = equal + 1 if token == before else 0
            longest = max(longest, equal)
        if longest + period >= max(TIMES * period, TOKENS):
            return Loop(period, longest // period + 1)
    return None


def words_of(part: "Answer | Block") -> Sequence[object]:
    """The tokens of a text, or its words, where a server sends no tokens."""
    return part.tokens or WORD.findall(part.thinking + part.text)


def loop_hint(answer: Answer, info: ModelInfo, sampling: SamplingParams) -> list[str]:
    loop = find_loop(words_of(answer))
    if loop is None:
        return []
    noun = ("token", "tokens") if answer.tokens else ("word", "words")
    return [
        f"  the answer repeats itself: the same {format_count(loop.length, *noun)} "
        f"{loop.times:,} times. {advice(info.recommended, sampling)}, then /retry"
    ]


def advice(recommended: Mapping[str, float], sampling: SamplingParams) -> str:
    """What to change in the sampling, of what is not set already."""
    commands = []
    if any(getattr(sampling, name) != value for name, value in recommended.items()):
        commands.append(f"/set {RECOMMENDED}")
    elif sampling.greedy:
        commands.append("/temp 0.7")
    if not sampling.penalised:
        commands.append("/presence-penalty 1.5")
    return f"Try {' or '.join(commands)}" if commands else "Try a higher /temp"
