"""What a benchmark measures: the answers of each mode to each question."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

MIN_RATE_TOKENS = 8  # shorter answers have no decode rate


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a record in a run.

    suite, number, digest: of the question. mode: the label of a variant. repeat: counted from 1.
    """

    suite: str
    number: int
    digest: str
    mode: str
    temperature: float
    repeat: int


@dataclass(frozen=True, slots=True)
class Rounds:
    """The decode passes of the target with the same number of rows.

    rows: of a pass, anchor included (1: a plain step). count: number of passes. tokens: committed
    by them. seconds: of the rounds, each from the block before to its block.
    """

    rows: int
    count: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a chat.

    text: the answer without thinking, for the prompt of the next turn. tokens: its ids, with the
    stop token. prefill_seconds: from the tokenised prompt to the first token; first_token_seconds:
    from the call to the first token; decode_seconds: from the first token to the last. drafted,
    accepted: numbers of drafts; accepted_by_position: of accepted drafts in position 1, 2, ...
    """

    prompt_tokens: int
    cached_tokens: int
    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    prefill_seconds: float
    first_token_seconds: float
    decode_seconds: float
    verifies: int
    drafted: int
    accepted: int
    accepted_by_position: tuple[int, ...]
    rounds: tuple[Rounds, ...]

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second after the first token; None below `MIN_RATE_TOKENS` tokens.

        The first token is left out: there a mode may already have started its next pass.
        """
        if len(self.tokens) < MIN_RATE_TOKENS or not self.decode_seconds:
            return None
        return (len(self.tokens) - 1) / self.decode_seconds

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens per second, without cached ones; None if all are cached."""
        new = self.prompt_tokens - self.cached_tokens
        return new / self.prefill_seconds if new and self.prefill_seconds else None

    @property
    def acceptance_length(self) -> float | None:
        """τ, as in `Stats`; None without a pass after the prompt."""
        passes = sum(part.count for part in self.rounds)
        return sum(part.tokens for part in self.rounds) / passes if passes else None


@dataclass(frozen=True, slots=True)
class Record:
    """All answers to one question by one mode.

    `peak_bytes` is the peak memory of MLX, with the weights of both models in every mode.
    """

    key: Key
    task: str
    turns: Annotated[tuple[Turn, ...], Field(min_length=1)]
    peak_bytes: int

    def data(self) -> dict[str, Any]:
        data = asdict(self)
        return {**data.pop("key"), **data}


def record_of(data: dict[str, Any]) -> Record:
    """A record from its JSON object; ValueError for another one."""
    return adapter(Record).validate_json(json.dumps({**data, "key": data}), strict=True)


@cache
def adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def merge_rounds(parts: Iterable[Rounds]) -> tuple[Rounds, ...]:
    """The sums of the passes with the same number of rows, by this number."""
    by_rows: dict[int, list[Rounds]] = defaultdict(list)
    for part in parts:
        by_rows[part.rows].append(part)
    return tuple(
        Rounds(
            rows,
            sum(part.count for part in by_rows[rows]),
            sum(part.tokens for part in by_rows[rows]),
            sum(part.seconds for part in by_rows[rows]),
        )
        for rows in sorted(by_rows)
    )
