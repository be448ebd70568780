"""Drafts that a model makes one token after another, each pass for all sequences of a round."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import mlx.core as mx

from dflash_mlx.drafters.base import Drafter
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.speculation.drafts import Draft, DraftBlock, Independent, PendingRankings
from dflash_mlx.speculation.sampling import Draw, drawn

Choose = Callable[[mx.array], mx.array]  # logits [B, Vd] of one position -> the drafts [B]


class ChainSource(Protocol):
    """What makes drafts one after another; it may have a vocabulary of its own."""

    def chains(
        self, caches: Sequence[Any], anchors: Sequence[int], count: int, choose: Choose
    ) -> tuple[mx.array, mx.array]:
        """Draft `count` tokens after each anchor, those of one position at once.

        Returns the drafts [γ, B], those of a position by `choose`, and their logits [γ, B, Vd].
        """
        ...

    def ids(self, tokens: mx.array) -> mx.array:
        """The target's ids of tokens of the own vocabulary, any shape."""
        return tokens

    def spread(self, logits: mx.array) -> mx.array:
        """Logits [..., Vd] in the target's vocabulary [..., V]."""
        return logits


class ChainDrafter(Drafter, ChainSource):
    """A drafter whose model reads each draft before it makes the next."""

    def draft(
        self,
        caches: Sequence[Any],
        anchors: Sequence[int],
        width: int,
        draws: Sequence[Draw | None] = (),
    ) -> list[DraftBlock]:
        chains = Chains(self, caches, anchors, width - 1, draws)
        return [self.block(chains, number) for number in range(len(caches))]

    def block(self, chains: "Chains", number: int) -> DraftBlock:
        return ChainBlock(chains, number)


class Chains:
    """The drafts after the anchors of several sequences, made together when one is wanted.

    draws: what each sequence's drafts are drawn with; None for the likeliest, as if there are none.
    """

    def __init__(
        self,
        source: ChainSource,
        caches: Sequence[Any],
        anchors: Sequence[int],
        positions: int,
        draws: Sequence[Draw | None] = (),
    ):
        self.source = source
        self.caches = caches
        self.anchors = anchors
        self.positions = positions
        self.draws = draws or [None] * len(anchors)
        self.chances: dict[int, list[mx.array]] = {}  # of the drawn drafts, each [1, V]

    @cached_property
    def greedy(self) -> tuple[mx.array, mx.array]:
        """The likeliest drafts [γ, B] of all sequences, and their logits [γ, B, Vd]."""
        return self._run(lambda logits: self.source.ids(mx.argmax(logits, axis=-1)))

    @cached_property
    def wanted(self) -> tuple[mx.array, mx.array]:
        """As `greedy`, but the drafts of sequences with a draw are drawn."""
        if all(draw is None for draw in self.draws):
            return self.greedy
        draws = [(n, draw) for n, draw in enumerate(self.draws) if draw is not None]
        self.chances = {n: [] for n, _ in draws}
        numbers = {n: mx.random.uniform(shape=(self.positions, 1), key=d.key) for n, d in draws}

        def choose(logits: mx.array) -> mx.array:
            likeliest = self.source.ids(mx.argmax(logits, axis=-1))
            tokens = [*mx.split(likeliest, len(self.draws))]
            for n, draw in draws:
                rows = draw.shaper.shape(self.source.spread(logits[n : n + 1]))
                chances = mx.softmax(rows, axis=-1)
                tokens[n] = drawn(chances, numbers[n][len(self.chances[n])])
                self.chances[n].append(chances)
            return mx.concatenate(tokens)

        return self._run(choose)

    def _run(self, choose: Choose) -> tuple[mx.array, mx.array]:
        return self.source.chains(self.caches, self.anchors, self.positions, choose)


class ChainBlock:
    """The positions after one anchor; a `DraftBlock` of one of the chains."""

    def __init__(self, chains: Chains, number: int):
        self.chains = chains
        self.number = number

    @property
    def _likeliest(self) -> tuple[mx.array, mx.array]:
        drawn = self.chains.draws[self.number] is not None
        tokens, logits = self.chains.greedy if drawn else self.chains.wanted
        return tokens[:, self.number], logits[:, self.number]

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        return Draft(self._likeliest[0])

    def sample(self, draw: Draw) -> Draft:
        """The drafts that were drawn with this draw; penalties do not apply."""
        assert draw is self.chains.draws[self.number]
        tokens = self.chains.wanted[0][:, self.number]
        return Draft(tokens, mx.concatenate(self.chains.chances[self.number]))

    def top_tokens(self, count: int) -> PendingRankings:
        """The likeliest tokens of each position, as if it did not depend on the others."""
        return Independent(self._likeliest[1]).top_tokens(count)
