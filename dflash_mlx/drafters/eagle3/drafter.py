"""An EAGLE-3 head as a drafter: its chains, and the authors' dynamic trees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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


class Level(NamedTuple):
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
        mx.async_eval(*self.levels)

    def to_host(self) -> "Paths":
        return Paths([[np.array(array) for array in level] for level in self.levels])


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


# The drafts after one anchor

TOP_K = 10  # continuations of a path, and continued paths of a level, as in the authors' trees


class EagleBlock(ChainBlock):
    """The positions after one anchor. A chain is drafted with others, a tree on its own."""

    def top_tokens(self, count: int) -> Levels:
        """The levels of the authors' dynamic tree; each continues the `TOP_K` likeliest paths."""
        chains = self.chains
        head: Any = chains.source
        cache: FeatureCache = chains.caches[self.number]
        head.commit_waiting([cache])
        committed = cache.rows.offset
        wide = min(TOP_K, count)
        levels = list[Level]()
        hidden = cache.last_feature()
        tokens = mx.array([chains.anchors[self.number]])
        seen = mx.zeros((1, 0), mx.bool_)  # [S, D]: which of the D rows of drafts each row sees
        sums = mx.zeros((1, 1))
        try:
            for position in range(min(chains.positions, count)):
                mask = None
                if position:  # every row sees the committed rows
                    mask = mx.concatenate([mx.ones((len(seen), committed), mx.bool_), seen], axis=1)
                places = mx.full(tokens.size, committed + position)
                rows = [Segment(cache.rows, tokens.size, mask)]
                hidden = head.level(tokens, hidden, places, rows)
                logits = head.logits(hidden).astype(mx.float32)
                best = top_ids(logits, min(wide, logits.shape[-1]))
                logs = mx.take_along_axis(logits, best, axis=-1)
                logs = logs - mx.logsumexp(logits, axis=-1, keepdims=True)
                ids = head.ids(best)
                paths = (sums + logs).reshape(-1)
                continued = mx.argsort(-paths)[:wide]
                levels.append(Level(ids, logs, continued))
                parents = continued // best.shape[-1]
                sums = paths[continued][:, None]
                hidden = hidden[:, parents]
                tokens = ids.reshape(-1)[continued]
                seen = mx.concatenate([seen[parents], mx.eye(len(continued)) > 0], axis=1)
        finally:
            cache.rows.trim(cache.rows.offset - committed)
        return Levels(levels)


BLOCK = 9  # rows: eight drafts after the anchor, the depth of the authors' trees


class EagleDrafter(FeatureDrafter):
    kind = "eagle3"
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
