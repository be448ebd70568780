"""An EAGLE-3 head as a drafter: its chains, and the authors' dynamic trees."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from dflash_mlx.drafters.chain import ChainBlock, Chains
from dflash_mlx.drafters.feature_head import FeatureCache, FeatureDrafter
from dflash_mlx.speculation.sampling import top_ids
from dflash_mlx.speculation.tree import Ranked

from .config import EagleConfig
from .model import EagleModel, Segment, mask_of

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


class EagleBlock(ChainBlock):
    """The positions after one anchor. A chain is drafted with others, a tree on its own."""

    def top_tokens(self, count: int) -> Levels:
        """The levels of the authors' dynamic tree; each continues the `TOP_K` likeliest paths."""
        chains = self.chains
        wide = min(TOP_K, count)
        levels = list[Level]()
        with drafting(chains.caches[self.number]) as step:
            hidden = None
            tokens = mx.array([chains.anchors[self.number]])
            seen = mx.zeros((1, 0), dtype=mx.bool_)
            sums = mx.zeros((1, 1))
            for position in range(min(chains.positions, count)):
                hidden, logits = step(tokens, hidden, seen if position else None)
                logits = logits.astype(mx.float32)
                best = top_ids(logits, min(wide, logits.shape[-1]))
                logs = mx.take_along_axis(logits, best, axis=-1)
                logs = logs - mx.logsumexp(logits, axis=-1, keepdims=True)
                ids = chains.source.ids(best)
                paths = (sums + logs).reshape(-1)
                continued = mx.argsort(-paths)[:wide]
                levels.append(Level(ids, logs, continued))
                parents = continued // best.shape[-1]
                sums = paths[continued][:, None]
                hidden = hidden[:, parents]
                tokens = ids.reshape(-1)[continued]
                seen = mx.concatenate([seen[parents], mx.eye(len(continued)) > 0], axis=1)
        return Levels(levels)


@contextmanager
def drafting(cache: FeatureCache) -> Iterator["Step"]:
    """A `Step` that runs the head; its rows are removed from the cache afterwards."""
    cache.source.commit_waiting([cache])
    step = Step(cache)
    try:
        yield step
    finally:
        cache.rows.trim(cache.rows.offset - step.committed)


class Step:
    """Runs the head over the rows of one position of a tree after another, from an anchor on."""

    def __init__(self, cache: FeatureCache):
        self._cache = cache
        self.committed = self._position = cache.rows.offset

    def __call__(
        self, tokens: mx.array, hidden: mx.array | None, seen: mx.array | None
    ) -> tuple[mx.array, mx.array]:
        """Tokens [S] after hidden states [1, S, H] -> new ones, and logits [S, Vd].

        `hidden` None: the anchor after the last committed token. `seen` [S, D]: which of the D
        rows of drafts each row sees, itself included; None for all.
        """
        cache = self._cache
        before = cache.last_feature() if hidden is None else hidden
        mask = None
        if seen is not None:  # every row sees the committed rows
            mask = mx.concatenate([mx.ones((len(seen), self.committed), mx.bool_), seen], axis=1)
        segment = Segment(cache.rows, tokens.size, mask)
        positions = mx.full(tokens.size, self._position)
        self._position += 1
        head: EagleDrafter = cache.source
        after = head.level(tokens, before, positions, [segment])
        return after, head.logits(after)


BLOCK = 9  # rows: eight drafts after the anchor, the depth of the authors' trees


class EagleDrafter(FeatureDrafter):
    """A head that reads the outputs of the target's layers `taps`."""

    model: EagleModel
    config: EagleConfig
    block_size = BLOCK

    def row_bytes(self, item: int) -> int:
        config = self.config
        return (2 * config.num_kv_heads * config.head_dim + config.hidden_size) * item

    def features(self, taps: mx.array) -> mx.array:
        return self.model.features(self.enter(taps))

    def run(
        self, tokens: mx.array, before: mx.array, caches: Sequence[KVCache], counts: Sequence[int]
    ) -> mx.array:
        pairs = list(zip(caches, counts, strict=True))
        positions = [mx.arange(cache.offset, cache.offset + count) for cache, count in pairs]
        segments = [Segment(cache, count, mask_of(count, cache)) for cache, count in pairs]
        return self.level(tokens, before, mx.concatenate(positions), segments)

    def level(
        self, tokens: mx.array, before: mx.array, positions: mx.array, segments: Sequence[Segment]
    ) -> mx.array:
        """As `run`, with rows at any positions that see what the segments say."""
        out = self.model.midlayer(self.embed(tokens)[None], before, positions, segments)
        return self.model.norm(out) if self.config.norm_output else out

    def logits(self, hidden: mx.array) -> mx.array:
        return super().logits(hidden if self.config.norm_output else self.model.norm(hidden))

    def ids(self, tokens: mx.array) -> mx.array:
        return self.model.ids(tokens)

    def spread(self, logits: mx.array) -> mx.array:
        return self.model.spread(logits)

    def block(self, chains: Chains, number: int) -> EagleBlock:
        return EagleBlock(chains, number)
