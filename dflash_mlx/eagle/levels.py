"""The dynamic tree of EAGLE-2 and 3 (arXiv 2406.16858) as what a tree is built from.

Of every level the likeliest paths go on, and each goes on by its likeliest tokens. The best first
of all these are the nodes that the authors keep by their sort of all: a path is never likelier than
its beginning. Does not know models.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from dflash_mlx.speculation.tree import Ranked

ENDS: Ranked = [], [], []


@dataclass(frozen=True, slots=True)
class Level:
    """One level of drafts, on the device.

    tokens, logs: [P, k], the likeliest after each path, and their log-probabilities. goes_on: [Q],
    the places among all P * k of those that the next level goes on from, the likeliest first.
    """

    tokens: mx.array
    logs: mx.array
    goes_on: mx.array


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of a tree, on their way to the host; a `PendingRankings`."""

    levels: list[Level]

    def begin(self) -> None:
        """Compute them; the host does not wait."""
        mx.async_eval(*(part for each in self.levels for part in arrays(each)))

    def to_host(self) -> "Paths":
        """Wait for them."""
        return Paths([[np.array(part) for part in arrays(each)] for each in self.levels])


class Paths:
    """`Rankings` of the levels; a case is a path that goes on, -1 one that does not."""

    def __init__(self, levels: list[list[np.ndarray]]):
        self._levels = levels

    @property
    def positions(self) -> int:
        """The number of levels."""
        return len(self._levels)

    def after(self, position: int, case: int) -> Ranked:
        """The tokens after a path, the likeliest first; of equals the smaller id of the head's."""
        if case < 0:
            return ENDS
        tokens, logs, goes_on = self._levels[position]
        order = np.argsort(-logs[case], kind="stable")
        paths = {int(place): number for number, place in enumerate(goes_on)}
        cases = [paths.get(case * len(order) + int(place), -1) for place in order]
        ranked = np.minimum(logs[case][order], 0.0)
        return ranked.tolist(), tokens[case][order].tolist(), cases


def arrays(level: Level) -> tuple[mx.array, mx.array, mx.array]:
    """A level's arrays."""
    return level.tokens, level.logs, level.goes_on
