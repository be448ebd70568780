"""The drafts after one anchor: a chain, or levels of a tree, as far as they are asked for.

A row of a draft is written behind the committed ones and taken back when the block is built, so a
cache holds committed tokens only. Does not know how drafts are accepted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

import mlx.core as mx
import numpy as np

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.speculation.drafts import Draft, Independent
from dflash_mlx.speculation.sampling import Shaper
from dflash_mlx.speculation.top_ids import top_ids

from .cache import EagleCache
from .levels import Level, Levels

TOP_K = 10  # continuations of a path, and paths that go on, as in the authors' trees


class EagleBlock:
    """The positions after one anchor; a `DraftBlock` that runs the head when it is asked."""

    def __init__(self, cache: EagleCache, anchor: int, positions: int):
        self._cache, self._model, self._positions = cache, cache.head.model, positions
        self._anchor = mx.array([anchor])

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        """The likeliest token after the one just taken."""
        return Draft(self._greedy[0])

    def sample(self, shaper: Shaper, key: mx.array, history: list[int]) -> Draft:
        """Tokens drawn at the shaper's temperature and filters; penalties do not apply."""
        keys = iter(mx.random.split(key, self._positions))

        def choose(logits: mx.array) -> mx.array:
            return mx.random.categorical(shaper.shape(self._model.spread(logits)), key=next(keys))

        tokens, logits = self._chain(choose)
        return Draft(tokens, mx.softmax(shaper.shape(self._model.spread(logits)), axis=-1))

    def confidence(self) -> Callable[[], np.ndarray]:
        """The largest probability at each position of the greedy chain."""
        return Independent(self._greedy[1]).confidence()

    def top_tokens(self, count: int) -> Levels:
        """The levels of the authors' dynamic tree: the likeliest paths go on, `TOP_K` a level."""
        wide = min(TOP_K, count)
        levels = list[Level]()
        with self._drafting() as step:
            hidden, tokens = None, self._anchor
            seen, sums = mx.zeros((1, 0), dtype=mx.bool_), mx.zeros((1, 1))
            for position in range(min(self._positions, count)):
                hidden, logits = step(tokens, hidden, seen if position else None)
                logits = logits.astype(mx.float32)
                best = top_ids(logits, min(wide, logits.shape[-1]))
                logs = mx.take_along_axis(logits, best, axis=-1)
                logs = logs - mx.logsumexp(logits, axis=-1, keepdims=True)
                ids = self._model.ids(best)
                paths = (sums + logs).reshape(-1)
                goes_on = mx.argsort(-paths)[:wide]
                levels.append(Level(ids, logs, goes_on))
                parents = goes_on // best.shape[-1]
                sums = paths[goes_on][:, None]
                hidden, tokens = hidden[:, parents], ids.reshape(-1)[goes_on]
                seen = mx.concatenate([seen[parents], mx.eye(len(goes_on)) > 0], axis=1)
        return Levels(levels)

    @cached_property
    def _greedy(self) -> tuple[mx.array, mx.array]:
        """The chain's tokens [γ] and the logits [γ, Vd] that they were chosen by."""
        return self._chain(lambda logits: self._model.ids(mx.argmax(logits, axis=-1)))

    def _chain(self, choose: Callable[[mx.array], mx.array]) -> tuple[mx.array, mx.array]:
        """Tokens [γ] by `choose(logits [1, Vd]) -> [1]`, and logits [γ, Vd]."""
        tokens, rows = [self._anchor], list[mx.array]()
        with self._drafting() as step:
            hidden = None
            for _ in range(self._positions):
                hidden, logits = step(tokens[-1], hidden, None)
                rows.append(logits)
                tokens.append(choose(logits))
        return mx.concatenate(tokens[1:]), mx.concatenate(rows)

    @contextmanager
    def _drafting(self) -> Iterator["Step"]:
        """What runs the head; the rows that it writes are taken back."""
        self._cache.commit_waiting()
        step = Step(self._cache)
        try:
            yield step
        finally:
            self._cache.rows.trim(self._cache.rows.offset - step.committed)


class Step:
    """Runs the head over the rows of one position after another, from an anchor on."""

    def __init__(self, cache: EagleCache):
        self._cache = cache
        self.committed = self._position = cache.rows.offset

    def __call__(
        self, tokens: mx.array, hidden: mx.array | None, seen: mx.array | None
    ) -> tuple[mx.array, mx.array]:
        """Tokens [S] after hidden states [1, S, H] -> new ones, and logits [S, Vd].

        `hidden` None: the anchor after the last committed token. `seen` [S, D]: which of the D
        rows of drafts each row sees, itself included; None for all.
        """
        head, cache = self._cache.head, self._cache
        features = cache.last_feature() if hidden is None else hidden
        mask = None
        if seen is not None:  # row 0 of the cache is nobody's, the anchor's is everybody's
            mask = mx.concatenate([mx.ones((len(seen), self.committed), mx.bool_), seen], axis=1)
        embeddings = head.embed(tokens)
        out = head.model.midlayer(embeddings, features, cache.rows, self._position, mask)
        self._position += 1
        normed = head.model.norm(out)
        return normed if head.config.norm_output else out, head.logits(normed)
