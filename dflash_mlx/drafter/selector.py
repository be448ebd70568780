"""The candidate selector of DFlash 2: scores each slot's likeliest tokens by the token before them.

Knows the drafter's logits and last hidden states, not how they were made or what is drafted.
"""

import mlx.core as mx
from mlx import nn

from dflash_mlx.kernels import selector_walk
from dflash_mlx.speculation.drafts import Lattice

from .config import DFlash2


class CandidateSelector(nn.Module):
    """A bilinear score over the top k of every slot (spec 3.3); codebooks are bare parameters."""

    def __init__(self, config: DFlash2, vocab_size: int, hidden_size: int):
        super().__init__()
        self._top_k = config.selector_top_k
        shape = (vocab_size, config.selector_rank)
        self.predecessor_codebook = 0.02 * mx.random.normal(shape)
        self.successor_codebook = 0.02 * mx.random.normal(shape)
        self.hidden_projection = nn.Linear(hidden_size, config.selector_rank, bias=False)

    def __call__(self, logits: mx.array, hidden: mx.array, anchor: int) -> Lattice:
        """Logits [γ, V] and hidden states [γ, H] of the slots after the anchor."""
        k = self._top_k
        candidates = mx.sort(mx.argpartition(-logits, k - 1, axis=-1)[:, :k], axis=-1)
        made_of = (
            mx.take_along_axis(logits, candidates, axis=-1).astype(mx.float32),
            candidates,
            anchor,
            self.hidden_projection(hidden),
            self.predecessor_codebook,
            self.successor_codebook,
        )
        scores = selector_walk.scores(*made_of)
        return Lattice(candidates, scores, made_of)
