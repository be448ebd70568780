"""The reference of verify attention: MLX's own attention where that has the feature, and rows that
do not depend on each other."""

import mlx.core as mx
import pytest
from metal.attention_rows import CONTEXT, TREE, block, plain_steps

from dflash_mlx.kernels.verify_attention import (
    Rows,
    Scores,
    edges_between,
    fits,
    reference,
)


def seen(rows: Rows, window: int) -> mx.array:
    """Which rows of the cache each row sees, [T, context + T], from bits and depths."""
    count = len(rows.paths)
    bits = (rows.sees[:count, mx.arange(count) // 32] >> (mx.arange(count) % 32)) & 1
    old = mx.ones((count, rows.context), mx.uint32)
    see = mx.concatenate([old, bits], axis=1) == 1
    here = rows.context + rows.depths[:count]
    there = mx.concatenate([mx.arange(rows.context), here])
    return see & (here[:, None] - there < window) if window else see


@pytest.mark.parametrize("parents", [range(-1, 6), TREE])
@pytest.mark.parametrize("sinks", [None, mx.array([0.5, -1.0, 2.0, 0.0])])
@pytest.mark.parametrize("window", [0, 5])
def test_it_is_mlx_attention(parents: list[int], sinks: mx.array | None, window: int) -> None:
    """Against mx.fast.scaled_dot_product_attention with a mask made from the same bits."""
    q, keys, values, rows = block(parents)
    out = reference(q, keys, values, rows, Scores(0.2, window=window, sinks=sinks))
    mask = seen(rows, window)
    k, v = (part[None, :, : mask.shape[1]] for part in (keys, values))
    wanted = mx.fast.scaled_dot_product_attention(q[None], k, v, scale=0.2, mask=mask, sinks=sinks)
    assert mx.allclose(out, wanted[0], rtol=1e-5, atol=1e-5)


def test_the_soft_cap() -> None:
    """Written out for one row and head: cap tanh(score / cap), which large scores feel."""
    q, keys, values, rows = block([-1])
    out = reference(q * 9, keys, values, rows, Scores(0.5, cap=3.0))
    logits = 0.5 * (q[3, 0] * 9) @ keys[1, : CONTEXT + 1].T
    weights = mx.softmax(3 * mx.tanh(logits / 3))
    assert mx.allclose(out[3, 0], weights @ values[1, : CONTEXT + 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_every_row_has_the_bits_of_a_plain_step(dtype: mx.Dtype) -> None:
    """What --exact rests on where no kernel runs; a chain of a whole block would differ."""
    for parents in (range(-1, 6), TREE):
        arrays = block(parents, dtype=dtype)
        scores = Scores(0.2, cap=20.0, window=6, sinks=mx.array([0.5, -1.0, 2.0, 0.0]))
        out = reference(*arrays, scores)
        for row, step in enumerate(plain_steps(*arrays)):
            assert mx.array_equal(out[:, row : row + 1], reference(*step, scores))


def test_splits_begin_at_fixed_positions() -> None:
    """Whatever the first and the last position: only then do plain steps and blocks sum alike."""
    assert edges_between(0, 33, 16) == [0, 16, 32, 48]
    assert edges_between(5, 16, 16) == [5, 16]
    long = edges_between(0, 600, 16, 8)
    assert long[7:] == [112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640]
    assert edges_between(300, 320, 16) == [300, 304, 320]
    for short, all_edges in ((8, long), (0, [*range(0, 700, 16)])):
        for first, end in ((0, 1), (16, 17), (37, 300), (321, 600), (599, 600)):
            edges = edges_between(first, end, 16, short)
            assert edges[0] == first
            assert edges[1:] == [edge for edge in all_edges if first < edge <= edges[-1]]
            assert edges[-2] < end <= edges[-1]


def test_what_the_kernel_takes() -> None:
    """A head of 48, or keys and values of two dtypes, are left to the reference."""
    q, keys, values, rows = block(TREE)
    assert fits(q, keys, values, rows, Scores(1.0))
    assert not fits(q[..., :48], keys[..., :48], values[..., :48], rows, Scores(1.0))
    assert not fits(q, keys, values.astype(mx.bfloat16), rows, Scores(1.0))
