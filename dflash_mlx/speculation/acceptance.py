"""The acceptance rules, which keep the output exactly the target's.

A rule takes drafts from a drafter's block, and accepts a prefix or a path of them by the target's
logits at the same rows. Everything is lazy; the host reads one small array per sequence.

    Match              greedy drafts; accepted while they equal the target's own choice
    TokenRejection     sampled drafts; Leviathan et al., arXiv 2211.17192
    BlockVerification  sampled drafts, judged jointly; Sun et al., arXiv 2403.10444
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.kernels import verify_accept, verify_accept_sample
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.options import AcceptanceRule, SamplingParams

from .drafts import Draft, DraftBlock
from .sampling import Draw, Keys, Shaper


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted drafts of one sequence, and the target's bonus token.

    path: the rows of the accepted drafts in a tree; None for a chain. rejected: the drafts that
    would have followed, in a tree the likeliest.
    """

    drafts: tuple[int, ...]
    bonus: int
    path: tuple[int, ...] | None = None
    rejected: tuple[int, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.drafts, self.bonus)


class Match:
    """The target chooses a token at every row; drafts are accepted while they equal its choices.

    At temperature 0 its choice is the argmax. Above, it is drawn with the key of the token's
    position. So draft d is accepted with probability p(d), the output has the target's
    distribution, and the tokens of a seed do not depend on the rounds. `draws`: whether a rule
    samples its drafts, and needs their distributions.
    """

    name: AcceptanceRule = "match"
    draws = False

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        kernels: Kernels | None = None,
        kept_ids: Sequence[int] = (),
    ):
        """kept_ids: tokens that XTC never leaves out."""
        self.params = params
        self.kernels = kernels or Kernels()
        self.shaper = Shaper(params, vocab_size, kept_ids)
        self.keys = Keys(secrets.randbits(63) if params.seed is None else params.seed)

    def draw(self, history: list[int]) -> Draw | None:
        """What the next drafts are drawn with; None for the likeliest."""
        return None

    def draft(self, block: DraftBlock, draw: Draw | None) -> Draft:
        """The drafts of a block: its likeliest, or those of a draw."""
        return block.greedy(self.kernels) if draw is None else block.sample(draw)

    def choose(self, rows: mx.array, places: Sequence[int]) -> mx.array:
        """Choices [S] at penalised rows [S, V]. `places`: the answer's token, from 0, of each."""
        if self.params.greedy:
            return mx.argmax(rows, axis=-1)
        if self.params.excludes_top:
            # Stock takes two keys for each token: for XTC, and for the token.
            chances = self.keys.uniforms([2 * place for place in places])
            uniforms = self.keys.uniforms([2 * place + 1 for place in places])
            return self.shaper.draw(rows, uniforms, chances)
        return self.shaper.draw(rows, self.keys.uniforms(places))

    def step(self, logits: mx.array, history: list[int], place: int) -> tuple[mx.array, mx.array]:
        """The choice [1] at a row [1, V] without drafts, and its outcome; lazy."""
        rows = self.shaper.penalise(logits, history, mx.zeros((0,), dtype=mx.int32))
        choice = self.choose(rows, [place])
        broken = mx.isnan(mx.max(rows))[None]
        return choice, mx.concatenate([broken.astype(mx.int32), choice.astype(mx.int32)])

    def outcome(self, draft: Draft, logits: mx.array, history: list[int], place: int) -> mx.array:
        """Compare drafts [γ] with the target's logits [γ + 1, V]: an int32 array for the host.

        `history` ends with the anchor. `place`: the number in the answer of the first token to
        commit, from 0.
        """
        if draft.tree is not None:
            rows = self.shaper.penalise_paths(logits, history, draft.tree.paths())
            places = [place, *(place + depth for depth in draft.tree.depths)]
            broken = mx.isnan(logits).any()[None].astype(mx.int32)
            return mx.concatenate([broken, self.choose(rows, places).astype(mx.int32)])
        if not draft.drafted:
            return self.step(logits, history, place)[1]
        rows = self.shaper.penalise(logits, history, draft.tokens)
        return self._chain_outcome(draft, rows, place)

    def _chain_outcome(self, draft: Draft, rows: mx.array, place: int) -> mx.array:
        if self.params.greedy:
            return self.kernels(verify_accept.OP, rows, draft.tokens)
        chosen = self.choose(rows, range(place, place + len(rows)))
        return verify_accept.of_choices(chosen, draft.tokens, mx.isnan(rows).any())

    def accept(self, draft: Draft, outcome: mx.array) -> Accepted:
        """Wait for an outcome: the accepted drafts. Raises DFlashError if logits are NaN.

        In a tree the target's choices are followed from the anchor (arXiv 2604.12989): each token
        was chosen after exactly the tokens before it, which is plain sampling.
        """
        broken, *values = np.array(outcome).tolist()
        if broken:
            raise DFlashError(
                "the target's logits are not numbers (NaN).",
                hint="the weights are damaged, or overflow in 16 bits: try another copy",
            )
        if draft.tree is not None:
            path, bonus = draft.tree.walk(values)
            drafts = tuple(draft.tree.tokens[row - 1] for row in path)
            rejected = draft.tree.likeliest_after(path[-1] if path else 0)
            return Accepted(drafts, bonus, path, rejected)
        if not draft.drafted:
            return Accepted((), values[0])
        kept, bonus, *drafts = values
        return Accepted(tuple(drafts[:kept]), bonus, rejected=tuple(drafts[kept:]))


class TokenRejection(Match):
    """Accept draft d with probability min(1, p(d) / q(d)); else resample from (p - q)+.

    The random numbers depend on the rounds: a seed gives the same tokens only if they draft alike.
    It cannot do XTC, which makes the target's distribution depend on chance.
    """

    name = "token"
    joint = False
    draws = True
    _used = 0  # keys

    def _key(self) -> mx.array:
        self._used += 1
        return self.keys[self._used - 1]

    def choose(self, rows: mx.array, places: Sequence[int]) -> mx.array:
        """A draw from each row, with the next keys. Of `places` only the number matters."""
        self._used += len(places)
        return self.shaper.draw(
            rows, self.keys.uniforms(range(self._used - len(places), self._used))
        )

    def draw(self, history: list[int]) -> Draw:
        return Draw(self.shaper, self._key(), history)

    def _chain_outcome(self, draft: Draft, rows: mx.array, place: int) -> mx.array:
        return self.kernels(
            verify_accept_sample.OP,
            self.shaper.shape(rows),
            draft.tokens,
            draft.probabilities,
            draft.candidates,
            random_bits(self._key(), draft.drafted + 1),
            self.joint,
        )


class BlockVerification(TokenRejection):
    """Accept a prefix by its joint ratio: on average no fewer drafts than token by token."""

    name = "block"
    joint = True


RULES = {rule.name: rule for rule in (Match, TokenRejection, BlockVerification)}


def make_rule(
    name: str,
    params: SamplingParams,
    vocab_size: int,
    kernels: Kernels | None = None,
    kept_ids: Sequence[int] = (),
) -> Match:
    """At temperature 0 always `Match`. kernels: None is MLX operations. Raises UsageError."""
    if name not in RULES:
        raise UsageError(
            f"there is no acceptance rule '{name}'.", hint=f"use one of {', '.join(RULES)}"
        )
    rule = Match if params.greedy else RULES[name]
    return rule(params, vocab_size, kernels, kept_ids)


def random_bits(key: mx.array, count: int) -> mx.array:
    """Uniform random words from a key, uint32 [count]: one from each key that it splits into."""
    return mx.random.split(key, count)[:, 0]
