"""The results of a run, in a JSONL file that a later run may continue.

The first line holds the facts of the run, each other line one measurement. A run with other facts
is refused, and so is a second writer. An incomplete last line is dropped.
"""

import hashlib
import json
import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from dflash_mlx.cpu.blas import use_openblas
from dflash_mlx.device import device_info
from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.line_file import LineFile
from dflash_mlx.installation import versions
from dflash_mlx.models.precision import bits_of
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session

from .questions import Question
from .runner import Curve, curve_of
from .schedule import BASELINE, Key, Record, Rounds, Schedule, Turn, record_of

FORMAT = 1
FILE_START = b'{"kind": "run"'
Facts = dict[str, Any]  # JSON values


class Results:
    """The measurements of one run, in memory and, with a path, in a file."""

    def __init__(self, facts: Facts, path: Path | None = None):
        """Read the file and lock it until `close`.

        Raises DFlashError if the file has other facts, is locked, or cannot be used.
        """
        self.facts = {"format": FORMAT, **json.loads(json.dumps(facts))}
        self.path = path
        self.records: dict[Key, Record] = {}
        self.curve: Curve | None = None
        self._file: LineFile | None = None
        if path is not None:
            self._file = LineFile(path, "benchmark")
            try:
                self._resume(self._file, path)
            except BaseException:
                self.close()
                raise

    def _resume(self, file: LineFile, path: Path) -> None:
        if not file.lines and not FILE_START.startswith(file.rest[: len(FILE_START)]):
            raise not_results(path, 1)
        for number, line in enumerate(file.lines, 1):
            self._read(number, line, path)
        file.cut()
        if not file.lines:
            self._append({"kind": "run", **self.facts})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep(self, record: Record) -> None:
        """Add a record, and write it at once."""
        self.records[record.key] = record
        self._append({"kind": "answer", **record.data()})

    def keep_curve(self, curve: Curve) -> None:
        """Set the costs of a pass by width, and write them at once."""
        self.curve = curve
        self._append({"kind": "costs", **curve.data()})

    def of(self, schedule: Schedule, questions: Sequence[Question]) -> list[Record]:
        """The available records of a schedule, in its order."""
        keys = (key for key, _, _ in schedule.keys(questions))
        return [self.records[key] for key in keys if key in self.records]

    def _append(self, data: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.append(data)

    def _read(self, number: int, line: bytes, path: Path) -> None:
        try:
            data = json.loads(line)
            kind = data.pop("kind")
            if number == 1:
                self._check(data if kind == "run" else {}, path)
            elif kind == "answer":
                record = record_of(data)
                self.records[record.key] = record
            elif kind == "costs":
                self.curve = curve_of(data)
            else:
                raise KeyError(kind)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise not_results(path, number) from None

    def _check(self, file_facts: Facts, path: Path) -> None:
        if not file_facts:
            raise KeyError("run")
        change = first_difference(file_facts, self.facts)
        if change is not None:
            raise DFlashError(
                f"'{path}' holds results of another run: {change}.",
                hint="repeat that run's settings to continue it, or give --out another file",
            )


def first_difference(file_facts: Facts, run_facts: Facts, prefix: str = "") -> str | None:
    """The first difference between the facts of a file and of this run, as text; None if equal."""
    for name in dict.fromkeys([*file_facts, *run_facts]):
        old = file_facts.get(name)
        new = run_facts.get(name)
        label = f"{prefix} {name}".strip().replace("_", " ")
        if isinstance(old, dict) and isinstance(new, dict):
            if (inner := first_difference(old, new, label)) is not None:
                return inner
        elif old != new:
            return f"its {label} is {fact_text(old)}, now it is {fact_text(new)}"
    return None


def fact_text(value: Any) -> str:
    return "not set" if value is None else f"{value}"


def not_results(path: Path, number: int) -> DFlashError:
    return DFlashError(
        f"line {number} of '{path}' is not a benchmark result.", hint="give --out another file"
    )


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
        return {**asdict(self.key), **{n: getattr(self, n) for n in self.__slots__ if n != "key"}}


def first_different_token(plain: Sequence[int], tokens: Sequence[int]) -> int | None:
    """The index of the first token that differs; None if both are the same."""
    for index, (plain_token, token) in enumerate(zip(plain, tokens, strict=False)):
        if plain_token != token:
            return index
    return None if len(plain) == len(tokens) else min(len(plain), len(tokens))


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
    for number, (plain_turn, turn) in enumerate(zip(plain.turns, record.turns, strict=True), 1):
        index = first_different_token(plain_turn.tokens, turn.tokens)
        if index is not None:
            wanted = token_at(plain_turn, index)
            return Difference(record.key, number, index + 1, wanted, token_at(turn, index))
    return None


def token_at(turn: Turn, index: int) -> int | None:
    """A token of an answer; None after its end."""
    return turn.tokens[index] if index < len(turn.tokens) else None


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
    return replace(difference, gap=top_gap(pair, [*prompt, *shared]))


def top_gap(pair: Pair, tokens: list[int]) -> float:
    """The target's best logit minus its second best, after these tokens."""
    logits = mlx_thread().call(TokenSequence(pair.target, None).read, tokens)[0]
    best = mx.topk(logits.astype(mx.float32), 2)
    return abs((best[0] - best[1]).item())  # type: ignore[arg-type]


# The facts of a benchmark run

CPUINFO = Path("/proc/cpuinfo")
VALUES_PER_TENSOR = 64  # in the hash of the weights


def facts_of(pair: Pair, schedule: Schedule) -> dict[str, Any]:
    """The facts of a run; measurements are comparable only if these are equal."""
    drafter = pair.drafter
    kernels = pair.target.kernels
    return {
        "pair": {
            "target": pair.target_name,
            "drafter": pair.draft_label,
            "draft_bits": None if drafter is None else bits_of(drafter.model) or None,
            "target_weights": weights_hash(pair.target.model),
            "drafter_weights": None if drafter is None else weights_hash(drafter.model),
            "type": str(pair.target.config.get("model_type")),
            "dtype": weights_dtype(pair.target.model),
            "block_size": pair.block_size if pair.drafts else None,
            "kv_cache": pair.target.kv_summary or None,
            "exact": kernels.exact,
            "kernels": None if kernels.launcher is None else sorted(kernels.on or ()),
        },
        "settings": {
            "max_tokens": schedule.max_tokens,
            "seed": schedule.seed,
            "block_size": schedule.block_size,
            "accept": schedule.accept,
            "think": schedule.think,
            "effort": schedule.effort,
            "cooldown": schedule.cooldown,
        },
        "machine": machine_facts(),
        "versions": {**versions(), "python": platform.python_version()},
    }


def machine_facts() -> dict[str, Any]:
    """The processor, memory in bytes, system, and MLX's device and BLAS."""
    return {
        "chip": str(device_info().get("device_name", "")) or platform.machine(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "device": mx.default_device().type.name,
        "blas": Path(use_openblas() or "as MLX is built").name,
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS"),
    }


def weights_dtype(model: nn.Module) -> str:
    """The dtype of most weights, or "N-bit" for a quantised model."""
    quantised = next((m for m in model.modules() if hasattr(m, "bits")), None)
    if quantised is not None:
        return f"{quantised.bits}-bit"
    sizes: dict[str, int] = {}
    for _, value in tree_flatten(model.parameters()):
        name = str(value.dtype).removeprefix("mlx.core.")  # type: ignore[union-attr]
        sizes[name] = sizes.get(name, 0) + value.size  # type: ignore[union-attr]
    return max(sizes, key=lambda name: sizes[name])


def weights_hash(model: nn.Module) -> str:
    """A short hash of the names, shapes, dtypes and first values of all weights.

    Modules that wrap another one as `plain` do not change the hash.
    """
    digest = hashlib.sha256()
    weights = [(name.replace(".plain.", "."), w) for name, w in tree_flatten(model.parameters())]
    for name, value in sorted(weights, key=lambda item: item[0]):
        assert isinstance(value, mx.array)
        digest.update(f"{name} {value.shape} {value.dtype}".encode())
        digest.update(np.array(value.reshape(-1)[:VALUES_PER_TENSOR].astype(mx.float32)).tobytes())
    return digest.hexdigest()[:12]


# Summary of records as table rows

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

    questions: their number.
    answers: their number, in all turns and repeats.
    prefill, decode: tokens per second.
    first_token: seconds.
    speedup: of each question, the median of its repeats and turns.
    tau: of each answer; None for plain decoding.
    mean_tau, mean_speedup: as in the papers, the mean of τ, and the ratio of the mean seconds per
    token.
    acceptance_rate: accepted / drafted.
    by_position: accepted drafts in position 1, 2, ... per verify.
    rounds: the passes by rows.
    identical: the number of answers equal to plain decoding, out of `compared`. Only greedy answers
    are compared, unless samples are included.
    peak_bytes: the maximum over answers.
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
    """The quartiles of the values that are not None; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Spread(known[0], known[0], known[0])
    return Spread(*quantiles(known, n=4, method="inclusive"))


def summarise(records: Sequence[Record], *, samples: bool = False) -> list[Row]:
    """The rows of each task, then those of all tasks together if there are several.

    With `samples` answers above temperature 0 are compared with plain decoding, too.
    """
    tasks = list(dict.fromkeys((record.key.suite, record.task) for record in records))
    # The first question has the modes in the schedule's order, others may have another one.
    modes = list(dict.fromkeys(record.key.mode for record in records))
    rows = []
    for suite, task in tasks:
        part = [r for r in records if (r.key.suite, r.task) == (suite, task)]
        rows += rows_of(part, modes, suite, task, samples)
    return rows + (rows_of(records, modes, ALL, ALL, samples) if len(tasks) > 1 else [])


def rows_of(
    records: Sequence[Record], modes: list[str], suite: str, task: str, samples: bool
) -> list[Row]:
    """One row for each temperature and mode: plain decoding, then the modes in this order."""
    groups: dict[tuple[float, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.key.temperature, record.key.mode].append(record)
    by_key = {record.key: record for record in records}
    return [
        row_of(groups[group], by_key, suite, task, samples)
        for group in sorted(
            groups, key=lambda group: (group[0], group[1] != BASELINE, modes.index(group[1]))
        )
    ]


def row_of(
    records: Sequence[Record], by_key: dict[Key, Record], suite: str, task: str, samples: bool
) -> Row:
    turns = [turn for record in records for turn in record.turns]
    plain = {r.key: by_key.get(replace(r.key, mode=BASELINE)) for r in records}
    pairs = (
        []
        if records[0].key.mode == BASELINE
        else pairs_with_baseline([*records, *filter(None, plain.values())], samples=samples)
    )
    drafted = sum(t.drafted for t in turns)
    verifies = sum(t.verifies for t in turns)
    taus = [turn.acceptance_length for turn in turns if records[0].key.mode != BASELINE]
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
        identical=sum(difference_of(*pair) is None for pair in pairs),
        compared=len(pairs),
        peak_bytes=max(record.peak_bytes for record in records),
    )


def speedups(records: Sequence[Record], plain: dict[Key, Record | None]) -> list[float]:
    ratios: dict[tuple[str, int], list[float]] = defaultdict(list)
    if records[0].key.mode == BASELINE:
        return []
    for record in records:
        baseline = plain[record.key]
        plain_turns = baseline.turns if baseline else ()
        for turn, plain_turn in zip(record.turns, plain_turns, strict=False):
            rate = turn.tokens_per_second
            plain_rate = plain_turn.tokens_per_second
            if rate and plain_rate:
                ratios[record.key.suite, record.key.number].append(rate / plain_rate)
    return [median(values) for values in ratios.values()]


def mean_speedup(records: Sequence[Record], plain: dict[Key, Record | None]) -> float | None:
    """Mean seconds per token of plain decoding over those of this mode, as in the DFlash paper."""
    if records[0].key.mode == BASELINE:
        return None
    rates = [
        (turn.tokens_per_second, plain_turn.tokens_per_second)
        for record in records
        if (baseline := plain[record.key]) is not None
        for turn, plain_turn in zip(record.turns, baseline.turns, strict=True)
    ]
    known = [(rate, plain_rate) for rate, plain_rate in rates if rate and plain_rate]
    if not known:
        return None
    plain_seconds = fmean(1 / plain_rate for _, plain_rate in known)
    return plain_seconds / fmean(1 / rate for rate, _ in known)


def by_position(turns: Sequence[Turn], verifies: int) -> tuple[float, ...]:
    """The number of accepted drafts in each position per verify."""
    positions = max((len(turn.accepted_by_position) for turn in turns), default=0)
    accepted = [0] * positions
    for turn in turns:
        for position, count in enumerate(turn.accepted_by_position):
            accepted[position] += count
    return tuple(count / verifies for count in accepted) if verifies else ()


def merge_rounds(parts: Iterable[Rounds]) -> tuple[Rounds, ...]:
    sums: dict[int, Rounds] = {}
    for part in parts:
        old = sums.get(part.rows, Rounds(part.rows, 0, 0, 0.0))
        sums[part.rows] = Rounds(
            part.rows,
            old.count + part.count,
            old.tokens + part.tokens,
            old.seconds + part.seconds,
        )
    return tuple(sums[rows] for rows in sorted(sums))
