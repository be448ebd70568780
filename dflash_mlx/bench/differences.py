"""Where an answer left the words of plain decoding, and how near the target was to saying the same:
the gap between its two best logits there.

Answers at temperature 0; with `samples` those above it, too, which are plain decoding's by the rule
match and a seed.

A gap of rounding size means a tie that 16 bits broke the other way; a wide one means a fault. Knows
records, and the target for the gap.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import mlx.core as mx

from dflash_mlx.pair import Pair
from dflash_mlx.sequence import Sequence as TokenSequence
from dflash_mlx.session import Session
from dflash_mlx.thread import mlx_thread

from .modes import BASELINE
from .questions import Question
from .record import Key, Record
from .schedule import Schedule


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token of an answer that plain decoding would not have said.

    turn, token: counted from 1. wanted, said: token ids, None where an answer had ended. gap: the
    target's best logit less its second best at that place, None while nobody has looked.
    """

    key: Key
    turn: int
    token: int
    wanted: int | None
    said: int | None
    gap: float | None = None

    def data(self) -> dict[str, Any]:
        """The difference as a JSON object."""
        return {**asdict(self.key), **{n: getattr(self, n) for n in self.__slots__ if n != "key"}}


def first_difference(wanted: Sequence[int], said: Sequence[int]) -> int | None:
    """Place of the first token that differs, from 0; None when both are the same."""
    for place, (one, other) in enumerate(zip(wanted, said, strict=False)):
        if one != other:
            return place
    return None if len(wanted) == len(said) else min(len(wanted), len(said))


def compared(records: Iterable[Record], *, samples: bool = False) -> list[tuple[Record, Record]]:
    """Answers, each with the plain one to the same question in the same repeat."""
    by_key = {r.key: r for r in records if samples or r.key.temperature == 0}
    return [
        (plain, record)
        for key, record in by_key.items()
        if key.mode != BASELINE and (plain := by_key.get(replace(key, mode=BASELINE)))
    ]


def differs(plain: Record, record: Record) -> Difference | None:
    """The first difference of an answer, in its first turn that has one."""
    for number, (one, other) in enumerate(zip(plain.turns, record.turns, strict=True), 1):
        place = first_difference(one.tokens, other.tokens)
        if place is not None:
            wanted, said = (
                turn.tokens[place] if place < len(turn.tokens) else None for turn in (one, other)
            )
            return Difference(record.key, number, place + 1, wanted, said)
    return None


def find_differences(records: Iterable[Record], *, samples: bool = False) -> list[Difference]:
    """Every compared answer that is not the plain one."""
    pairs = compared(records, samples=samples)
    return [found for pair in pairs if (found := differs(*pair)) is not None]


def with_gap(
    found: Difference,
    pair: Pair,
    questions: Iterable[Question],
    records: Mapping[Key, Record],
    schedule: Schedule,
) -> Difference:
    """The difference with its gap, by one pass over what both answers share."""
    key = found.key
    question = next(
        q for q in questions if (q.suite, q.number, q.digest) == (key.suite, key.number, key.digest)
    )
    said = records[key].turns
    messages = list(question.turns[0])
    for turn, asked in zip(said[: found.turn - 1], question.turns[1:], strict=False):
        messages += [{"role": "assistant", "content": turn.text}, *asked]
    prompt = Session(pair, mode=BASELINE).tokens(messages, **schedule.switches)
    shared = said[found.turn - 1].tokens[: found.token - 1]
    return replace(found, gap=top_gap(pair, [*prompt, *shared]))


def top_gap(pair: Pair, tokens: list[int]) -> float:
    """The target's best logit less its second best, after these tokens."""
    logits = mlx_thread().call(TokenSequence(pair.target, None).read, tokens)[0]
    best = mx.topk(logits.astype(mx.float32), 2)
    return abs((best[0] - best[1]).item())  # type: ignore[arg-type]
