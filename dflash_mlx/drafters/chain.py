"""Drafts that a model makes one token after another, each in a pass of its own."""

from collections.abc import Callable
from functools import cached_property
from typing import Protocol

import mlx.core as mx
import numpy as np

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.speculation.drafts import Draft, Independent, TopTokens
from dflash_mlx.speculation.sampling import Shaper


class ChainCache(Protocol):
    """A drafter's cache that can run its model over drafts."""

    def chain(
        self, anchor: int, count: int, choose: Callable[[mx.array], mx.array]
    ) -> tuple[mx.array, mx.array]:
        """Drafts [γ] after the anchor, each by `choose(logits [1, V])`, and their logits [γ, V]."""
        ...


class ChainBlock:
    """The positions after one anchor; a `DraftBlock` that runs the model on demand."""

    def __init__(self, cache: ChainCache, anchor: int, positions: int):
        self._cache = cache
        self._anchor = anchor
        self._positions = positions

    @cached_property
    def _greedy(self) -> tuple[mx.array, mx.array]:
        def choose(logits: mx.array) -> mx.array:
            return mx.argmax(logits, axis=-1)

        return self._cache.chain(self._anchor, self._positions, choose)

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        return Draft(self._greedy[0])

    def sample(self, shaper: Shaper, key: mx.array, history: list[int]) -> Draft:
        """Drafts drawn at the shaper's temperature and filters; penalties do not apply."""
        keys = iter(mx.random.split(key, self._positions))

        def choose(logits: mx.array) -> mx.array:
            return mx.random.categorical(shaper.shape(logits), key=next(keys))

        tokens, logits = self._cache.chain(self._anchor, self._positions, choose)
        return Draft(tokens, mx.softmax(shaper.shape(logits), axis=-1))

    def confidence(self) -> Callable[[], np.ndarray]:
        """The largest probability at each position of the greedy drafts."""
        return Independent(self._greedy[1]).confidence()

    def top_tokens(self, count: int) -> TopTokens:
        """The likeliest tokens of each position, as if it did not depend on the others."""
        return Independent(self._greedy[1]).top_tokens(count)
