"""Acceptance length τ on held-out prompts, without target passes.

The target's greedy answers are known, and greedy verification accepts the drafts that equal them.
So a replay of an answer block by block gives the rounds of greedy decoding.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from dflash_mlx.drafter.drafter import Drafter
from dflash_mlx.drafter.vocabulary import target_ids

from .batches import Sequence
from .loss import block_hidden
from .selector_loss import candidate_scores


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts over all verifies, without tokens after the end of an answer."""

    committed: int
    verifies: int
    accepted_by_position: tuple[int, ...]

    @property
    def tau(self) -> float:
        """Mean tokens committed per verify, bonus included; 0.0 without a verify."""
        return self.committed / self.verifies if self.verifies else 0.0


def replay_answers(drafter: Drafter, taps: mx.array, sequences: list[Sequence]) -> Acceptance:
    """Draft the answers of n sequences block by block; taps [n, S, K * Ht], padded."""
    width = drafter.config.block_size - 1
    lengths = np.array([len(s.tokens) for s in sequences])
    tokens = np.zeros((len(sequences), lengths.max() + width), dtype=np.int32)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence.tokens)] = sequence.tokens
    at = np.array([s.answer for s in sequences])
    context = drafter.model.context(taps.astype(mx.float32), 0)
    mx.eval(context)
    committed = verifies = 0
    by_position = np.zeros(width, dtype=int)
    while (live := np.flatnonzero(at < lengths - 1)).size:
        anchors = at[live]
        part = [(k[mx.array(live)], v[mx.array(live)]) for k, v in context]
        first = mx.array(tokens[live, anchors])[:, None]
        hidden = block_hidden(drafter, part, first, mx.array(anchors)[:, None])
        drafts = np.array(greedy_drafts(drafter, hidden[:, 0], first[:, 0]))
        right = tokens[live[:, None], anchors[:, None] + np.arange(1, width + 1)]
        left = lengths[live] - 1 - anchors
        agree = (drafts == right) & (np.arange(width) < left[:, None])
        accepted = np.cumprod(agree, axis=1)
        by_position += accepted.sum(axis=0)
        kept = np.minimum(accepted.sum(axis=1) + 1, left)
        committed, verifies = committed + int(kept.sum()), verifies + live.size
        at[live] += kept
    return Acceptance(committed, verifies, tuple(int(n) for n in by_position))


def greedy_drafts(drafter: Drafter, hidden: mx.array, anchors: mx.array) -> mx.array:
    """The drafts [n, B - 1] of hidden states [n, B - 1, H] after anchors [n] at temperature 0."""
    logits, selector = drafter.own_logits(hidden), drafter.model.selector
    extra, distances = drafter.config.dflash2, drafter.model.get("d2t")
    if selector is None or extra is None:
        drafts = mx.argmax(logits, axis=-1)
        return drafts if distances is None else target_ids(distances)[drafts]
    # Sorted by id, as in decoding: of equal scores the smallest id wins.
    k = extra.selector_top_k
    candidates = mx.sort(mx.argpartition(-logits, k - 1, axis=-1)[..., :k], axis=-1)
    scores = mx.take_along_axis(logits, candidates, axis=-1).astype(mx.float32)
    before, found = anchors, []
    for t in range(hidden.shape[1]):
        each = candidate_scores(selector, hidden[:, t], candidates[:, t], scores[:, t], before)
        best = mx.argmax(each, axis=-1)[:, None]
        before = mx.take_along_axis(candidates[:, t], best, axis=-1)[:, 0]
        found.append(before)
    return mx.stack(found, axis=1)


def merge_counts(parts: list[Acceptance]) -> Acceptance:
    """The sum of several counts; all have one block size."""
    positions = zip(*(p.accepted_by_position for p in parts), strict=True)
    return Acceptance(
        sum(p.committed for p in parts),
        sum(p.verifies for p in parts),
        tuple(sum(column) for column in positions),
    )
