"""Which drafts stay: the rules that keep the output exactly the target's.

A rule proposes drafts from what the drafter says of a block's slots and judges them against the
target's logits of the same block. Everything is built lazily; one small array per block reaches the
host. Does not know models or caches.

    Match              the likeliest draft; stays while it equals the target's own choice
    TokenRejection     sampled drafts; Leviathan et al., arXiv 2211.17192
    BlockVerification  sampled drafts, judged as a whole; Sun et al., arXiv 2403.10444
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from .errors import DFlashError, UsageError
from .sampling import Draws, Shaper
from .slots import Draft, Slots
from .tree import Tree
from .types import SamplingParams


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one block on the host: accepted drafts, then the target's bonus token.

    Of a tree, `path` are the accepted drafts' rows.
    """

    accepted: tuple[int, ...]
    bonus: int
    path: tuple[int, ...] | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """What is committed if nothing ends the answer."""
        return (*self.accepted, self.bonus)


class Match:
    """The target chooses at every row; drafts stay while they are what it chose.

    At temperature 0 its choice is the argmax; above, a sample, so draft d stays with probability
    p(d) and the output has the target's distribution.
    """

    def __init__(self, params: SamplingParams, vocab_size: int):
        self.params = params
        self.shaper = Shaper(params, vocab_size)
        self.draws = Draws(params.seed)

    def first(self, logits: mx.array, history: list[int]) -> int:
        """The token after the prompt, from the logits [1, V] of its last token."""
        rows = self.shaper.penalise(logits, history, mx.zeros((0,), dtype=mx.int32))
        return to_host(self.choose(rows), logits).bonus

    def propose(self, slots: Slots, history: list[int]) -> Draft:
        """The likeliest drafts."""
        return slots.likeliest()

    def choose(self, rows: mx.array) -> mx.array:
        """The target's own choice at each of its penalised rows [S, V] -> [S]."""
        if self.params.greedy:
            return mx.argmax(rows, axis=-1)
        return mx.random.categorical(self.shaper.shape(rows), key=self.draws.next())

    def judge(self, draft: Draft, logits: mx.array, history: list[int]) -> Verdict:
        """Compare the drafts [γ] with the target's logits [γ + 1, V]."""
        chosen = self.choose(self.shaper.penalise(logits, history, draft.tokens))
        kept = count_prefix(chosen[:-1] == draft.tokens)
        return to_host(chosen[kept][None], logits, draft.tokens, kept)

    def walk(self, tree: Tree, logits: mx.array, history: list[int]) -> Verdict:
        """Follow the target's own choices through a tree, from its logits [R, V] of all rows.

        Each row chooses once, and those on the way decide: what is committed was chosen by the
        target after just the tokens before it, which is plain sampling (spec 4.3).
        """
        chosen = self.choose(self.shaper.penalise_paths(logits, history, tree.paths()))
        broken = mx.isnan(logits.sum())[None]
        first, *choices = np.array(mx.concatenate([broken, chosen.astype(mx.int32)])).tolist()
        if first:
            raise not_numbers()
        path, bonus = tree.walk(choices)
        return Verdict(tuple(tree.tokens[row - 1] for row in path), bonus, path)


class TokenRejection(Match):
    """Accept draft d with probability min(1, p(d) / q(d)); else resample from (p - q)+."""

    def propose(self, slots: Slots, history: list[int]) -> Draft:
        """Draw each slot from the drafter's distribution."""
        return slots.drawn(self.shaper, self.draws.next(), history)

    def judge(self, draft: Draft, logits: mx.array, history: list[int]) -> Verdict:
        """Equation 1 of the paper at every row."""
        p, q = self._target(draft, logits, history), draft.probabilities
        assert q is not None
        ratio = at(p[:-1], draft.tokens) / at(q, draft.tokens)
        kept = count_prefix(mx.random.uniform(shape=ratio.shape, key=self.draws.next()) < ratio)
        return self._finish(draft, logits, p, q, kept, mx.array(1.0))

    def _target(self, draft: Draft, logits: mx.array, history: list[int]) -> mx.array:
        rows = self.shaper.penalise(logits, history, draft.tokens)
        return mx.softmax(self.shaper.shape(rows), axis=-1)

    def _finish(
        self,
        draft: Draft,
        logits: mx.array,
        p: mx.array,
        q: mx.array,
        kept: mx.array,
        weight: mx.array,
    ) -> Verdict:
        """Draw the bonus token from (weight p - q)+ after the kept drafts; q ends with a 0 row."""
        q = mx.concatenate([q, mx.zeros_like(q[:1])])
        residual = mx.maximum(weight * p[kept] - q[kept], 0)
        residual = mx.where(residual.sum() > 0, residual, p[kept])
        bonus = mx.random.categorical(mx.log(residual)[None], key=self.draws.next())
        return to_host(bonus, logits, draft.tokens, kept)


class BlockVerification(TokenRejection):
    """Judge prefixes by their joint ratio: never fewer accepted tokens than token by token."""

    def judge(self, draft: Draft, logits: mx.array, history: list[int]) -> Verdict:
        """Algorithm 2 of the paper, the running min(1, .) written as a reflected sum of logs."""
        p, q = self._target(draft, logits, history), draft.probabilities
        assert q is not None
        steps = mx.log(at(p[:-1], draft.tokens)) - mx.log(at(q, draft.tokens))
        total = mx.cumsum(mx.maximum(steps, -1e30))
        weights = mx.exp(total - mx.maximum(mx.cummax(total), 0))  # w_1 .. w_γ
        surplus = mx.maximum(weights[:-1, None] * p[1:-1] - q[1:], 0).sum(axis=-1)
        open_ = surplus + (1 - weights[:-1])
        chance = mx.where(open_ > 0, surplus / mx.where(open_ > 0, open_, 1), 1)
        chance = mx.concatenate([chance, weights[-1:]])
        passed = mx.random.uniform(shape=chance.shape, key=self.draws.next()) < chance
        slots = mx.arange(1, passed.shape[0] + 1)
        kept = mx.max(mx.where(passed, slots, 0))
        weight = mx.concatenate([mx.array([1.0]), weights])[kept]
        # With every draft kept the bonus is a plain sample: q is 0 there, any weight will do.
        weight = mx.where(kept == passed.shape[0], 1.0, weight)
        return self._finish(draft, logits, p, q, kept, weight)


RULES = {"match": Match, "token": TokenRejection, "block": BlockVerification}


def make_rule(name: str, params: SamplingParams, vocab_size: int) -> Match:
    """The named rule; at temperature 0 all are the same, the greedy prefix."""
    if name not in RULES:
        raise UsageError(
            f"there is no acceptance rule '{name}'.", hint=f"use one of {', '.join(RULES)}"
        )
    return (Match if params.greedy else RULES[name])(params, vocab_size)


def at(rows: mx.array, tokens: mx.array) -> mx.array:
    """rows [γ, V] at tokens [γ] -> [γ]."""
    return mx.take_along_axis(rows, tokens[:, None], axis=-1)[:, 0]


def count_prefix(flags: mx.array) -> mx.array:
    """How many flags hold before the first that does not: [γ] -> []."""
    return mx.cumprod(flags.astype(mx.int32)).sum()


def to_host(
    bonus: mx.array,
    logits: mx.array,
    drafts: mx.array | None = None,
    kept: mx.array | None = None,
) -> Verdict:
    """The block's one look at results; DFlashError when the logits are not numbers."""
    broken = mx.isnan(logits.sum()).astype(mx.int32)
    kept = mx.zeros((), dtype=mx.int32) if kept is None else kept
    parts = [broken[None], kept[None], bonus] + ([] if drafts is None else [drafts])
    values = np.array(mx.concatenate([part.astype(mx.int32) for part in parts])).tolist()
    if values[0]:
        raise not_numbers()
    return Verdict(tuple(values[3 : 3 + values[1]]), values[2])


def not_numbers() -> DFlashError:
    """The fault of a target whose logits are NaN."""
    return DFlashError(
        "the target's logits are not numbers (NaN).",
        hint="the weights are damaged or overflow in 16 bits: try another copy of the model",
    )
