"""A drafter's own vocabulary, which is a part of its target's.

`d2t` [Vd] says how far the target's id of a token is from the drafter's.
"""

from pathlib import Path

import mlx.core as mx
import numpy as np

from dflash_mlx.errors import DFlashError


def target_ids(d2t: mx.array) -> mx.array:
    """The target's ids [Vd] of the drafter's tokens."""
    return mx.arange(d2t.size) + d2t


def draft_ids(d2t: mx.array, vocab_size: int) -> mx.array:
    """The drafter's ids [V] of the target's tokens, -1 for those that it does not have."""
    places = mx.arange(d2t.size, dtype=mx.int32)
    return mx.put_along_axis(mx.full(vocab_size, -1, mx.int32), target_ids(d2t), places, axis=0)


def spread(logits: mx.array, ids: mx.array, vocab_size: int) -> mx.array:
    """Logits [..., Vd] of tokens with the target's ids [Vd] -> [..., V], -inf for others."""
    places = mx.broadcast_to(ids, logits.shape)
    everywhere = mx.full((*logits.shape[:-1], vocab_size), -mx.inf, dtype=logits.dtype)
    return mx.put_along_axis(everywhere, places, logits, axis=-1)


def checked_distances(d2t: mx.array, vocab_size: int, path: Path) -> mx.array:
    """`d2t` as int32; DFlashError unless it leads to as many tokens of the target."""
    tokens = np.array(d2t).astype(np.int64) + np.arange(d2t.size)
    if len(np.unique(tokens)) < d2t.size or tokens.min() < 0 or tokens.max() >= vocab_size:
        raise DFlashError(
            f"the 'd2t' of the drafter in '{path}' does not lead into the target's vocabulary.",
            hint="download the drafter again",
        )
    return d2t.astype(mx.int32)
