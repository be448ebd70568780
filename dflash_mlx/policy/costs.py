"""What rounds take on this machine: a table's estimate, corrected by every round that ran.

All is counted in decode steps of an empty context, whose seconds the first decode steps tell. The
estimate adds up parts: a verify pass, which reads the weights and the KV caches, and a draft. Each
part has a factor of its own, which rounds with that part correct.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt

from .prior import KNOTS

RATE = 0.06  # weight of one decode step against all before it: about fifteen count
DOUBTS = {"verify": 0.05, "draft": 0.5}  # variance of a part's correction at first
NOISE = 0.003  # variance of a round's seconds, as a part of them
DRIFT = 1e-5  # what a round adds to the variance of its parts' corrections
FAR = 3.0  # standard deviations; rounds that are off by more teach no more than this
UNSURE = 0.5  # the variance of a correction after many rounds in a row that are that far off
LATE = log(1.5)  # decode steps that are off by more teach no more than this

Part = tuple[str, int]  # what is done, and the knot of its rows


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes of a model in decode steps of an empty context, by their rows (`KNOTS`).

    `weights`: after few tokens; `caches`: what KV caches of as many bytes as the weights add.
    """

    weights: tuple[float, ...]
    caches: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Drafting:
    """Drafts of one drafter: passes of its model, in decode steps of the target.

    `weights`: a pass of one row. `caches`: the time for its caches, against the target's. A
    `chain` needs a pass for each draft, other blocks one for all.
    """

    passes: Passes
    weights: float
    caches: float = 0.0
    chain: bool = False


@dataclass(slots=True)
class Factor:
    """The correction of one part: its logarithm, and the variance of that."""

    log: float
    doubt: float


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of a round. caches: bytes of all their KV caches, by those of the weights."""

    sequences: int
    caches: float

    def part(self, count: int) -> "Batch":
        return Batch(count, self.caches * count / self.sequences)


@dataclass(slots=True)
class Costs:
    """The parts of a pair's rounds, in seconds once `known`."""

    target: Passes
    drafters: Sequence[Drafting | None]  # None for drafts that take no time
    step: float = 0.0  # seconds of a decode step of an empty context
    _steps: int = 0
    _factors: dict[Part, Factor] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        return self._steps > 0

    def verify(self, rows: int, batch: Batch) -> float:
        """Seconds of a pass of `rows` over the sequences of a batch."""
        return self._seconds(("verify", knot(rows)), self._verify_units(rows, batch))

    def _verify_units(self, rows: int, batch: Batch) -> float:
        each = -(-rows // batch.sequences)
        return at(self.target.weights, rows) + batch.caches * at(self.target.caches, each)

    def draft(self, drafter: int, width: int, batch: Batch) -> float:
        """Seconds to draft blocks of `width` rows, anchor included, after each of a batch."""
        kind = self.drafters[drafter]
        if kind is None:
            return 0.0
        count = width - 1 if kind.chain else 1
        each = 1 if kind.chain else width
        rows = batch.sequences * each
        units = kind.weights * at(kind.passes.weights, rows)
        units += kind.caches * batch.caches * at(kind.passes.caches, each)
        return self._seconds((f"draft {drafter}", knot(width)), count * units)

    def _seconds(self, part: Part, units: float) -> float:
        return self.step * units * exp(self._log(part))

    def _log(self, part: Part) -> float:
        """A part's correction; that of the nearest rows of its kind if it has none."""
        if part in self._factors:
            return self._factors[part].log
        kind, rows = part
        near = [other for name, other in self._factors if name == kind]
        if rows == 1 or not near:
            return 0.0
        nearest = min(near, key=lambda other: abs(log(other / rows)))
        return self._factors[kind, nearest].log

    def learn_step(self, seconds: float, batch: Batch, rounds: int) -> float:
        """Learn from a decode step of one sequence among others; the last was `rounds` ago.

        Returns by how much it took longer than known, as a logarithm.
        """
        found = seconds / self._verify_units(batch.sequences, batch)
        if not self.known:
            self.step = found
        late = log(found / self.step)
        if self._steps > 1:
            late = max(-LATE, min(LATE, late))
        self._steps += 1
        self.step *= exp(late * max(1 - (1 - RATE) ** rounds, 1 / self._steps))
        return late

    def learn(self, parts: dict[Part, float], seconds: float) -> float:
        """Learn from a round of these parts, in seconds as estimated: a Kalman filter.

        A part takes the blame by its share of the seconds and by how uncertain it is. Returns the
        seconds without what only a disturbance can explain.
        """
        expected = sum(parts.values())
        for part in parts:
            if part not in self._factors:
                self._factors[part] = Factor(self._log(part), DOUBTS[part[0].split()[0]])
        factors = [(self._factors[part], own / expected) for part, own in parts.items()]
        doubt = NOISE + sum(factor.doubt * share**2 for factor, share in factors)
        bound = FAR * sqrt(doubt)
        off = log(seconds / expected)
        late = max(-bound, min(bound, off))
        for factor, share in factors:
            gain = factor.doubt * share / doubt
            factor.log += gain * late
            factor.doubt += DRIFT - gain * share * factor.doubt
            if late != off:  # once it is a disturbance; again and again, the machine has changed
                factor.doubt = min(UNSURE, 3 * factor.doubt)
        return expected * exp(late)


def knot(rows: int) -> int:
    """The number of rows in the table that stands for these: the next larger one."""
    place = bisect_left(KNOTS, rows)
    return KNOTS[min(place, len(KNOTS) - 1)]


def edges(least: int, most: int) -> list[int]:
    """The widest passes of each price, from `least` to `most` rows."""
    several = range(2 * KNOTS[-1], most, KNOTS[-1])
    return [*(rows for rows in (*KNOTS, *several) if least <= rows < most), most]


def at(ratios: tuple[float, ...], rows: int) -> float:
    """The ratio of a pass; a pass beyond the widest counts as several of the widest.

    Quantised products step up at certain rows, so between two knots the slower one counts.
    """
    place = bisect_left(KNOTS, rows)
    if place == len(KNOTS):
        return ratios[-1] * -(-rows // KNOTS[-1])
    return max(ratios[max(0, place - (KNOTS[place] != rows))], ratios[place])
