"""What was measured of one answer, as a frozen value and as a line of JSON.

Counts and seconds, no rates but those that follow from one answer. Knows no models.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

SHORT = 8  # tokens, and less have no rate
NUMBERS = tuple[int, ...]
PLAIN: dict[Any, Any] = {int: int, float: (int, float), str: str, NUMBERS: int}


@dataclass(frozen=True, slots=True)
class Key:
    """What tells an answer from all others of a run.

    `number` and `digest` are the question's in its suite; `mode` is a variant's label; `repeat`
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
    """The passes over the target that had the same number of rows, the prefill not among them.

    rows: tokens in a pass, anchor included (1: a plain step). count: how many. tokens: committed
    by them. seconds: from the block before to theirs.
    """

    rows: int
    count: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a chat.

    text: what the next turn's prompt holds of it, without thinking. tokens: its ids, a stop token
    included. prefill_seconds: until the first token, from the moment that the prompt is tokenised;
    first_token_seconds: from the call. decode_seconds: from the first token to the last. drafted,
    accepted: drafts offered, and kept; accepted_by_position: how often the draft in slot 1, 2, ...
    was.
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
        """Decode rate, after the first token; None where the answer is too short for one.

        Modes differ by up to one pass in what they have begun when the first token comes.
        """
        if len(self.tokens) < SHORT or not self.decode_seconds:
            return None
        return (len(self.tokens) - 1) / self.decode_seconds

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens that were read a second; None where nothing was."""
        new = self.prompt_tokens - self.cached_tokens
        return new / self.prefill_seconds if new and self.prefill_seconds else None

    @property
    def acceptance_length(self) -> float | None:
        """τ: mean tokens committed a verify, bonus included; None without a verify."""
        return self.committed / self.verifies if self.verifies else None


@dataclass(frozen=True, slots=True)
class Record:
    """All answers to one question by one mode; `peak_bytes` is the most that MLX's arrays took.

    The weights of both models are among them, whatever the mode.
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
    """A record from its JSON object; ValueError, KeyError or TypeError for another one."""
    turns = []
    for turn in data["turns"]:
        rounds = tuple(fitting(Rounds, part) for part in turn["rounds"])
        lists = {name: tuple(turn[name]) for name in ("tokens", "accepted_by_position")}
        turns.append(fitting(Turn, {**turn, **lists, "rounds": rounds}))
    if not turns:
        raise ValueError("there is no answer")
    key = fitting(Key, {field.name: data[field.name] for field in fields(Key)})
    rest = {name: data[name] for name in ("task", "peak_bytes")}
    return fitting(Record, {"key": key, "turns": tuple(turns), **rest})


def fitting(kind: type[Any], data: dict[str, Any]) -> Any:
    """A value of a dataclass; TypeError for a number or a text that is something else."""
    for field in fields(kind):
        value, wanted = data[field.name], PLAIN.get(field.type)
        values = value if field.type == NUMBERS else [value]
        if wanted and not all(isinstance(one, wanted) for one in values):
            raise TypeError(field.name)
    return kind(**data)
