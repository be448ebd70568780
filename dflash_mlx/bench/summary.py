"""What records say: differences from plain decoding, and a row of a table for each mode."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from statistics import fmean, median, quantiles
from typing import Any

import mlx.core as mx

from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session

from .questions import Question
from .records import Key, Record, Rounds, Turn, merge_rounds
from .schedule import BASELINE, Schedule

ALL = "all"


# Comparison of answers with plain decoding


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token of an answer that differs from plain decoding.

    turn, token: counted from 1. wanted, said: the token ids of plain decoding and of the answer;
    None after the end. gap: the target's best logit minus its second best at this position; None
    before `with_gap`.
    """

    key: Key
    turn: int
    token: int
    wanted: int | None
    said: int | None
    gap: float | None = None

    def data(self) -> dict[str, Any]:
        data = asdict(self)
        return {**data.pop("key"), **data}


def pairs_with_baseline(
    records: Iterable[Record], *, samples: bool = False
) -> list[tuple[Record, Record]]:
    """Plain decoding and another mode for each question. samples: also above temperature 0."""
    by_key = {r.key: r for r in records if samples or r.key.temperature == 0}
    return [
        (plain, record)
        for key, record in by_key.items()
        if key.mode != BASELINE and (plain := by_key.get(replace(key, mode=BASELINE)))
    ]


def difference_of(plain: Record, record: Record) -> Difference | None:
    """The first difference, in the first turn that has one; None if the answers are the same."""
    for number, turns in enumerate(zip(plain.turns, record.turns, strict=True), 1):
        tokens = zip_longest(*(turn.tokens for turn in turns))
        for position, (wanted, said) in enumerate(tokens, 1):
            if wanted != said:
                return Difference(record.key, number, position, wanted, said)
    return None


def find_differences(records: Iterable[Record], *, samples: bool = False) -> list[Difference]:
    pairs = pairs_with_baseline(records, samples=samples)
    return [difference for pair in pairs if (difference := difference_of(*pair)) is not None]


def with_gap(
    difference: Difference,
    pair: Pair,
    questions: Iterable[Question],
    records: Mapping[Key, Record],
    schedule: Schedule,
) -> Difference:
    """The difference with its gap, from one pass over the tokens that both answers share."""
    key = difference.key
    question = next(
        q for q in questions if (q.suite, q.number, q.digest) == (key.suite, key.number, key.digest)
    )
    turns = records[key].turns
    messages = list(question.turns[0])
    for turn, next_messages in zip(turns[: difference.turn - 1], question.turns[1:], strict=False):
        messages += [{"role": "assistant", "content": turn.text}, *next_messages]
    prompt = Session(pair, mode=BASELINE).tokens(messages, **schedule.switches)
    shared = turns[difference.turn - 1].tokens[: difference.token - 1]
    read = TokenSequence(pair.target, None).read
    logits = mlx_thread().call(read, [*prompt, *shared])[0]
    best = mx.topk(logits.astype(mx.float32), 2)
    return replace(difference, gap=abs((best[0] - best[1]).item()))  # type: ignore[arg-type]


# Summary of records as table rows


@dataclass(frozen=True, slots=True)
class Spread:
    """The quartiles of values; all three are equal for a single value."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One mode at one task and temperature; None for values that are not available.

    questions: their number. answers: their number, in all turns and repeats. prefill, decode:
    tokens per second. first_token: seconds. speedup: of each question, the median of its repeats
    and turns. tau: of each answer; None for plain decoding. mean_tau, mean_speedup: as in the
    papers, the mean of τ, and the ratio of the mean seconds per token. acceptance_rate: accepted /
    drafted. by_position: accepted drafts in position 1, 2, ... per verify. rounds: the passes by
    rows. identical: the number of answers equal to plain decoding, out of `compared`. Only greedy
    answers are compared, unless samples are included. peak_bytes: the maximum over answers.
    """

    suite: str
    task: str
    mode: str
    temperature: float
    questions: int
    answers: int
    prefill: Spread | None
    first_token: Spread | None
    decode: Spread | None
    speedup: Spread | None
    mean_speedup: float | None
    tau: Spread | None
    mean_tau: float | None
    acceptance_rate: float | None
    by_position: tuple[float, ...]
    rounds: tuple[Rounds, ...]
    identical: int
    compared: int
    peak_bytes: int

    def data(self) -> dict[str, Any]:
        return asdict(self)


def spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Spread(known[0], known[0], known[0])
    return Spread(*quantiles(known, n=4, method="inclusive"))


def overall(rows: Sequence[Row]) -> list[Row]:
    """The rows of all tasks together, or of the only task."""
    return [row for row in rows if row.suite == ALL] or list(rows)


def summarise(records: Sequence[Record], *, samples: bool = False) -> list[Row]:
    """The rows of each task, then those of all tasks together if there are several.

    With `samples` answers above temperature 0 are compared with plain decoding, too.
    """
    tasks: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        tasks[record.key.suite, record.task].append(record)
    if len(tasks) > 1:
        tasks[ALL, ALL] = list(records)
    # The first question has the modes in the schedule's order, others may have another one.
    modes = list(dict.fromkeys([BASELINE, *(record.key.mode for record in records)]))
    rows = []
    for (suite, task), part in tasks.items():
        groups: dict[tuple[float, int], list[Record]] = defaultdict(list)
        for record in part:
            groups[record.key.temperature, modes.index(record.key.mode)].append(record)
        plain = [record for record in part if record.key.mode == BASELINE]
        rows += [row_of(suite, task, groups[key], plain, samples) for key in sorted(groups)]
    return rows


def row_of(
    suite: str, task: str, records: Sequence[Record], plain: Sequence[Record], samples: bool
) -> Row:
    """records: of one mode at one temperature. plain: all of plain decoding in the same task."""
    key = records[0].key
    turns = [turn for record in records for turn in record.turns]
    pairs = pairs_with_baseline([*plain, *records], samples=True)
    compared = pairs_with_baseline([*plain, *records], samples=samples)
    ratios: dict[tuple[str, int], list[float]] = defaultdict(list)
    seconds: list[tuple[float, float]] = []  # per token: of plain decoding, of the mode
    for baseline, record in pairs:
        for plain_turn, turn in zip(baseline.turns, record.turns, strict=True):
            plain_rate, rate = plain_turn.tokens_per_second, turn.tokens_per_second
            if plain_rate and rate:
                ratios[record.key.suite, record.key.number].append(rate / plain_rate)
                seconds.append((1 / plain_rate, 1 / rate))
    taus = [tau for turn in turns if key.mode != BASELINE and (tau := turn.acceptance_length)]
    drafted = sum(turn.drafted for turn in turns)
    return Row(
        suite=suite,
        task=task,
        mode=key.mode,
        temperature=key.temperature,
        questions=len({(record.key.suite, record.key.number) for record in records}),
        answers=len(turns),
        prefill=spread(turn.prefill_rate for turn in turns),
        first_token=spread(turn.first_token_seconds for turn in turns),
        decode=spread(turn.tokens_per_second for turn in turns),
        speedup=spread(map(median, ratios.values())),
        mean_speedup=sum(slow for slow, _ in seconds) / sum(fast for _, fast in seconds)
        if seconds
        else None,
        tau=spread(taus),
        mean_tau=fmean(taus) if taus else None,
        acceptance_rate=sum(turn.accepted for turn in turns) / drafted if drafted else None,
        by_position=by_position(turns),
        rounds=merge_rounds(part for turn in turns for part in turn.rounds),
        identical=sum(difference_of(*pair) is None for pair in compared),
        compared=len(compared),
        peak_bytes=max(record.peak_bytes for record in records),
    )


def by_position(turns: Sequence[Turn]) -> tuple[float, ...]:
    verifies = sum(turn.verifies for turn in turns)
    counts = zip_longest(*(turn.accepted_by_position for turn in turns), fillvalue=0)
    return tuple(sum(accepted) / verifies for accepted in counts) if verifies else ()
