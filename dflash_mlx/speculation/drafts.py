"""A drafter's block, and the drafts that are taken from it.

A DFlash v1 drafter gives every position a distribution of its own. A DFlash 2 drafter gives each
position a few candidates and scores them by the token before, so its drafts are a walk from the
anchor. Both give the likeliest drafts, drafts drawn at random with what each was drawn from, and
the candidates that a tree is built from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from dflash_mlx.kernels import selector_walk
from dflash_mlx.kernels.dispatch import Kernels, on_cpu

from .sampling import Shaper, top_ids
from .tree import Candidates, Rankings, Tree


@dataclass(frozen=True, slots=True)
class Draft:
    """What a verify checks after an anchor: tokens [γ], a chain or the nodes of a `tree`.

    Of a chain that was drawn at random, `probabilities` says from what: [γ, V]; or [γ, k], those of
    the `candidates` [γ, k], and 0 for other tokens. Without tokens the round is a plain step.
    `judged`: whether so many of the first are accepted tells of the drafter; None is all.
    """

    tokens: mx.array
    probabilities: mx.array | None = None
    candidates: mx.array | None = None
    tree: Tree | None = None
    judged: int | None = None

    @property
    def drafted(self) -> int:
        """γ, the drafts that the target checks."""
        return self.tokens.size

    @property
    def depth(self) -> int:
        """The positions of the block that they are for; a tree has several for one position."""
        return self.drafted if self.tree is None else max(self.tree.depths, default=0)

    @staticmethod
    def none() -> "Draft":
        """A plain step."""
        return Draft(mx.zeros((0,), dtype=mx.int32))

    @staticmethod
    def of_tree(tree: Tree) -> "Draft":
        """The nodes of a tree."""
        return Draft(mx.array(tree.tokens, dtype=mx.int32), tree=tree if tree.tokens else None)

    def first(self, count: int) -> "Draft":
        """At most the first `count` drafts."""
        q = self.probabilities
        ids = self.candidates
        return Draft(
            self.tokens[:count],
            None if q is None else q[:count],
            None if ids is None else ids[:count],
        )

    def with_forced(self, tokens: list[int], sure: list[bool], judged: int) -> "Draft":
        """These drafts of a chain that was drawn, some of them `sure`: drawn from nothing else.

        The others are its own, at their places; behind its end all are sure.
        """
        assert self.probabilities is not None
        if not tokens:
            return Draft.none()
        ids = mx.array(tokens, dtype=mx.int32)
        known = mx.array(sure)[:, None]
        rows = mx.minimum(mx.arange(len(tokens)), self.drafted - 1)
        q = self.probabilities[rows]
        steps = mx.arange(self.probabilities.shape[-1])
        if self.candidates is None:
            q = mx.where(known, (steps == ids[:, None]).astype(q.dtype), q)
            return Draft(ids, q, judged=judged)
        others = mx.where(ids >= steps.size, -1, 1)[:, None] * steps  # any, each another
        names = mx.where(known, ids[:, None] + others, self.candidates[rows].astype(mx.int32))
        q = mx.where(known, (steps == 0).astype(q.dtype), q)
        return Draft(ids, q, names, judged=judged)


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The likeliest tokens of every position: [γ, k] ids, ascending, and what `Candidates` wants.

    scores: [γ, c, k] and totals: [γ, c], both float32.
    """

    tokens: mx.array
    scores: mx.array
    totals: mx.array

    def begin(self) -> None:
        """Compute them; the host does not wait."""
        mx.async_eval(self.tokens, self.scores, self.totals)

    def to_host(self) -> Candidates:
        """Wait for them."""
        return Candidates(np.array(self.tokens), np.array(self.scores), np.array(self.totals))


class PendingRankings(Protocol):
    """What may follow an anchor, on its way to the host."""

    def begin(self) -> None:
        """Compute it; the host does not wait."""
        ...

    def to_host(self) -> Rankings:
        """Wait for it."""
        ...


class DraftBlock(Protocol):
    """What a drafter says of one block; nothing is computed that is not asked for."""

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        """The greedy drafts."""
        ...

    def sample(self, shaper: Shaper, key: mx.array, history: list[int]) -> Draft:
        """Drafts at the shaper's temperature, after the tokens of the history."""
        ...

    def confidence(self) -> Callable[[], np.ndarray]:
        """Begin to compute how likely each greedy draft is after those before it.

        What is returned waits for it: [γ], float32.
        """
        ...

    def top_tokens(self, count: int) -> PendingRankings:
        """At least the `count` likeliest tokens of each position, or all there are."""
        ...


@dataclass(frozen=True, slots=True)
class Independent:
    """Logits [γ, V]: no position sees the draft of another."""

    logits: mx.array

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        """Each position's argmax."""
        return Draft(mx.argmax(self.logits, axis=-1))

    def sample(self, shaper: Shaper, key: mx.array, history: list[int]) -> Draft:
        """Each position from its own distribution, shaped as the target's."""
        rows = shaper.penalise(self.logits, history, mx.zeros((0,), dtype=mx.int32))
        rows = shaper.shape(rows)
        return Draft(mx.random.categorical(rows, key=key), mx.softmax(rows, axis=-1))

    def confidence(self) -> Callable[[], np.ndarray]:
        """Each position's largest probability."""
        return largest(self.logits.astype(mx.float32))

    def top_tokens(self, count: int) -> TopTokens:
        """The likeliest of each position; its argmax is among them also where many are level."""
        logits = self.logits.astype(mx.float32)
        best = top_ids(logits, min(count, logits.shape[-1]))
        scores = mx.take_along_axis(logits, best, axis=-1)
        return TopTokens(best, scores[:, None], mx.logsumexp(logits, axis=-1)[:, None])


@dataclass(frozen=True, slots=True)
class Lattice:
    """A DFlash 2 block: candidates of each position, scored after every candidate before them.

    candidates: [γ, k] token ids, ascending. scores: [γ, k, k] float32; [t, i, j] is the score of
    position t's candidate j after candidate i of position t - 1. Before position 0 stands the
    anchor, and all its k rows are the same. made_of: what the scores were computed from, if the
    greedy walk may be computed from that too; nothing is computed that is not asked for.
    """

    candidates: mx.array
    scores: mx.array
    made_of: tuple[Any, ...] | None = None

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        """The best candidate after the one just taken; of equals the smaller id."""
        if self.made_of is not None:
            return Draft((kernels or Kernels())(selector_walk.OP, *self.made_of))
        return Draft(self._tokens(self._walk(mx.argmax(self.scores, axis=-1))))

    def sample(self, shaper: Shaper, key: mx.array, history: list[int]) -> Draft:
        """Each position from softmax(score / temperature) over its candidates after the last draft.

        Every row of the lattice draws, and the walk takes the draws that it passes: the same law as
        drawing one position after another. Neither filters nor penalties apply.
        """
        rows = self.scores * (1 / shaper.params.temperature)
        path = self._walk(mx.random.categorical(rows, key=key))
        chances = mx.softmax(self.passed(path, rows), axis=-1)
        return Draft(self._tokens(path), chances, self.candidates)

    def confidence(self) -> Callable[[], np.ndarray]:
        """The largest probability among the candidates, on the way of the greedy walk."""
        return largest(self.passed(self._walk(mx.argmax(self.scores, axis=-1))))

    def top_tokens(self, count: int) -> TopTokens:
        """All candidates, each after every candidate before it."""
        return TopTokens(self.candidates, self.scores, mx.logsumexp(self.scores, axis=-1))

    def passed(self, path: mx.array, rows: mx.array | None = None) -> mx.array:
        """The rows [γ, k] (of the scores) that a walk's places [γ] go through."""
        rows = self.scores if rows is None else rows
        before = mx.concatenate([mx.zeros_like(path[:1]), path[:-1]])
        return mx.take_along_axis(rows, before[:, None, None], axis=1)[:, 0]

    def _walk(self, choices: mx.array) -> mx.array:
        """Each row's choice [γ, k] -> the places [γ] of the candidates taken, from the anchor."""
        return selector_walk.walk(choices)

    def _tokens(self, path: mx.array) -> mx.array:
        return mx.take_along_axis(self.candidates, path[:, None], axis=-1)[:, 0]


def largest(rows: mx.array) -> Callable[[], np.ndarray]:
    """Begin to compute the largest probability of each row of float32 logits [γ, n] -> [γ].

    On the CPU NumPy does it in the end: its exponential is ten times as fast as MLX's there.
    """
    if on_cpu():
        mx.async_eval(rows)
        return lambda: host_largest(np.array(rows, copy=False))
    found = mx.exp(rows.max(axis=-1) - mx.logsumexp(rows, axis=-1))
    mx.async_eval(found)
    return lambda: np.array(found)


def host_largest(rows: np.ndarray) -> np.ndarray:
    """The largest probability of each row of logits [γ, n] -> [γ]; NaN for a broken row."""
    with np.errstate(invalid="ignore"):
        return 1 / np.exp(rows - rows.max(axis=-1, keepdims=True)).sum(axis=-1)
