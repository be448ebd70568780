"""Estimates how likely the target accepts a draft, from the drafts that it verified.

A drafter's confidence is its own estimate for each draft. How reliable that is differs between
drafters and texts, so drafts of about the same confidence share a moving average of how many were
accepted; the confidence itself is only its starting value. If the confidence was not read, drafts
at the same position of the block share an average.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from math import exp, log
from operator import mul

# The probability that the drafter gives each draft [γ]; drafts from the first 0 on are ignored.
Confidence = Sequence[float]

MEMORY = 0.95  # weight of the past in each round: about twenty rounds count, all of one passage
PRIOR = 2.0  # drafts that an average starts with: a few real ones soon count more
LOG_ODDS = 6  # confidences beyond these log-odds (0.25 % and 99.75 %) share one average


@dataclass(slots=True)
class Averages:
    """Moving averages of the acceptance probability, by position or by confidence interval."""

    verified: dict[int, float] = field(default_factory=dict)  # drafts, older ones counting less
    accepted: dict[int, float] = field(default_factory=dict)

    def probability(self, number: int, prior: float) -> float:
        """The share of accepted drafts; `prior` if none were verified."""
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
        return deepcopy(self)

    def survivals(self, confidence: Confidence | None, positions: int) -> list[float]:
        """For each of the first `positions` drafts, the probability that it and all before pass.

        If `confidence` is None, this uses the averages by position. A position without verified
        drafts takes the average of the position before it.
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
        """The probability that a draft in position 1, 2, ... is accepted with all before it."""
        return tuple(self.survivals(None, len(self._by_position.verified)))

    def update(
        self, confidence: Confidence | None, verified: int, accepted: int, *, ended: bool
    ) -> None:
        """Learn that the first `accepted` of `verified` drafts were accepted.

        `ended`: the answer ended with an accepted draft, so the draft after it was not judged.
        """
        known = accepted + (accepted < verified and not ended)
        self._by_position.update(range(known), self._position_probabilities(known), accepted)
        if confidence is not None:
            stated = [*takewhile(bool, confidence[:known])]
            self._by_confidence.update([interval(p) for p in stated], stated, accepted)


def interval(confidence: float) -> int:
    """The interval of a confidence: its log-odds, rounded, from 0 to 2 * LOG_ODDS."""
    bound = 1 / (1 + exp(LOG_ODDS))
    p = min(max(confidence, bound), 1 - bound)
    return round(log(p / (1 - p))) + LOG_ODDS
