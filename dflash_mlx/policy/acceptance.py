"""Estimates how likely the target accepts a draft, from the drafts that it verified.

Drafts at the same position of the block share a moving average of how many were accepted, in
blocks of all widths: a narrow block keeps a hundredth less of its drafts, which is far below what
luck does in the rounds of an answer. Copies state a confidence before they are made. How reliable
that is differs between texts, so copies of about the same confidence share an average; the
confidence itself is only its starting value.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, log
from operator import mul

# The probability that the drafter gives each draft [γ].
Confidence = Sequence[float]

MEMORY = 0.95  # weight of the past in each round: about twenty rounds count, all of one passage
FADING = 0.99  # the same for what was not verified in a round: it is tried again some day
START = 0.7  # the probability before any draft was verified; it counts for one
PRIOR = 4.0  # drafts that what is expected counts for, until real ones were verified
LOG_ODDS = 6  # confidences beyond these log-odds (0.25 % and 99.75 %) share one average


@dataclass(slots=True)
class Averages:
    """Moving averages of the acceptance probability, by position or by confidence interval."""

    verified: dict[int, float] = field(default_factory=dict)  # drafts, older ones counting less
    accepted: dict[int, float] = field(default_factory=dict)

    def probability(self, number: int, prior: float) -> float:
        """The share of accepted drafts; the fewer were verified, the more counts `prior`."""
        verified = self.verified.get(number, 0.0)
        weight = PRIOR / (1 + verified / PRIOR)
        return (self.accepted.get(number, 0.0) + weight * prior) / (verified + weight)

    def update(self, numbers: Sequence[int], accepted: int) -> None:
        """Count drafts of these numbers, of which the first `accepted` were accepted."""
        for number in self.verified:
            memory = MEMORY if number in numbers else FADING
            self.verified[number] *= memory
            self.accepted[number] *= memory
        for place, number in enumerate(numbers):
            self.verified[number] = self.verified.get(number, 0.0) + 1
            self.accepted[number] = self.accepted.get(number, 0.0) + (place < accepted)


class Acceptance:
    def __init__(self) -> None:
        self._by_position = Averages()
        self._by_confidence = Averages()

    def fork(self) -> "Acceptance":
        return deepcopy(self)

    def fade(self) -> None:
        """Doubt what was learned, as in each round without drafts: the text changes."""
        self._by_position.update((), 0)

    def survivals(self, confidence: Confidence | None, positions: int) -> list[float]:
        """For each of the first `positions` drafts, the probability that it and all before pass.

        If `confidence` is None, this uses the averages by position. A position with few verified
        drafts leans on those before it.
        """
        if confidence is None:
            probabilities = self._by_positions(positions)
        else:
            probabilities = [
                self._by_confidence.probability(interval(stated), stated)
                for stated in confidence[:positions]
            ]
        return list(accumulate(probabilities, mul))

    def _by_positions(self, positions: int) -> list[float]:
        averages, probabilities = self._by_position, list[float]()
        verified, accepted = 1.0, START
        for position in range(positions):
            probabilities.append(averages.probability(position, accepted / verified))
            verified += averages.verified.get(position, 0.0)
            accepted += averages.accepted.get(position, 0.0)
        return probabilities

    @property
    def by_position(self) -> tuple[float, ...]:
        return tuple(accumulate(self._by_positions(len(self._by_position.verified)), mul))

    def update(
        self, confidence: Confidence | None, verified: int, accepted: int, *, ended: bool
    ) -> None:
        """Learn that the first `accepted` of `verified` drafts were accepted.

        `ended`: the answer ended with an accepted draft, so the draft after it was not judged.
        """
        known = accepted + (accepted < verified and not ended)
        self._by_position.update(range(known), accepted)
        if confidence is not None:
            self._by_confidence.update([interval(p) for p in confidence[:known]], accepted)


def interval(confidence: float) -> int:
    """The interval of a confidence: its log-odds, rounded, from 0 to 2 * LOG_ODDS."""
    bound = 1 / (1 + exp(LOG_ODDS))
    p = min(max(confidence, bound), 1 - bound)
    return round(log(p / (1 - p))) + LOG_ODDS
