"""An EAGLE-3 head as a drafter: its caches and its blocks.

It drafts one token after another, each in a pass of its one layer, and one sequence after another.
Rows of drafts are always dropped: committed tokens get rows from the target's features.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
import numpy as np

from dflash_mlx.drafters.base import Drafter
from dflash_mlx.drafters.feature_cache import FeatureCache
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.speculation.drafts import Draft, DraftBlock, Independent
from dflash_mlx.speculation.sampling import Shaper, top_ids
from dflash_mlx.speculation.tree import Ranked

from .config import EagleConfig
from .model import BoundHead, EagleModel


class EagleCache(FeatureCache):
    """One sequence's rows and features."""

    def __init__(self, head: BoundHead):
        super().__init__()
        self.head = head

    def features(self, taps: mx.array) -> mx.array:
        return self.head.model.features(self.head.enter(taps))

    def write(self, tokens: list[int], features: mx.array) -> None:
        embeddings = self.head.embed(mx.array(tokens))
        self.head.model.midlayer.write(embeddings, features, self.rows)

    def empty(self) -> "EagleCache":
        return EagleCache(self.head)


# The dynamic tree of EAGLE-2 and 3 (arXiv 2406.16858), as rankings that a tree is built from.

ENDS: Ranked = [], [], []


@dataclass(frozen=True, slots=True)
class Level:
    """One level of drafts, on the device.

    tokens, logs: [P, k], the likeliest tokens after each of P paths, and their log-probabilities.
    continued: [Q], which of all P * k the next level continues, the likeliest first.
    """

    tokens: mx.array
    logs: mx.array
    continued: mx.array


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of a tree, on their way to the host; a `PendingRankings`."""

    levels: list[Level]

    def begin(self) -> None:
        mx.async_eval(*(array for level in self.levels for array in arrays(level)))

    def to_host(self) -> "Paths":
        return Paths([[np.array(array) for array in arrays(level)] for level in self.levels])


class Paths:
    """The `Rankings` of the levels; a case is the number of a continued path, or -1."""

    def __init__(self, levels: list[list[np.ndarray]]):
        self._levels = levels

    @property
    def positions(self) -> int:
        return len(self._levels)

    def after(self, position: int, case: int) -> Ranked:
        """The tokens after a path, the likeliest first; ties go to the head's smaller id."""
        if case < 0:
            return ENDS
        tokens, logs, continued = self._levels[position]
        order = np.argsort(-logs[case], kind="stable")
        paths = {int(place): number for number, place in enumerate(continued)}
        cases = [paths.get(case * len(order) + int(place), -1) for place in order]
        ranked = np.minimum(logs[case][order], 0.0)
        return ranked.tolist(), tokens[case][order].tolist(), cases


def arrays(level: Level) -> tuple[mx.array, mx.array, mx.array]:
    return level.tokens, level.logs, level.continued


# The drafts after one anchor

TOP_K = 10  # continuations of a path, and continued paths of a level, as in the authors' trees


class EagleBlock:
    """The positions after one anchor; a `DraftBlock` that runs the head on demand."""

    def __init__(self, cache: EagleCache, anchor: int, positions: int):
        self._cache = cache
        self._model = cache.head.model
        self._positions = positions
        self._anchor = mx.array([anchor])

    def greedy(self, kernels: Kernels | None = None) -> Draft:
        """The likeliest token after each draft."""
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
        """The levels of the authors' dynamic tree; each continues the `TOP_K` likeliest paths."""
        wide = min(TOP_K, count)
        levels = list[Level]()
        with self._drafting() as step:
            hidden = None
            tokens = self._anchor
            seen = mx.zeros((1, 0), dtype=mx.bool_)
            sums = mx.zeros((1, 1))
            for position in range(min(self._positions, count)):
                hidden, logits = step(tokens, hidden, seen if position else None)
                logits = logits.astype(mx.float32)
                best = top_ids(logits, min(wide, logits.shape[-1]))
                logs = mx.take_along_axis(logits, best, axis=-1)
                logs = logs - mx.logsumexp(logits, axis=-1, keepdims=True)
                ids = self._model.ids(best)
                paths = (sums + logs).reshape(-1)
                continued = mx.argsort(-paths)[:wide]
                levels.append(Level(ids, logs, continued))
                parents = continued // best.shape[-1]
                sums = paths[continued][:, None]
                hidden = hidden[:, parents]
                tokens = ids.reshape(-1)[continued]
                seen = mx.concatenate([seen[parents], mx.eye(len(continued)) > 0], axis=1)
        return Levels(levels)

    @cached_property
    def _greedy(self) -> tuple[mx.array, mx.array]:
        """The chain's tokens [γ] and the logits [γ, Vd] that they were chosen by."""
        return self._chain(lambda logits: self._model.ids(mx.argmax(logits, axis=-1)))

    def _chain(self, choose: Callable[[mx.array], mx.array]) -> tuple[mx.array, mx.array]:
        """Tokens [γ] by `choose(logits [1, Vd]) -> [1]`, and logits [γ, Vd]."""
        tokens = [self._anchor]
        rows = list[mx.array]()
        with self._drafting() as step:
            hidden = None
            for _ in range(self._positions):
                hidden, logits = step(tokens[-1], hidden, None)
                rows.append(logits)
                tokens.append(choose(logits))
        return mx.concatenate(tokens[1:]), mx.concatenate(rows)

    @contextmanager
    def _drafting(self) -> Iterator["Step"]:
        """A `Step` that runs the head; its rows are removed from the cache afterwards."""
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
        head = self._cache.head
        cache = self._cache
        features = cache.last_feature() if hidden is None else hidden
        mask = None
        if seen is not None:  # every row sees the committed rows
            mask = mx.concatenate([mx.ones((len(seen), self.committed), mx.bool_), seen], axis=1)
        embeddings = head.embed(tokens)
        out = head.model.midlayer(embeddings, features, cache.rows, self._position, mask)
        self._position += 1
        normed = head.model.norm(out)
        return normed if head.config.norm_output else out, head.logits(normed)


BLOCK = 9  # rows: eight drafts after the anchor, the depth of the authors' trees


class EagleDrafter(Drafter):
    """A bound head that reads the outputs of the target's layers `taps`."""

    block_size = BLOCK

    def __init__(self, head: BoundHead, taps: tuple[int, ...]):
        self.head = head
        self.model: EagleModel = head.model
        self.config: EagleConfig = head.config
        self.taps = taps

    def row_bytes(self, item: int) -> int:
        config = self.config
        return (2 * config.num_kv_heads * config.head_dim + config.hidden_size) * item

    def make_cache(self) -> EagleCache:
        return EagleCache(self.head)

    def draft(
        self, caches: Sequence[EagleCache], anchors: Sequence[int], width: int
    ) -> list[DraftBlock]:
        pairs = zip(caches, anchors, strict=True)
        return [EagleBlock(cache, anchor, width - 1) for cache, anchor in pairs]
