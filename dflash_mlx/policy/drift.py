"""How much longer rounds take than their measured costs, learned from the clock."""

from math import exp, log

RATE = 0.1  # what one round moves of the common factor
OF_WIDTH = 0.04  # and of its width's: what other work does is soon over, and says nothing of it
CLIP = 0.25  # one late round says no more than this


class Drift:
    """One factor for all rounds (heat, other work on the machine) and one for each measured width.

    Only the latter changes what is best. A width is named by its measured seconds: those between
    two measured ones share the factor of the one that they cost as. Kept as logarithms.
    """

    def __init__(self) -> None:
        self._common = 0.0
        self._widths: dict[float, float] = {}

    def factor(self, measured: float) -> float:
        """What to multiply a pass of these seconds by, to compare it with other passes."""
        return exp(self._widths.get(measured, 0.0))

    def learn(self, measured: float, expected: float, seconds: float) -> float:
        """A round with such a pass should have taken `expected` seconds and took `seconds`.

        Gives what it took without what all rounds have in common, one late round bounded.
        """
        wrong = log(seconds / expected) - self._common
        wrong = max(-CLIP, min(CLIP, wrong))
        spent = min(seconds / exp(self._common), 2 * expected)
        self._common += RATE * wrong
        self._widths[measured] = self._widths.get(measured, 0.0) + OF_WIDTH * wrong
        return spent
