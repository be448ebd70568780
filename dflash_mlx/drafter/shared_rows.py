"""Attention of many blocks to one sequence's context rows, which are held once (training).

Decoding has one block a sequence; training has hundreds. Their queries meet the sequence's keys
in one product, and each block's own keys in a second one; one softmax goes over both.
"""

from dataclasses import dataclass

import mlx.core as mx

from dflash_mlx.cpu.exponential import softmax
from dflash_mlx.cpu.modules import on_cpu


@dataclass(frozen=True, slots=True)
class SharedRows:
    """One layer's context rows of n sequences, [n, nKV, S, d] each, for m blocks a sequence."""

    keys: mx.array
    values: mx.array
    blocks: int

    def mix(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array
    ) -> mx.array:
        """Queries [n * m, heads, T, d], keys and values [n * m, nKV, T, d] -> [n * m, heads, T, d].

        mask: bool [n * m, 1, T, S + T]. The scores are computed again in the backward pass: they
        would take more memory than everything else.
        """

        def attend(*arrays: mx.array) -> mx.array:
            return attention(*arrays, blocks=self.blocks, scale=scale, mask=mask)

        return mx.checkpoint(attend)(self.keys, self.values, queries, keys, values)


def attention(
    context_keys: mx.array,
    context_values: mx.array,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    blocks: int,
    scale: float,
    mask: mx.array,
) -> mx.array:
    """`SharedRows.mix` of arrays; a head of the context serves a group of query heads."""
    (n, kv_heads, rows, dim), (_, heads, length, _) = context_keys.shape, queries.shape
    group = heads // kv_heads
    own = (n, blocks, kv_heads, length, dim)
    each = (n, kv_heads, blocks, group, length)
    queries = queries.reshape(n, blocks, kv_heads, group, length, dim).swapaxes(1, 2) * scale
    keys, values = keys.reshape(own).swapaxes(1, 2), values.reshape(own).swapaxes(1, 2)
    # [n, nKV, m * group * T, d] against all rows, [n, nKV, m, group * T, d] against the block's.
    every = queries.reshape(n, kv_heads, -1, dim) @ context_keys.swapaxes(-1, -2)
    inside = queries.reshape(*each[:3], -1, dim) @ keys.swapaxes(-1, -2)
    scores = mx.concatenate([every.reshape(*each, rows), inside.reshape(*each, length)], axis=-1)
    seen = mask.reshape(n, 1, blocks, 1, length, rows + length)
    lowest = mx.array(mx.finfo(scores.dtype).min, scores.dtype)
    scores = mx.where(seen, scores, lowest)
    fast = on_cpu() and scores.dtype == mx.float32
    shares = softmax(scores) if fast else mx.softmax(scores, axis=-1, precise=True)
    every, inside = mx.split(shares, [rows], axis=-1)
    mixed = (every.reshape(n, kv_heads, -1, rows) @ context_values).reshape(*each, dim)
    mixed = mixed + (inside.reshape(*each[:3], -1, length) @ values).reshape(*each, dim)
    return mixed.swapaxes(1, 2).reshape(n * blocks, heads, length, dim)
