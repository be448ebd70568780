"""What drafting has lost and gained, and when it waits. Counts only; knows no costs or clocks."""

from dataclasses import dataclass
from math import ceil

DOUBT = 0.5  # plain steps that drafts may lose before they wait
CREDIT = 3.0  # plain steps of gain at most that count against later losses: a bad passage
PATIENCE = 60  # plain steps to wait for each that was lost, twice as many after a failed try


@dataclass(slots=True)
class Account:
    """What drafts have lost, less what they have gained (`debt`), in plain steps.

    `wait`: rounds until the next try. `failed`: nothing was gained since the last wait.
    """

    debt: float = 0.0
    wait: int = 0
    failed: bool = False

    @property
    def trying(self) -> bool:
        """Whether drafts have lost and not gained since."""
        return self.failed and self.debt >= 0

    def learn(self, lost: float, *, passed: bool, stop: float = 0.0) -> None:
        """A drafted round lost so many plain steps; `passed`: it was a try, and kept its drafts.

        Such a round is not charged: a try verifies few drafts, and another block is drafted.
        `stop`: what the first plain step after drafts loses, which was not begun ahead.
        """
        if passed:
            lost = min(lost, 0.0)
        self.debt = max(-CREDIT, self.debt + lost)
        if self.debt <= -CREDIT:
            self.failed = False
        if self.debt > DOUBT:
            self.wait = ceil(PATIENCE * (self.debt + stop) * (2 if self.failed else 1))
            self.failed, self.debt = True, 0.0
