"""The candidate selector of DFlash 2: scores each position's top-k after the token before.

Source: "Keep Drafting Parallel" (inco.ai/blog/dflash2), candidate selector.
"""

import mlx.core as mx
from mlx import nn

from dflash_mlx.kernels import selector_walk
from dflash_mlx.speculation.drafts import Lattice

from .config import DFlash2


class CandidateSelector(nn.Module):
    """S_t(a, b) = U_t(b) + sum_r A[a]_r (W h_t)_r B[b]_r over the top-k candidates b of position t.

    U: the logits; A and B: the predecessor and successor codebooks [V, r]; W: the hidden
    projection. In checkpoints the codebooks have no `.weight` suffix.
    """

    def __init__(self, config: DFlash2, vocab_size: int, hidden_size: int):
        super().__init__()
        self._top_k = config.selector_top_k
        shape = (vocab_size, config.selector_rank)
        self.predecessor_codebook = 0.02 * mx.random.normal(shape)
        self.successor_codebook = 0.02 * mx.random.normal(shape)
        self.hidden_projection = nn.Linear(hidden_size, config.selector_rank, bias=False)

    def __call__(self, logits: mx.array, hidden: mx.array, anchor: int) -> Lattice:
        """Score the positions after the anchor.

        logits: [γ, V], hidden: [γ, H] after the final norm, anchor: the token id before position 1.
        """
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
