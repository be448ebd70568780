"""Whether it pays to read the drafter's confidence before the verify."""

from .belief import MEMORY

RARELY = 32  # rounds after which is done again what did not pay


class Worth:
    """Whether what costs a little is worth doing, by the tokens that it brought of late.

    Where it is not, it is still done once in a while.
    """

    def __init__(self) -> None:
        self._brought, self._times, self._idle = 1.0, 1.0, 0  # a guess, which counts as one time

    def due(self, price: float) -> bool:
        """Whether to do it in this round, for a price in tokens."""
        self._idle += 1
        return self._brought / self._times >= price or self._idle > RARELY

    def learn(self, brought: float) -> None:
        """It was done, and brought so many tokens."""
        self._brought = MEMORY * self._brought + brought
        self._times, self._idle = MEMORY * self._times + 1, 0
