"""A drafter's block, and the drafts that are taken from it.

A DFlash v1 drafter gives every position a distribution of its own. A DFlash 2 drafter gives each
position a few candidates and scores them by the token before, so its drafts are a walk from the
anchor. Both give greedy drafts, sampled drafts with their distributions, and the candidates of a
tree.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from dflash_mlx.kernels import selector_walk
from dflash_mlx.kernels.dispatch import Kernels

from .sampling import Draw, drawn, top_ids
from .tree import Candidates, Rankings, Tree


@dataclass(frozen=True, slots=True)
class Draft:
    """The drafts that a pass verifies after an anchor: tokens [γ], a chain or nodes of a `tree`.

    Without tokens the round is a decode step. probabilities: the distributions of a sampled chain,
    [γ, V]; or [γ, k] over the `candidates` [γ, k], and 0 for others. judged: how many of the
    first drafts are the drafter's own, so that their acceptance counts for it; None for all.
    """

    tokens: mx.array
    probabilities: mx.array | None = None
    candidates: mx.array | None = None
    tree: Tree | None = None
    judged: int | None = None

    @property
    def drafted(self) -> int:
        """γ, the number of drafts."""
        return self.tokens.size

    @property
    def depth(self) -> int:
        """How many positions of the block have drafts; a tree may have several drafts for one."""
        return self.drafted if self.tree is None else max(self.tree.depths, default=0)

    @staticmethod
    def none() -> "Draft":
        return Draft(mx.zeros((0,), dtype=mx.int32))

    @staticmethod
    def of_tree(tree: Tree) -> "Draft":
        return Draft(mx.array(tree.tokens, dtype=mx.int32), tree=tree if tree.tokens else None)

    def first(self, count: int) -> "Draft":
        q = self.probabilities
        ids = self.candidates
        return Draft(
            self.tokens[:count],
            None if q is None else q[:count],
            None if ids is None else ids[:count],
        )

    def with_forced(self, tokens: list[int], is_forced: list[bool], judged: int) -> "Draft":
        """This sampled chain with `tokens`, some of them forced: their probability is 1.

        The others are the chain's own, at the same places. All after the chain's end are forced.
        """
        assert self.probabilities is not None
        if not tokens:
            return Draft.none()
        ids = mx.array(tokens, dtype=mx.int32)
        forced = mx.array(is_forced)[:, None]
        rows = mx.minimum(mx.arange(len(tokens)), self.drafted - 1)
        q = self.probabilities[rows]
        steps = mx.arange(self.probabilities.shape[-1])
        if self.candidates is None:
            q = mx.where(forced, (steps == ids[:, None]).astype(q.dtype), q)
            return Draft(ids, q, judged=judged)
        # A forced token is its own first candidate; the others are any k - 1 different tokens.
        offsets = mx.where(ids >= steps.size, -1, 1)[:, None] * steps
        own = self.candidates[rows].astype(mx.int32)
        candidates = mx.where(forced, ids[:, None] + offsets, own)
        q = mx.where(forced, (steps == 0).astype(q.dtype), q)
        return Draft(ids, q, candidates, judged=judged)


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The likeliest tokens of every position, from which the host makes `Candidates`.

    tokens: [γ, k] ids, ascending. scores: [γ, c, k] and totals: [γ, c], both float32.
    """

    tokens: mx.array
    scores: mx.array
    totals: mx.array

    def begin(self) -> None:
        mx.async_eval(self.tokens, self.scores, self.totals)

    def to_host(self) -> Candidates:
        return Candidates(np.array(self.tokens), np.array(self.scores), np.array(self.totals))


class PendingRankings(Protocol):
    def begin(self) -> None:
        """Begin to compute them; the host does not wait."""

    def to_host(self) -> Rankings:
        """Wait for them."""
        ...


class DraftBlock(Protocol):
    """One drafted block. Its methods are lazy: MLX computes only the results that are used."""

    def greedy(self, kernels: Kernels | None = None) -> Draft: ...

    def sample(self, draw: Draw) -> Draft: ...

    def top_tokens(self, count: int) -> PendingRankings:
        """At least the `count` likeliest tokens of each position, or all candidates."""
        ...


@dataclass(frozen=True, slots=True)
class Independent:
    """A block of logits [γ, V], in which no position depends on another's draft."""

    logits: mx.array

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        return Draft(mx.argmax(self.logits, axis=-1))

    def sample(self, draw: Draw) -> Draft:
        """Sampled from each position's distribution, shaped as the target's."""
        nothing = mx.zeros((0,), dtype=mx.int32)
        rows = draw.shaper.shape(draw.shaper.penalise(self.logits, draw.history, nothing))
        chances = mx.softmax(rows, axis=-1)
        uniforms = mx.random.uniform(shape=(len(rows),), key=draw.key)
        return Draft(drawn(chances, uniforms), chances)

    def top_tokens(self, count: int) -> TopTokens:
        """The likeliest tokens of each position, always with its argmax."""
        logits = self.logits.astype(mx.float32)
        best = top_ids(logits, min(count, logits.shape[-1]))
        scores = mx.take_along_axis(logits, best, axis=-1)
        return TopTokens(best, scores[:, None], mx.logsumexp(logits, axis=-1)[:, None])


@dataclass(frozen=True, slots=True)
class Lattice:
    """A DFlash 2 block: candidates of each position, scored after every candidate before them.

    candidates: [γ, k] token ids, ascending. scores: [γ, k, k] float32; [t, i, j] is the score of
    position t's candidate j after candidate i of position t - 1. At position 0, after the anchor,
    all k rows are the same. made_of: the arguments of the op `selector_walk`, which computes the
    greedy walk without the scores; None if there are none.
    """

    candidates: mx.array
    scores: mx.array
    made_of: tuple[Any, ...] | None = None

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        """The best candidate after each draft; of equals the smaller id."""
        if self.made_of is not None:
            return Draft((kernels or Kernels())(selector_walk.OP, *self.made_of))
        return Draft(self._tokens(selector_walk.walk(mx.argmax(self.scores, axis=-1))))

    def sample(self, draw: Draw) -> Draft:
        """Sampled from softmax(score / temperature) over the candidates after the draft before.

        Every row of the lattice draws at once, and the walk uses only the draws of its own rows.
        The distribution is that of drawing one position after another. Filters and penalties do
        not apply.
        """
        rows = self.scores * (1 / draw.shaper.params.temperature)
        path = selector_walk.walk(mx.random.categorical(rows, key=draw.key))
        chances = mx.softmax(self.passed(path, rows), axis=-1)
        return Draft(self._tokens(path), chances, self.candidates)

    def top_tokens(self, count: int) -> TopTokens:
        """All candidates, each after every candidate before it."""
        return TopTokens(self.candidates, self.scores, mx.logsumexp(self.scores, axis=-1))

    def passed(self, path: mx.array, rows: mx.array | None = None) -> mx.array:
        """The rows [γ, k] that a walk with the places [γ] passes; without `rows`, scores."""
        rows = self.scores if rows is None else rows
        before = mx.concatenate([mx.zeros_like(path[:1]), path[:-1]])
        return mx.take_along_axis(rows, before[:, None, None], axis=1)[:, 0]

    def _tokens(self, path: mx.array) -> mx.array:
        return mx.take_along_axis(self.candidates, path[:, None], axis=-1)[:, 0]
