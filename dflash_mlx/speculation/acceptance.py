"""Which drafts stay: the rules that keep the output exactly the target's.

A rule proposes drafts from what the drafter says of a block's slots and judges them against the
target's logits of the same block. Everything is built lazily; one small array per block reaches the
host. Does not know models or caches.

    Match              the likeliest draft; stays while it equals the target's own choice
    TokenRejection     sampled drafts; Leviathan et al., arXiv 2211.17192
    BlockVerification  sampled drafts, judged as a whole; Sun et al., arXiv 2403.10444
"""

from dataclasses import dataclass
from math import isnan
from typing import cast

import mlx.core as mx
import numpy as np

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.kernels import verify_accept, verify_accept_sample
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.types import SamplingParams

from .drafts import Draft, Slots
from .sampling import Draws, Shaper, words
from .tree import Tree


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

    def __init__(self, params: SamplingParams, vocab_size: int, kernels: Kernels | None = None):
        self.params = params
        self.kernels = kernels or Kernels()
        self.shaper = Shaper(params, vocab_size)
        self.draws = Draws(params.seed)

    def first(self, logits: mx.array, history: list[int]) -> int:
        """The token after the prompt, from the logits [1, V] of its last token."""
        return chosen(*self.step(logits, history))

    def step(self, logits: mx.array, history: list[int]) -> tuple[mx.array, mx.array]:
        """The choice [1] at a row [1, V] without drafts, and the row's largest value.

        That is NaN if anything in the row is. Nothing waits for them.
        """
        rows = self.shaper.penalise(logits, history, mx.zeros((0,), dtype=mx.int32))
        return self.choose(rows), mx.max(rows)

    def propose(self, slots: Slots, history: list[int]) -> Draft:
        """The likeliest drafts."""
        return slots.likeliest(self.kernels)

    def choose(self, rows: mx.array) -> mx.array:
        """The target's own choice at each of its penalised rows [S, V] -> [S]."""
        if self.params.greedy:
            return mx.argmax(rows, axis=-1)
        return mx.random.categorical(self.shaper.shape(rows), key=self.draws.next())

    def judge(self, draft: Draft, logits: mx.array, history: list[int]) -> Verdict:
        """Compare the drafts [γ] with the target's logits [γ + 1, V]."""
        rows = self.shaper.penalise(logits, history, draft.tokens)
        return to_host(self._outcome(rows, draft.tokens))

    def _outcome(self, rows: mx.array, drafts: mx.array) -> mx.array:
        if self.params.greedy:
            return self.kernels(verify_accept.OP, rows, drafts)
        return verify_accept.of_choices(self.choose(rows), drafts, mx.isnan(rows).any())

    def walk(self, tree: Tree, logits: mx.array, history: list[int]) -> Verdict:
        """Follow the target's own choices through a tree, from its logits [R, V] of all rows.

        Each row chooses once, and those on the way decide: what is committed was chosen by the
        target after just the tokens before it, which is plain sampling (spec 4.3).
        """
        chosen = self.choose(self.shaper.penalise_paths(logits, history, tree.paths()))
        broken = mx.isnan(logits).any()[None]
        first, *choices = np.array(mx.concatenate([broken, chosen.astype(mx.int32)])).tolist()
        if first:
            raise not_numbers()
        path, bonus = tree.walk(choices)
        return Verdict(tuple(tree.tokens[row - 1] for row in path), bonus, path)


class TokenRejection(Match):
    """Accept draft d with probability min(1, p(d) / q(d)); else resample from (p - q)+."""

    joint = False

    def propose(self, slots: Slots, history: list[int]) -> Draft:
        """Draw each slot from the drafter's distribution."""
        return slots.drawn(self.shaper, self.draws.next(), history)

    def judge(self, draft: Draft, logits: mx.array, history: list[int]) -> Verdict:
        """Hold the target's distributions against those the drafts were drawn from."""
        rows = self.shaper.penalise(logits, history, draft.tokens)
        return to_host(
            self.kernels(
                verify_accept_sample.OP,
                self.shaper.shape(rows),
                draft.tokens,
                draft.probabilities,
                draft.candidates,
                words(self.draws.next(), draft.tokens.size + 1),
                self.joint,
            )
        )


class BlockVerification(TokenRejection):
    """Judge prefixes by their joint ratio: never fewer accepted tokens than token by token."""

    joint = True


RULES = {"match": Match, "token": TokenRejection, "block": BlockVerification}


def make_rule(
    name: str, params: SamplingParams, vocab_size: int, kernels: Kernels | None = None
) -> Match:
    """The named rule; at temperature 0 all are the same, the greedy prefix.

    Without `kernels` everything is computed by MLX operations.
    """
    if name not in RULES:
        raise UsageError(
            f"there is no acceptance rule '{name}'.", hint=f"use one of {', '.join(RULES)}"
        )
    return (Match if params.greedy else RULES[name])(params, vocab_size, kernels)


def to_host(outcome: mx.array) -> Verdict:
    """The block's one look at results; DFlashError when the logits are not numbers."""
    broken, kept, bonus, *drafts = np.array(outcome).tolist()
    if broken:
        raise not_numbers()
    return Verdict(tuple(drafts[:kept]), bonus)


def chosen(choice: mx.array, largest: mx.array) -> int:
    """The token of a `step`; DFlashError when its logits are not numbers."""
    if isnan(cast(float, largest.item())):
        raise not_numbers()
    return cast(int, choice.item())


def not_numbers() -> DFlashError:
    """The fault of a target whose logits are NaN."""
    return DFlashError(
        "the target's logits are not numbers (NaN).",
        hint="the weights are damaged or overflow in 16 bits: try another copy of the model",
    )
