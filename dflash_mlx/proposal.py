"""What one round offers to the target: a chain of drafts, or a tree of them.

Both are proposed, verified and judged by the same steps, and a policy says which it is. Knows the
steps; does not know when a round begins, or how a policy decides.
"""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np

from .context import Context
from .policy.calibration import Confidence
from .policy.policy import Policy
from .speculation.acceptance import Match, Verdict, chosen
from .speculation.drafts import Draft, Slots, Top
from .speculation.tree import Tree, best_first
from .types import Plan

PLAIN = Plan(1)


class Proposal(Protocol):
    """Drafts after one anchor; `drafted` of them, for `depth` slots, as the `plan` has it."""

    @property
    def plan(self) -> Plan: ...

    @property
    def drafted(self) -> int: ...

    @property
    def depth(self) -> int: ...

    def begin(self) -> None:
        """Start computing what `verify` needs; the host does not wait."""
        ...

    def verify(self, context: Context, anchor: int) -> tuple[mx.array, mx.array]:
        """One target pass over the anchor and the drafts: logits [R, V] and taps [1, R, K * Ht]."""
        ...

    def judge(self, rule: Match, logits: mx.array, history: list[int]) -> Verdict:
        """Which drafts stay, and the bonus token."""
        ...


@dataclass(frozen=True, slots=True)
class Chain:
    """Drafts one after another, or none: then the round is a plain step."""

    draft: Draft
    plan: Plan

    @property
    def drafted(self) -> int:
        """How many drafts are offered."""
        return self.draft.tokens.size

    @property
    def depth(self) -> int:
        """For how many slots they are."""
        return self.drafted

    def begin(self) -> None:
        """The drafts."""
        mx.async_eval(self.draft.tokens)

    def verify(self, context: Context, anchor: int) -> tuple[mx.array, mx.array]:
        """A pass in which each row follows the one before."""
        return context.verify(anchor, self.draft.tokens)

    def judge(self, rule: Match, logits: mx.array, history: list[int]) -> Verdict:
        """By the rule; with nothing to judge the target's choice is the bonus token."""
        if not self.drafted:
            return Verdict((), rule.first(logits, history))
        return rule.judge(self.draft, logits, history)


class Step:
    """A plain step; the next one is begun before its token is read, if that `goes_on`."""

    plan, drafted, depth = PLAIN, 0, 0

    def __init__(self, context: Context, anchor: int, *, goes_on: bool):
        self._context, self._anchor, self._goes_on = context, anchor, goes_on

    def begin(self) -> None:
        """The pass, if the step before has not begun it."""
        self._context.begin(mx.array([self._anchor]))

    def verify(self, context: Context, anchor: int) -> tuple[mx.array, mx.array]:
        """A pass over the anchor."""
        return context.step(anchor)

    def judge(self, rule: Match, logits: mx.array, history: list[int]) -> Verdict:
        """The target's choice."""
        choice, largest = rule.step(logits, history)
        mx.async_eval(choice, largest)  # by itself, or it would be known only with the next pass
        if self._goes_on:
            self._context.begin(choice)
        return Verdict((), chosen(choice, largest))


class Branches:
    """The likeliest drafts as a tree, which is built when the target is about to be asked."""

    def __init__(self, top: Top | Tree, plan: Plan, stops: frozenset[int] = frozenset()):
        """From the likeliest tokens of each slot, or a tree that is there already."""
        self.plan = plan
        self._stops = stops
        self._top = top if isinstance(top, Top) else None
        self.tree = top if isinstance(top, Tree) else None

    @property
    def drafted(self) -> int:
        """How many nodes are offered."""
        return 0 if self.tree is None else len(self.tree.tokens)

    @property
    def depth(self) -> int:
        """For how many slots they are."""
        return max(self.tree.depths, default=0) if self.tree else 0

    def begin(self) -> None:
        """The likeliest tokens."""
        if self._top is not None:
            mx.async_eval(self._top.tokens, self._top.scores, self._top.totals)

    def verify(self, context: Context, anchor: int) -> tuple[mx.array, mx.array]:
        """A pass in which each row follows its parent."""
        if self._top is not None:
            nodes, seed = self.plan.rows - 1, self.plan.chain_seed
            top, stops = self._top.to_host(), self._stops
            self.tree = best_first(top, nodes, chain_seed=seed, stops=stops)
        assert self.tree is not None
        drafts = mx.array(self.tree.tokens, dtype=mx.int32)
        return context.verify(anchor, drafts, self.tree if self.tree.tokens else None)

    def judge(self, rule: Match, logits: mx.array, history: list[int]) -> Verdict:
        """By a walk."""
        assert self.tree is not None
        if not self.tree.tokens:
            return Verdict((), rule.first(logits, history))
        return rule.walk(self.tree, logits, history)


class Undecided:
    """A drafted block that the policy looks at when the target is about to be asked."""

    def __init__(
        self, slots: Slots, draft: Draft, policy: Policy, room: int, stops: frozenset[int]
    ):
        self._slots, self._draft, self._policy, self._room = slots, draft, policy, room
        self._stops = stops
        self._found: Proposal | None = None

    def begin(self) -> None:
        """The drafts, and how sure they are."""
        self._sure = self._slots.sureness()
        mx.async_eval(self._draft.tokens)

    @property
    def _choice(self) -> Proposal:
        assert self._found is not None
        return self._found

    @property
    def plan(self) -> Plan:
        """What the policy chose."""
        return self._choice.plan

    @property
    def drafted(self) -> int:
        """How many drafts are offered."""
        return self._choice.drafted

    @property
    def depth(self) -> int:
        """For how many slots they are."""
        return self._choice.depth

    def verify(self, context: Context, anchor: int) -> tuple[mx.array, mx.array]:
        """A pass over what the policy chooses."""
        trees: list[Tree] = []

        def grow() -> Tree:
            nodes = self._policy.most_nodes
            trees.append(best_first(self._slots.top(nodes).to_host(), nodes, stops=self._stops))
            return trees[0]

        plan = self._policy.plan(Confidence(self._confidence(), grow), self._room)
        if plan.tree:
            self._found = Branches(trees[0].first(plan.rows - 1), plan)
        else:
            self._found = Chain(self._draft.first(plan.rows - 1), plan)
        return self._found.verify(context, anchor)

    def _confidence(self) -> tuple[float, ...]:
        """How sure the drafter is of each draft; 0 behind one that ends the answer, and for NaN.

        Of drawn drafts nothing is looked at: whether one is verified must not depend on what it is,
        or the output would not have the target's distribution.
        """
        sure = np.nan_to_num(self._sure(), nan=0.0)
        if self._draft.probabilities is not None:
            return tuple(sure.tolist())
        ends = np.isin(np.array(self._draft.tokens), list(self._stops))
        sure[1:][np.cumsum(ends[:-1]) > 0] = 0.0
        return tuple(sure.tolist())

    def judge(self, rule: Match, logits: mx.array, history: list[int]) -> Verdict:
        """As what was chosen is judged."""
        return self._choice.judge(rule, logits, history)


def propose(
    context: Context,
    rule: Match,
    anchor: int,
    width: int,
    policy: Policy,
    room: int,
    stops: frozenset[int] = frozenset(),
) -> Proposal:
    """What a policy asks for, from a drafted block of `width` tokens; nothing is computed yet.

    At most `room` tokens can still be committed, and none behind one of `stops`.
    """
    if not policy.drafts(room):
        # Penalties look at tokens that the host has not read yet.
        return Step(
            context, anchor, goes_on=policy.rests and room > 1 and not rule.params.penalised
        )
    assert context.draft_cache is not None
    slots = context.draft_cache.slots(anchor, width)
    if policy.looks():
        return Undecided(slots, rule.propose(slots, context.history(anchor)), policy, room, stops)
    plan = policy.plan(None, room)
    if plan.tree:
        return Branches(slots.top(plan.rows - 1), plan, stops)
    return Chain(rule.propose(slots, context.history(anchor)).first(plan.rows - 1), plan)
