"""Blocks of made-up sequences, and how far two gradients are apart."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from dflash_mlx.train.data import Rectangle
from dflash_mlx.train.step import Blocks


def blocks_of(anchors: np.ndarray, taps: mx.array, tokens: mx.array) -> Blocks:
    parts = list(taps)
    mx.eval(parts)
    rows = tuple(range(len(anchors)))
    lines: Any = tokens.tolist()
    return Blocks(Rectangle(rows, anchors), parts, [tuple(row) for row in lines])


def largest_difference(ours, wanted) -> float:
    """Of two gradients, relative to each tensor's largest number."""
    pairs: Any = zip(tree_flatten(ours), tree_flatten(wanted), strict=True)
    return max(float(mx.abs(a - b).max() / mx.abs(b).max()) for (_, a), (_, b) in pairs)
