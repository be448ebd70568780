"""Notices an answer that repeats itself, and says what helps."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_mlx.options import SamplingParams

from ..answer import Answer
from ..backend.base import Backend
from ..resolve import RECOMMENDED
from ..terminal.output import format_count

# So many equal tokens in a row, so many times, are a loop: lists and tables repeat fewer.
PERIODS = range(20, 61)
TIMES = 4
WORD = re.compile(r"\s*(?:\w+|[^\w\s])")  # about a token, for servers that send none


@dataclass(frozen=True, slots=True)
class Loop:
    """A part of an answer: the same `length` tokens, `times` times."""

    length: int
    times: int


def find_loop(tokens: Sequence[object]) -> Loop | None:
    """The first stretch in which 20 to 60 tokens come four times or more; None without one.

    `length` is that of the shortest part that repeats, so it may be less than 20.
    """
    for period in PERIODS:
        equal = 0  # tokens in a row that are the same as those one period before
        longest = 0
        end = 0
        for place in range(period, len(tokens)):
            equal = equal + 1 if tokens[place] == tokens[place - period] else 0
            if equal > longest:
                longest = equal
                end = place + 1
        if longest >= (TIMES - 1) * period:
            stretch = tokens[end - longest - period : end]
            length = next(n for n in range(1, period + 1) if repeats(stretch, n))
            return Loop(length, len(stretch) // length)
    return None


def repeats(tokens: Sequence[object], length: int) -> bool:
    """Whether each token is the same as the one `length` places before."""
    return tokens[length:] == tokens[:-length]


def loop_hint(answer: Answer, backend: Backend, sampling: SamplingParams) -> list[str]:
    loop = find_loop(answer.tokens or WORD.findall(answer.thinking + answer.text))
    if loop is None:
        return []
    noun = ("token", "tokens") if answer.tokens else ("word", "words")
    return [
        f"  the answer repeats itself: the same {format_count(loop.length, *noun)} "
        f"{loop.times:,} times. {advice(backend, sampling)}, then /retry"
    ]


def advice(backend: Backend, sampling: SamplingParams) -> str:
    """What to change in the sampling, of what is not set already."""
    commands = []
    recommended = backend.recommended_sampling()
    if any(getattr(sampling, name) != value for name, value in recommended.items()):
        commands.append(f"/set {RECOMMENDED}")
    elif sampling.greedy:
        commands.append("/temp 0.7")
    if not sampling.penalised:
        commands.append("/presence-penalty 1.5")
    return f"Try {' or '.join(commands)}" if commands else "Try a higher /temp"
