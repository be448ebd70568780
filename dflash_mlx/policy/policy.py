"""Policies decide how many drafts each sequence verifies: the protocol, and the fixed policy.

In each round the scheduler calls `choose_drafters`, `choose_plans`, and `update` when the round is
done. A policy has no models and no KV caches, and reads no clock.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dflash_mlx.types import Plan

from .acceptance import Acceptance, Confidence
from .costs import Batch


class Choice(NamedTuple):
    """Which drafter drafts, by its number, and how many rows, the anchor's included."""

    drafter: int
    width: int


def describe_plan(plan: Plan) -> str:
    if plan.rows == 1:
        return "plain decoding"
    drafts = "1 draft" if plan.rows == 2 else f"{plan.rows - 1} drafts"
    if plan.tree:
        return f"a tree of {drafts}"
    return drafts if plan.drafted <= plan.rows else f"{plan.rows - 1} of {plan.drafted - 1} drafts"


@dataclass(frozen=True, slots=True)
class DraftState:
    """The drafts of one drafter for one sequence, before or after they are made.

    `room`: tokens that the sequence may still commit. `confidence`: None if it is not known.
    `free`: drafting takes no time on the device, and the confidence is known without drafting.
    `block`: rows of a whole block. `choice`: what was drafted; None before.
    """

    acceptance: Acceptance
    room: int
    confidence: Confidence | None = None
    free: bool = False
    block: int = 0
    choice: Choice | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one sequence's part in a round.

    `verified`: drafts in the pass. `accepted`: those that the rule accepted. `committed`: tokens;
    no more than `accepted` if the answer ended with a draft. `choice`: what was drafted, and
    `acceptance` the drafter's record; both None in a decode step. `free`: as in `DraftState`.
    `judged`: how many of the first drafts are the drafter's own, not a grammar's; None for all.
    """

    acceptance: Acceptance | None
    plan: Plan
    verified: int
    accepted: int
    committed: int
    choice: Choice | None = None
    free: bool = False
    confidence: Confidence | None = None
    judged: int | None = None

    @property
    def own(self) -> int:
        return self.verified if self.judged is None else self.judged

    @property
    def kept(self) -> int:
        return min(self.accepted, self.own)

    @property
    def ended(self) -> bool:
        """Whether the answer ended with an accepted draft, so that the next one is not judged."""
        return self.committed <= self.accepted


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What was chosen so far, and why.

    `plans`: how often each was chosen, most often first. `acceptance`: the probability that a draft
    in position 1, 2, ... of a chain is accepted with all before it.
    """

    name: str
    reason: str
    plans: tuple[tuple[Plan, int], ...] = ()
    acceptance: tuple[float, ...] = ()


class Policy(Protocol):
    def new_sequence(self, drafters: int) -> list[Acceptance]: ...

    def choose_drafters(
        self, sequences: Sequence[Sequence[DraftState | None]], batch: Batch
    ) -> list[Choice | None]:
        """Which drafter drafts for each sequence, and how wide a block; None for a decode step.

        Each sequence has a state for every drafter, or None if that one cannot draft now. `batch`:
        these and the other sequences of the round.
        """
        ...

    def may_draft(self, sequence: Sequence[DraftState | None]) -> bool:
        """Whether a sequence may draft in the next round, as far as is known in this one."""
        ...

    def choose_plans(self, drafts: Sequence[DraftState], other_rows: int = 0) -> list[Plan]: ...

    def update(self, results: Sequence[StepResult], seconds: float | None) -> None:
        """Learn from a round. `seconds`: None if they are not those of one pass and its drafts."""

    @property
    def state(self) -> PolicyState: ...


class FixedPolicy:
    """The policy of the modes dflash, ddtree and baseline: always the same plan."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._counts: Counter[Plan] = Counter()
        self._acceptance = Acceptance()

    def new_sequence(self, drafters: int) -> list[Acceptance]:
        return [self._acceptance] * drafters  # it changes no plan

    def choose_drafters(
        self, sequences: Sequence[Sequence[DraftState | None]], batch: Batch
    ) -> list[Choice | None]:
        """The first drafter that can draft, unless the plan is a decode step."""
        return [self._choose(states) for states in sequences]

    def _choose(self, states: Sequence[DraftState | None]) -> Choice | None:
        if self._plan.rows == 1:
            return None
        able = ((n, state) for n, state in enumerate(states) if state is not None)
        return next((Choice(n, self._plan.drafted or state.block) for n, state in able), None)

    def may_draft(self, sequence: Sequence[DraftState | None]) -> bool:
        return self._choose(sequence) is not None

    def choose_plans(self, drafts: Sequence[DraftState], other_rows: int = 0) -> list[Plan]:
        return [self._plan] * len(drafts)

    def update(self, results: Sequence[StepResult], seconds: float | None) -> None:
        """Count plans and accepted drafts. A tree's positions are not known here."""
        for result in results:
            self._counts[result.plan] += 1
            if not result.plan.tree:
                self._acceptance.update(None, result.own, result.kept, ended=result.ended)

    @property
    def state(self) -> PolicyState:
        return PolicyState(
            "fixed",
            f"always {describe_plan(self._plan)}",
            plans=tuple(self._counts.most_common()),
            acceptance=self._acceptance.by_position,
        )
