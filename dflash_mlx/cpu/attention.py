"""Attention of one row each of many sequences, for MLX's CPU backend.

There `mx.fast.scaled_dot_product_attention` is a product for each head; here the heads of a group
share one, and the exponential is `exponential`'s.
"""

import mlx.core as mx

from .exponential import softmax


def attend_rows(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array
) -> mx.array:
    """Queries [N, Hq, 1, D], keys and values [N, Hkv, S, D], mask bool [N, 1, 1, S], all float32.

    Returns [N, Hq, 1, Dv].
    """
    n, heads, _, dim = queries.shape
    kv = keys.shape[1]
    scores = (queries * scale).reshape(n, kv, heads // kv, dim) @ keys.swapaxes(-1, -2)
    lowest = mx.array(mx.finfo(scores.dtype).min, scores.dtype)
    mixed = softmax(mx.where(mask, scores, lowest)) @ values
    return mixed.reshape(n, heads, 1, values.shape[-1])
