"""The measurements of one question by one mode: counts and seconds, and their JSON form."""

from dataclasses import asdict, dataclass, fields
from typing import Any

MIN_RATE_TOKENS = 8  # shorter answers have no decode rate
NUMBERS = tuple[int, ...]
JSON_TYPES: dict[Any, Any] = {int: int, float: (int, float), str: str, NUMBERS: int}


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a record in a run.

    `suite`, `number` and `digest` are the question's; `mode` is the label of a variant; `repeat`
    counts from 1.
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
    committed: int
    drafted: int
    accepted: int
    accepted_by_position: tuple[int, ...]
    rounds: tuple[Rounds, ...]

    @property
    def tokens_per_second(self) -> float | None:
        """The decode rate after the first token; None for answers below `MIN_RATE_TOKENS` tokens.

        At the first token the modes differ by up to one pass that has started.
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
        """τ: mean committed tokens per verify, bonus included; None without a verify."""
        return self.committed / self.verifies if self.verifies else None


@dataclass(frozen=True, slots=True)
class Record:
    """All answers to one question by one mode.

    `peak_bytes` is the peak memory of MLX, with the weights of both models in every mode.
    """

    key: Key
    task: str
    turns: tuple[Turn, ...]
    peak_bytes: int

    def data(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {
            **asdict(self.key),
            "task": self.task,
            "peak_bytes": self.peak_bytes,
            "turns": [asdict(turn) for turn in self.turns],
        }


def record_of(data: dict[str, Any]) -> Record:
    """A record from its JSON object. Raises ValueError, KeyError or TypeError for another one."""
    turns = []
    for turn in data["turns"]:
        rounds = tuple(from_json(Rounds, part) for part in turn["rounds"])
        lists = {name: tuple(turn[name]) for name in ("tokens", "accepted_by_position")}
        turns.append(from_json(Turn, {**turn, **lists, "rounds": rounds}))
    if not turns:
        raise ValueError("there is no answer")
    key = from_json(Key, {field.name: data[field.name] for field in fields(Key)})
    rest = {name: data[name] for name in ("task", "peak_bytes")}
    return from_json(Record, {"key": key, "turns": tuple(turns), **rest})


def from_json(kind: type[Any], data: dict[str, Any]) -> Any:
    """An instance of a dataclass from JSON values. Raises TypeError for a wrong type."""
    for field in fields(kind):
        value, wanted = data[field.name], JSON_TYPES.get(field.type)
        values = value if field.type == NUMBERS else [value]
        if wanted and not all(isinstance(one, wanted) for one in values):
            raise TypeError(field.name)
    return kind(**data)
