"""Blocks of made-up sequences, and how far two gradients are apart."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from dflash_mlx.train.data import Rectangle, Text


def blocks_of(
    anchors: np.ndarray, taps: mx.array, tokens: mx.array, lengths: tuple[int, ...] = ()
) -> tuple[Text, Rectangle]:
    rows = len(anchors)
    ends = mx.array(lengths or [tokens.shape[1]] * rows)
    text = Text(taps[:, : int(anchors.max())], tokens, ends)
    mx.eval(text.taps, tokens)
    return text, Rectangle(tuple(range(rows)), anchors)


def largest_difference(ours, wanted) -> float:
    """Of two gradients, relative to each tensor's largest number."""
    pairs: Any = zip(tree_flatten(ours), tree_flatten(wanted), strict=True)
    return max(float(mx.abs(a - b).max() / mx.abs(b).max()) for (_, a), (_, b) in pairs)
