"""What one round offers to the target: a chain of drafts, or a tree of them.

Both are proposed, verified and judged by the same steps. Knows the steps; does not know when a
round begins, or what to propose.
"""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from .acceptance import Match, Verdict
from .context import Context
from .slots import Draft, Top
from .tree import Tree, best_first
from .types import Plan


class Proposal(Protocol):
    """Drafts after one anchor; `drafted` of them, for `depth` slots."""

    @property
    def drafted(self) -> int: ...

    @property
    def depth(self) -> int: ...

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

    @property
    def drafted(self) -> int:
        """How many drafts are offered."""
        return self.draft.tokens.size

    @property
    def depth(self) -> int:
        """For how many slots they are."""
        return self.drafted

    def verify(self, context: Context, anchor: int) -> tuple[mx.array, mx.array]:
        """A pass in which each row follows the one before."""
        return context.verify(anchor, self.draft.tokens)

    def judge(self, rule: Match, logits: mx.array, history: list[int]) -> Verdict:
        """By the rule; with nothing to judge the target's choice is the bonus token."""
        if not self.drafted:
            return Verdict((), rule.first(logits, history))
        return rule.judge(self.draft, logits, history)


class Branches:
    """The likeliest drafts as a tree, which is built when the target is about to be asked."""

    def __init__(self, top: Top, plan: Plan):
        self._top, self._plan = top, plan
        self.tree: Tree | None = None

    @property
    def drafted(self) -> int:
        """How many nodes are offered."""
        return 0 if self.tree is None else len(self.tree.tokens)

    @property
    def depth(self) -> int:
        """For how many slots they are."""
        return max(self.tree.depths, default=0) if self.tree else 0

    def verify(self, context: Context, anchor: int) -> tuple[mx.array, mx.array]:
        """A pass in which each row follows its parent."""
        candidates, plan = self._top.to_host(), self._plan
        self.tree = best_first(candidates, plan.rows - 1, chain_seed=plan.chain_seed)
        drafts = mx.array(self.tree.tokens, dtype=mx.int32)
        return context.verify(anchor, drafts, self.tree if self.tree.tokens else None)

    def judge(self, rule: Match, logits: mx.array, history: list[int]) -> Verdict:
        """By a walk."""
        assert self.tree is not None
        if not self.tree.tokens:
            return Verdict((), rule.first(logits, history))
        return rule.walk(self.tree, logits, history)


def propose(context: Context, rule: Match, anchor: int, width: int, plan: Plan) -> Proposal:
    """Start computing what a plan asks for, from a drafted block of `width` tokens."""
    if plan.rows == 1:
        return Chain(Draft(mx.zeros((0,), dtype=mx.int32)))
    assert context.draft_cache is not None
    slots = context.draft_cache.slots(anchor, width)
    if plan.tree:
        top = slots.top(plan.rows - 1)
        mx.async_eval(top.tokens, top.scores, top.totals)
        return Branches(top, plan)
    draft = rule.propose(slots, context.history(anchor)).first(plan.rows - 1)
    mx.async_eval(draft.tokens)
    return Chain(draft)
