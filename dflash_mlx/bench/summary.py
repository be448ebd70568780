"""Summary of records as table rows: medians and quartiles by task, mode and temperature.

A speedup is the ratio to plain decoding of the same question in the same repeat, so that a slowdown
of the machine cancels. Counts are pooled over answers.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median, quantiles
from typing import Any

from .differences import compared, differs
from .modes import BASELINE
from .record import Key, Record, Rounds, Turn

ALL = "all"


@dataclass(frozen=True, slots=True)
class Spread:
    """The quartiles of values; all three are equal for a single value."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One mode at one task and temperature; None for values that are not available.

    questions: number of questions; answers: of answers, in all turns and repeats. prefill, decode:
    tokens per second. first_token: seconds. speedup: over questions, each the median of repeats and
    turns. tau: over answers. mean_tau, mean_speedup: as in the papers, the mean of τ, and the ratio
    of the mean seconds per token. acceptance_rate: accepted / drafted. by_position: accepted drafts
    in position 1, 2, ... per verify. rounds: the passes by rows. identical: number of answers (the
    greedy ones, unless samples count) equal to plain decoding, out of `compared`. peak_bytes: the
    maximum over answers.
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
        """The row as a JSON object."""
        return asdict(self)


def spread(values: Iterable[float | None]) -> Spread | None:
    """The quartiles of the values that are not None; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Spread(known[0], known[0], known[0])
    return Spread(*quantiles(known, n=4, method="inclusive"))


def summarise(records: Sequence[Record], *, samples: bool = False) -> list[Row]:
    """The rows of each task, then those of all tasks together if there are several.

    With `samples` answers above temperature 0 are held against plain decoding's, too.
    """
    tasks = list(dict.fromkeys((record.key.suite, record.task) for record in records))
    rows = []
    for suite, task in tasks:
        part = [r for r in records if (r.key.suite, r.task) == (suite, task)]
        rows += rows_of(part, suite, task, samples)
    return rows + (rows_of(records, ALL, ALL, samples) if len(tasks) > 1 else [])


def rows_of(records: Sequence[Record], suite: str, task: str, samples: bool) -> list[Row]:
    """One row for each temperature and mode; plain decoding comes first."""
    groups: dict[tuple[float, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.key.temperature, record.key.mode].append(record)
    by_key = {record.key: record for record in records}
    return [
        row_of(groups[place], by_key, suite, task, samples)
        for place in sorted(groups, key=lambda place: (place[0], place[1] != BASELINE))
    ]


def row_of(
    records: Sequence[Record], by_key: dict[Key, Record], suite: str, task: str, samples: bool
) -> Row:
    """The row of records with one mode and temperature."""
    turns = [turn for record in records for turn in record.turns]
    plain = {r.key: by_key.get(replace(r.key, mode=BASELINE)) for r in records}
    pairs = (
        []
        if records[0].key.mode == BASELINE
        else compared([*records, *filter(None, plain.values())], samples=samples)
    )
    drafted, verifies = sum(t.drafted for t in turns), sum(t.verifies for t in turns)
    taus = [turn.acceptance_length for turn in turns]
    known = [tau for tau in taus if tau is not None]
    return Row(
        suite=suite,
        task=task,
        mode=records[0].key.mode,
        temperature=records[0].key.temperature,
        questions=len({(r.key.suite, r.key.number) for r in records}),
        answers=len(turns),
        prefill=spread(turn.prefill_rate for turn in turns),
        first_token=spread(turn.first_token_seconds for turn in turns),
        decode=spread(turn.tokens_per_second for turn in turns),
        speedup=spread(speedups(records, plain)),
        mean_speedup=mean_speedup(records, plain),
        tau=spread(taus),
        mean_tau=fmean(known) if known else None,
        acceptance_rate=sum(t.accepted for t in turns) / drafted if drafted else None,
        by_position=by_position(turns, verifies),
        rounds=merge_rounds(part for turn in turns for part in turn.rounds),
        identical=sum(differs(*pair) is None for pair in pairs),
        compared=len(pairs),
        peak_bytes=max(record.peak_bytes for record in records),
    )


def speedups(records: Sequence[Record], plain: dict[Key, Record | None]) -> list[float]:
    """The speedup of each question over plain decoding, the median of repeats and turns."""
    ratios: dict[tuple[str, int], list[float]] = defaultdict(list)
    if records[0].key.mode == BASELINE:
        return []
    for record in records:
        other = plain[record.key]
        for ours, theirs in zip(record.turns, other.turns if other else (), strict=False):
            fast, slow = ours.tokens_per_second, theirs.tokens_per_second
            if fast and slow:
                ratios[record.key.suite, record.key.number].append(fast / slow)
    return [median(values) for values in ratios.values()]


def mean_speedup(records: Sequence[Record], plain: dict[Key, Record | None]) -> float | None:
    """Mean seconds per token of plain decoding over those of this mode, as in the DFlash paper."""
    if records[0].key.mode == BASELINE:
        return None
    rates = [
        (turn.tokens_per_second, base.tokens_per_second)
        for record in records
        if (other := plain[record.key]) is not None
        for turn, base in zip(record.turns, other.turns, strict=True)
    ]
    both = [(ours, theirs) for ours, theirs in rates if ours and theirs]
    if not both:
        return None
    return fmean(1 / theirs for _, theirs in both) / fmean(1 / ours for ours, _ in both)


def by_position(turns: Sequence[Turn], verifies: int) -> tuple[float, ...]:
    """The number of accepted drafts in each position per verify."""
    positions = max((len(turn.accepted_by_position) for turn in turns), default=0)
    kept = [0] * positions
    for turn in turns:
        for position, count in enumerate(turn.accepted_by_position):
            kept[position] += count
    return tuple(count / verifies for count in kept) if verifies else ()


def merge_rounds(parts: Iterable[Rounds]) -> tuple[Rounds, ...]:
    """The sum of the passes of many answers, by rows."""
    found: dict[int, Rounds] = {}
    for part in parts:
        old = found.get(part.rows, Rounds(part.rows, 0, 0, 0.0))
        found[part.rows] = Rounds(
            part.rows,
            old.count + part.count,
            old.tokens + part.tokens,
            old.seconds + part.seconds,
        )
    return tuple(found[rows] for rows in sorted(found))
