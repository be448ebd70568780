"""What rounds take on this machine: a table's estimate, corrected by every round that ran.

All is counted in decode steps of an empty context, whose seconds the first decode steps tell. The
estimate adds up parts: a verify pass, which reads the weights and the KV caches, and a draft. Each
part has a factor of its own, which rounds with that part correct.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log

from .prior import KNOTS

RATE = 0.06  # weight of one round against all before it: about fifteen count
LATE = log(1.5)  # rounds that are off by more teach no more than this
SURE = 2.0  # rounds that a factor needs before it takes a late one for a disturbance
READ = 0.03  # reading a drafter's confidence before the verify pass is built, in decode steps

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
    """The correction of one part: its logarithm, and how many rounds have taught it."""

    log: float = 0.0
    rounds: float = 0.0

    def learn(self, late: float, share: float) -> None:
        self.rounds += share
        self.log += late * share * max(RATE, 1 / (1 + self.rounds))


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of a round. caches: bytes of all their KV caches, by those of the weights."""

    sequences: int
    caches: float

    def part(self, count: int) -> "Batch":
        """So many of these sequences."""
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
        """Whether a decode step was timed."""
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

    def read(self) -> float:
        """Seconds that a round takes longer because it reads a drafter's confidence."""
        return self._seconds(("read", 1), READ)

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

    def learn_step(self, seconds: float, batch: Batch) -> None:
        """Learn from a decode step of one sequence among others."""
        found = seconds / self._verify_units(batch.sequences, batch)
        if not self.known:
            self.step = found
        late = log(found / self.step)
        if self._steps >= SURE:
            late = max(-LATE, min(LATE, late))
        self._steps += 1
        self.step *= exp(late * max(RATE, 1 / self._steps))

    def learn(self, parts: dict[Part, float], seconds: float) -> float:
        """Learn from a round of these parts, in seconds as estimated.

        Returns its seconds without what only a disturbance can explain.
        """
        expected = sum(parts.values())
        late = log(seconds / expected)
        bounded = max(-LATE, min(LATE, late))
        for part, own in parts.items():
            factor = self._factors.get(part) or Factor(self._log(part))
            factor.learn(late if factor.rounds < SURE else bounded, own / expected)
            self._factors[part] = factor
        return expected * exp(bounded)


def knot(rows: int) -> int:
    """The number of rows in the table that stands for these: the next larger one."""
    place = bisect_left(KNOTS, rows)
    return KNOTS[min(place, len(KNOTS) - 1)]


def at(ratios: tuple[float, ...], rows: int) -> float:
    """The ratio of a pass; a pass beyond the widest counts as several of the widest.

    Quantised products step up at certain rows, so between two knots the slower one counts.
    """
    place = bisect_left(KNOTS, rows)
    if place == len(KNOTS):
        return ratios[-1] * -(-rows // KNOTS[-1])
    return max(ratios[max(0, place - (KNOTS[place] != rows))], ratios[place])
