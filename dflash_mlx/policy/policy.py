"""What decides about rounds has to answer, and the policy that always decides the same.

A round goes: `drafts` (is there anything to draft?), `looks` (is its confidence wanted?), `plan`,
and when the round is done `learn`. Decides and counts only: knows no models, clocks or caches.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from .calibration import Confidence, Positions
from .costs import Plan, words


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What was chosen so far, and why.

    `plans`: how often each was chosen, most often first. `seconds`: what each of them takes.
    `acceptance`: share of the drafts in slot 1, 2, ... that were kept with all before them kept, in
    chains.
    `gain`: what a drafted round saves against plain steps, in plain steps, as it looked last.
    """

    name: str
    reason: str
    parked: bool = False
    plans: tuple[tuple[Plan, int], ...] = ()
    seconds: tuple[tuple[Plan, float], ...] = ()
    acceptance: tuple[float, ...] = ()
    gain: float = 0.0
    tries: int = 0


class Policy(Protocol):
    """How a round's plan is found."""

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest tree that `plan` may ask for after a look."""
        ...

    def begin(self) -> None:
        """A new conversation."""
        ...

    def drafts(self, room: int) -> bool:
        """Whether to draft in this round; at most `room` tokens can still be committed."""
        ...

    @property
    def rests(self) -> bool:
        """In a round without a draft: whether the next one surely has none either."""
        ...

    def looks(self) -> bool:
        """Whether `plan` wants the confidence; reading it makes the host wait for the drafter."""
        ...

    def plan(self, confidence: Confidence | None, room: int) -> Plan:
        """This round, after drafting; `confidence` if `looks` asked for it."""
        ...

    def learn(
        self, plan: Plan, accepted: int, committed: int, seconds: float | None = None
    ) -> None:
        """What came of a round; `committed` below `accepted` + 1 says that the answer ended in it.

        `seconds` of the whole round; None where other things happened in it too.
        """
        ...

    @property
    def state(self) -> PolicyState:
        """What was chosen so far."""
        ...


class Fixed:
    """Always the same plan, as far as there is room: the modes dflash, ddtree and baseline."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._counts: Counter[Plan] = Counter()
        self._positions = Positions()

    @property
    def most_nodes(self) -> int:
        """It never looks."""
        return 0

    def begin(self) -> None:
        """Nothing to forget."""

    def drafts(self, room: int) -> bool:
        """Unless the plan is a plain step."""
        return self._plan.rows > 1

    @property
    def rests(self) -> bool:
        """It never changes."""
        return True

    def looks(self) -> bool:
        """No."""
        return False

    def plan(self, confidence: Confidence | None, room: int) -> Plan:
        """The plan."""
        return self._plan

    def learn(
        self, plan: Plan, accepted: int, committed: int, seconds: float | None = None
    ) -> None:
        """Count."""
        self._counts[plan] += 1
        if not plan.tree:  # how deep a tree was is not known here
            self._positions.learn(accepted, plan.rows - 1, cut=committed <= accepted)

    @property
    def state(self) -> PolicyState:
        """The counts."""
        return PolicyState(
            "fixed",
            f"always {words(self._plan)}",
            plans=tuple(self._counts.most_common()),
            acceptance=self._positions.shares,
        )
