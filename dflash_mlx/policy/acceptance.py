"""How likely the target accepts drafts, learned as moving averages from those that it verified.

A drafter's confidence is how likely it takes each of its drafts to be right. How far that is true
differs between drafters and texts, so it is never used as it is: drafts of about the same
confidence share an average of how many of them were accepted. Where the confidence was not read,
the drafts of each position of the block do.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from math import exp, log
from operator import mul

# The probability that a drafter gives each position's draft [γ]; it ends before a 0.
Confidence = Sequence[float]

MEMORY = 0.95  # of a round for the next: twenty rounds show a rate, and are of the same passage
PRIOR = 2.0  # drafts that an average starts with: a few real ones soon count more
LOG_ODDS = 6  # either way; beyond (0.25 % and 99.75 %) all confidence is the same


@dataclass(slots=True)
class Averages:
    """The acceptance probability of drafts by some number, as moving averages."""

    verified: dict[int, float] = field(default_factory=dict)  # drafts, older ones counting less
    accepted: dict[int, float] = field(default_factory=dict)

    def probability(self, number: int, prior: float) -> float:
        """The share of accepted drafts; `prior` where there were none."""
        if number not in self.verified:
            return prior
        return self.accepted[number] / self.verified[number]

    def update(self, numbers: Sequence[int], priors: Sequence[float], accepted: int) -> None:
        """Count drafts of these numbers, of which the first `accepted` were accepted."""
        for number, prior in zip(numbers, priors, strict=True):
            self.verified.setdefault(number, PRIOR)
            self.accepted.setdefault(number, PRIOR * prior)
        for number in set(numbers):
            self.verified[number] *= MEMORY
            self.accepted[number] *= MEMORY
        for place, number in enumerate(numbers):
            self.verified[number] += 1
            self.accepted[number] += place < accepted


class Acceptance:
    """The acceptance probabilities of one drafter's drafts in one text."""

    def __init__(self) -> None:
        self._by_position = Averages()
        self._by_confidence = Averages()

    def fork(self) -> "Acceptance":
        """A copy that learns by itself."""
        return deepcopy(self)

    def survivals(self, confidence: Confidence | None, positions: int) -> list[float]:
        """The probability of each draft that it is accepted with all before it, falling.

        For at most so many positions. By position where `confidence` is None; a position is then
        taken to be as good as the one before it until its own drafts were verified.
        """
        if confidence is None:
            probabilities = self._position_probabilities(positions)
        else:
            probabilities = [
                self._by_confidence.probability(interval(stated), stated)
                for stated in takewhile(bool, confidence[:positions])
            ]
        return list(accumulate(probabilities, mul))

    def _position_probabilities(self, positions: int) -> list[float]:
        probabilities = list[float]()
        probability = 0.5
        for position in range(positions):
            probability = self._by_position.probability(position, probability)
            probabilities.append(probability)
        return probabilities

    @property
    def by_position(self) -> tuple[float, ...]:
        """Share of the drafts in position 1, 2, ... that were accepted with all before them."""
        return tuple(self.survivals(None, len(self._by_position.verified)))

    def update(
        self, confidence: Confidence | None, verified: int, accepted: int, *, ended: bool
    ) -> None:
        """Of `verified` drafts the first `accepted` were accepted.

        `ended`: the answer ended with the last of these, and nothing is known of the next.
        """
        known = accepted + (accepted < verified and not ended)
        self._by_position.update(range(known), self._position_probabilities(known), accepted)
        if confidence is not None:
            stated = [*takewhile(bool, confidence[:known])]
            self._by_confidence.update([interval(p) for p in stated], stated, accepted)


def interval(confidence: float) -> int:
    """The number of the interval of confidences that average together: each one of log-odds."""
    bound = 1 / (1 + exp(LOG_ODDS))
    p = min(max(confidence, bound), 1 - bound)
    return round(log(p / (1 - p))) + LOG_ODDS
