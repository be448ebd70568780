"""What decides how many drafts each sequence verifies: the protocol, and the fixed plans.

In each round the scheduler calls `choose_drafters`, `wants_confidence` once there are drafts,
`choose_plans`, and `update` when the round is done. A policy only counts: it has no models, clocks
or caches.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dflash_mlx.types import Plan

from .acceptance import Acceptance, Confidence
from .latency import describe_plan


@dataclass(frozen=True, slots=True)
class DraftState:
    """The drafts of one drafter for one sequence, before or after they are made.

    `room`: tokens that the sequence may still commit. `confidence`: the drafter's, None where it is
    not known. `free`: they take no time of the device, and their confidence is known before they
    are made.
    """

    acceptance: Acceptance
    room: int
    confidence: Confidence | None = None
    free: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of one sequence's round.

    `verified` drafts were in the pass and `accepted` of them kept; `committed` tokens at most
    `accepted` say that the answer ended within them. `drafter`: which one drafted, with its
    `acceptance`, None in a decode step; `free` as in `DraftState`. `judged`: so many of the first
    tell of the drafter, None is all; about the others a grammar decided.
    """

    acceptance: Acceptance | None
    plan: Plan
    verified: int
    accepted: int
    committed: int
    drafter: int | None = None
    free: bool = False
    confidence: Confidence | None = None
    judged: int | None = None

    @property
    def own(self) -> int:
        """Of the verified drafts those that tell of the drafter."""
        return self.verified if self.judged is None else self.judged

    @property
    def kept(self) -> int:
        """How many of these were accepted."""
        return min(self.accepted, self.own)

    @property
    def ended(self) -> bool:
        """Whether the answer ended with an accepted draft, so that the next one is not judged."""
        return self.committed <= self.accepted


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What was chosen so far, and why.

    `plans`: how often each was chosen, most often first. `acceptance`: share of the drafts in
    position 1, 2, ... of chains that were accepted with all before them.
    """

    name: str
    reason: str
    plans: tuple[tuple[Plan, int], ...] = ()
    acceptance: tuple[float, ...] = ()


class Policy(Protocol):
    """The draft length policy of some sequences."""

    def new_sequence(self, drafters: int) -> list[Acceptance]:
        """What a new text starts with for each of so many drafters: what was learned so far."""
        ...

    def choose_drafters(
        self, sequences: Sequence[Sequence[DraftState | None]], other_rows: int = 0
    ) -> list[int | None]:
        """Which drafter drafts for each sequence, None for a decode step.

        Each sequence has a state for every drafter, None where that cannot draft for it now.
        `other_rows`: what other sequences have in the pass.
        """
        ...

    def may_draft(self, sequence: Sequence[DraftState | None]) -> bool:
        """Whether a sequence may draft in the next round, as far as is known in this one."""
        ...

    def wants_confidence(self) -> bool:
        """Whether to wait for the drafters' confidence before `choose_plans`."""
        ...

    def choose_plans(self, drafts: Sequence[DraftState], other_rows: int = 0) -> list[Plan]:
        """How much of each draft is verified."""
        ...

    def update(self, results: Sequence[StepResult], seconds: float | None) -> None:
        """Learn from a round; its `seconds`, None where they are not known."""
        ...

    @property
    def state(self) -> PolicyState:
        """What was chosen so far."""
        ...


class FixedPolicy:
    """Always the same plan: the modes dflash, ddtree and baseline."""

    def __init__(self, plan: Plan, reason: str = ""):
        """`reason`: why, where nobody asked for just this plan."""
        self._plan = plan
        self._reason = reason
        self._counts: Counter[Plan] = Counter()
        self._acceptance = Acceptance()

    def new_sequence(self, drafters: int) -> list[Acceptance]:
        return [self._acceptance] * drafters  # it changes no plan

    def choose_drafters(
        self, sequences: Sequence[Sequence[DraftState | None]], other_rows: int = 0
    ) -> list[int | None]:
        """The first that can draft, unless the plan is a decode step."""
        if self._plan.rows == 1:
            return [None] * len(sequences)
        able = [[n for n, state in enumerate(states) if state is not None] for states in sequences]
        return [next(iter(drafters), None) for drafters in able]

    def may_draft(self, sequence: Sequence[DraftState | None]) -> bool:
        return self.choose_drafters([sequence]) != [None]

    def wants_confidence(self) -> bool:
        return False

    def choose_plans(self, drafts: Sequence[DraftState], other_rows: int = 0) -> list[Plan]:
        return [self._plan] * len(drafts)

    def update(self, results: Sequence[StepResult], seconds: float | None) -> None:
        """Count; a tree's positions are not known here."""
        for result in results:
            self._counts[result.plan] += 1
            if not result.plan.tree:
                self._acceptance.update(None, result.own, result.kept, ended=result.ended)

    @property
    def state(self) -> PolicyState:
        reason = f": {self._reason}" if self._reason else ""
        return PolicyState(
            "fixed",
            f"always {describe_plan(self._plan)}{reason}",
            plans=tuple(self._counts.most_common()),
            acceptance=self._acceptance.by_position,
        )
