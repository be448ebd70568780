"""What drafting has lost and gained, and when it waits. Counts only; knows no costs or clocks."""

from dataclasses import dataclass
from math import ceil

DOUBT = 0.5  # plain steps that drafts may lose before they wait
CREDIT = 2.5  # plain steps of gain at most that count against later losses: a bad passage
PATIENCE = 15  # plain steps to wait for each that was lost, twice as many after each failed try
DOUBLED = 4  # times at most


@dataclass(slots=True)
class Account:
    """What drafts have lost, less what they have gained (`debt`), in plain steps.

    `wait`: rounds until the next try. `failed`: the waits since something was gained.
    """

    debt: float = 0.0
    wait: int = 0
    failed: int = 0

    @property
    def trying(self) -> bool:
        """Whether drafts have lost and not gained since."""
        return self.failed > 0 and self.debt >= 0

    def learn(self, lost: float, *, passed: bool, stop: float = 0.0) -> None:
        """A drafted round lost so many plain steps; `passed`: it was a try, and kept its drafts.

        Such a round is not charged: a try verifies few drafts, and another block is drafted.
        `stop`: what the first plain step after drafts loses, which was not begun ahead.
        """
        if passed:
            lost = min(lost, 0.0)
        self.debt = max(-CREDIT, self.debt + lost)
        if self.debt <= -CREDIT:
            self.failed = 0
        if self.debt > DOUBT:
            self.wait = ceil(PATIENCE * (self.debt + stop) * 2 ** min(self.failed, DOUBLED))
            self.failed, self.debt = self.failed + 1, 0.0
