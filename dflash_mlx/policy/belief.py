"""How likely one text's drafts are kept, learned from those that were and were not.

A drafter says how likely each position's draft is kept; how far that is true differs from drafter
to drafter and from text to text. The survival of a draft is the probability that it is kept, all
before it kept. Plain numbers; does not know models, costs, or what survivals are for.
"""

from collections.abc import Sequence
from copy import deepcopy
from itertools import accumulate, takewhile
from math import exp, log
from operator import mul

# The probability that a drafter gives each position's draft [γ]; it ends before a 0.
Confidence = Sequence[float]

PRIOR = 0.1, 2.0  # variances of scale and shift before anything is learned: drafters are honest
CHANGE = 1 / 2000  # share of these by which a text may change in a round
MEMORY = 0.95  # of counts, a round: twenty rounds tell a rate and are still the same passage


class Belief:
    """What was learned of one text's acceptance.

    By confidence: a draft of log-odds x is kept with log-odds scale * x + shift, both learned by
    Bayesian logistic regression (an extended Kalman filter). By position, where confidence is not
    read: counts of drafts in position 1, 2, ... that were verified and kept. `confidence`: what was
    said of this round's block, None if it was not read.
    """

    def __init__(self) -> None:
        self.scale, self.shift = 1.0, 0.0
        self._verified: list[float] = []
        self._kept: list[float] = []
        self.confidence: Confidence | None = None
        self.doubt()

    def doubt(self) -> None:
        """Things may have changed: the next drafts count as the very first."""
        self._scale_var, self._shift_var, self._covar = *PRIOR, 0.0

    def fork(self) -> "Belief":
        """A copy that learns by itself."""
        return deepcopy(self)

    def survivals(self, confidence: Confidence | None, positions: int) -> list[float]:
        """Survivals of a block's drafts, falling; of at most so many positions."""
        if confidence is None:
            return self.by_position(positions)
        a, b = self.scale, self.shift
        chances = (sigmoid(a * x + b) for x in log_odds(confidence[:positions]))
        return list(accumulate(chances, mul))

    def by_position(self, positions: int) -> list[float]:
        """Survivals where confidence is not known, by counts.

        A position begins as likely as the one before it, as drafters fade slowly: else one that
        was never verified would look bad for ever.
        """
        self._grow(positions)
        chance, chances = 0.5, list[float]()
        for kept, count in zip(self._kept[:positions], self._verified[:positions], strict=True):
            chance = (kept + 2 * chance) / (count + 2)
            chances.append(chance)
        return list(accumulate(chances, mul))

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Share of the drafts in position 1, 2, ... that were kept with all before them kept."""
        return tuple(self.by_position(len(self._verified)))

    def learn(
        self, confidence: Confidence | None, verified: int, accepted: int, *, cut: bool
    ) -> None:
        """Of `verified` drafts `accepted` were kept; `cut`: the answer ended with the last of them.

        Nothing is known of the draft that follows then.
        """
        known = accepted + (accepted < verified and not cut)
        self._grow(verified)
        self._verified = [MEMORY * n + (place < known) for place, n in enumerate(self._verified)]
        self._kept = [MEMORY * n + (place < accepted) for place, n in enumerate(self._kept)]
        self._scale_var += CHANGE * PRIOR[0]
        self._shift_var += CHANGE * PRIOR[1]
        for place, odds in enumerate(log_odds((confidence or ())[:known])):
            self._regress(odds, place < accepted)

    def _regress(self, odds: float, kept: bool) -> None:
        chance = sigmoid(self.scale * odds + self.shift)
        of_scale = self._scale_var * odds + self._covar
        of_shift = self._covar * odds + self._shift_var
        weight = chance * (1 - chance)
        part = 1 / (1 + weight * (of_scale * odds + of_shift))
        self.scale += part * of_scale * (kept - chance)
        self.shift += part * of_shift * (kept - chance)
        self._scale_var -= weight * part * of_scale * of_scale
        self._covar -= weight * part * of_scale * of_shift
        self._shift_var -= weight * part * of_shift * of_shift

    def _grow(self, positions: int) -> None:
        missing = [0.0] * (positions - len(self._verified))
        self._verified += missing
        self._kept += missing


def log_odds(confidence: Confidence) -> list[float]:
    """Log-odds of the probabilities up to the first 0, at most 9.2 either way."""
    bounded = (min(max(p, 1e-4), 1 - 1e-4) for p in takewhile(bool, confidence))
    return [log(p / (1 - p)) for p in bounded]


def sigmoid(odds: float) -> float:
    """Probability of log-odds."""
    return 1 / (1 + exp(-max(-30.0, odds)))
