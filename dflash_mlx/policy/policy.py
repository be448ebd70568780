"""What decides about rounds has to answer, and the policy that always decides the same.

A round of all running sequences goes: `copies` (of each that repeats itself: are copied drafts
better than the drafter's?), `drafts` (which of the others draft a block?), `reads` (is the
drafters' confidence wanted?), `choose` (how many rows are verified?), and when the round is done
`learn`. Decides and counts only: knows no models, clocks or caches.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dflash_mlx.types import Plan

from .belief import Belief, Confidence
from .costs import words


@dataclass(frozen=True, slots=True)
class Text:
    """What the policy sees of one sequence in a round; `room` tokens can still be committed.

    `copied`: its drafts are copies of earlier text, which cost nothing to draft.
    """

    belief: Belief
    room: int
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one sequence's round.

    `verified` drafts were in the pass and `accepted` of them kept; `committed` tokens at most
    `accepted` say that the answer ended within them. `drafted`: a block was drafted, also where
    none of it was verified. `judged`: so many of the first tell of the drafter, None is all; about
    the others a grammar decided.
    """

    belief: Belief
    plan: Plan
    verified: int
    accepted: int
    committed: int
    drafted: bool
    judged: int | None = None

    @property
    def own(self) -> int:
        """Of the verified drafts those that tell of the drafter."""
        return self.verified if self.judged is None else self.judged

    @property
    def kept(self) -> int:
        """How many of these were accepted."""
        return min(self.accepted, self.own)


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What was chosen so far, and why.

    `plans`: how often each was chosen, most often first. `acceptance`: share of the drafts in
    position 1, 2, ... of chains that were kept with all before them kept. `drafting`: whether the
    last round drafted because that pays; `tries`: how often that was tried where it did not.
    """

    name: str
    reason: str
    plans: tuple[tuple[Plan, int], ...] = ()
    acceptance: tuple[float, ...] = ()
    drafting: bool = True
    tries: int = 0


class Policy(Protocol):
    """How the plans of a round are found."""

    def new_belief(self, *, copied: bool = False) -> Belief:
        """What a new sequence begins with: what was learned in the long run, of such drafts."""
        ...

    def copies(self, copied: Text, said: Confidence, drafted: Text | None) -> bool:
        """Whether copied drafts are better than plain steps, and than `drafted`, if that can be."""
        ...

    def drafts(self, texts: Sequence[Text], rows: int = 0) -> list[bool]:
        """Which of these sequences draft a block in this round.

        `rows`: what other sequences have in the pass anyway.
        """
        ...

    def reads(self, count: int) -> bool:
        """Whether `choose` wants the confidence of `count` blocks; the host waits for that."""
        ...

    def rests(self, texts: Sequence[Text]) -> bool:
        """Whether no sequence drafts now nor in the next round."""
        ...

    def choose(
        self, texts: Sequence[Text], confidences: Sequence[Confidence | None], rows: int = 0
    ) -> list[Plan]:
        """What is verified of each drafted block; `rows` as in `drafts`, plain steps included."""
        ...

    def learn(self, rounds: Sequence[Outcome], seconds: float | None) -> None:
        """What came of a round; its `seconds`, None where they are not known."""
        ...

    @property
    def state(self) -> PolicyState:
        """What was chosen so far."""
        ...


class Fixed:
    """Always the same plan: the modes dflash, ddtree and baseline."""

    def __init__(self, plan: Plan, reason: str = ""):
        """`reason`: why, where nobody asked for just this plan."""
        self._plan = plan
        self._reason = reason
        self._counts: Counter[Plan] = Counter()
        self._acceptance = Belief()

    def new_belief(self, *, copied: bool = False) -> Belief:
        """Nothing is learned by text."""
        return self._acceptance

    def copies(self, copied: Text, said: Confidence, drafted: Text | None) -> bool:
        """Where there is no drafter."""
        return drafted is None

    def drafts(self, texts: Sequence[Text], rows: int = 0) -> list[bool]:
        """All, unless the plan is a plain step."""
        return [self._plan.rows > 1] * len(texts)

    def reads(self, count: int) -> bool:
        """No."""
        return False

    def rests(self, texts: Sequence[Text]) -> bool:
        """Where the plan is a plain step."""
        return self._plan.rows == 1

    def choose(
        self, texts: Sequence[Text], confidences: Sequence[Confidence | None], rows: int = 0
    ) -> list[Plan]:
        """The plan, for each."""
        return [self._plan] * len(texts)

    def learn(self, rounds: Sequence[Outcome], seconds: float | None) -> None:
        """Count; how deep a tree was is not known here."""
        for done in rounds:
            self._counts[done.plan] += 1
            if not done.plan.tree:
                cut = done.committed <= done.accepted
                self._acceptance.learn(None, done.own, done.kept, cut=cut)

    @property
    def state(self) -> PolicyState:
        """The counts."""
        return PolicyState(
            "fixed",
            f"always {words(self._plan)}" + (f": {self._reason}" if self._reason else ""),
            plans=tuple(self._counts.most_common()),
            acceptance=self._acceptance.acceptance,
            drafting=self._plan.rows > 1,
        )
