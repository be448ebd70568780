"""Random queries of a block, and keys and values of its cache."""

from collections.abc import Iterator, Sequence

import mlx.core as mx

from dflash_mlx.kernels.verify_attention import Rows

TREE = [-1, 0, 0, 1, 2, 4, 3]
CONTEXT = 27
SPARE = 4  # rows of the cache behind the block, never to be read


def block(
    parents: Sequence[int],
    context: int = CONTEXT,
    start: int = 0,
    heads: tuple[int, int] = (4, 2),
    dim: int = 64,
    dtype: mx.Dtype = mx.float32,
) -> tuple[mx.array, mx.array, mx.array, Rows]:
    """q, keys, values and rows; what lies behind the block is NaN."""
    seeds = mx.random.split(mx.random.key(len(parents)), 3)
    count = context + len(parents)
    q = mx.random.normal((heads[0], len(parents), dim), key=seeds[0])
    spare = mx.full((heads[1], SPARE, dim), mx.nan)
    keys, values = (
        mx.concatenate([mx.random.normal((heads[1], count, dim), key=seed), spare], axis=1)
        for seed in seeds[1:]
    )
    rows = Rows.of(context, parents, start)
    return q.astype(dtype), keys.astype(dtype), values.astype(dtype), rows


def plain_steps(
    q: mx.array, keys: mx.array, values: mx.array, rows: Rows
) -> Iterator[tuple[mx.array, mx.array, mx.array, Rows]]:
    """For each row, what plain decoding would have: one query, the context and the row's path."""
    for row, path in enumerate(rows.paths):
        at = mx.array([*range(rows.context), *(rows.context + step for step in path)])
        alone = Rows.of(rows.context + len(path) - 1, [-1], rows.start)
        yield q[:, row : row + 1], mx.take(keys, at, axis=1), mx.take(values, at, axis=1), alone
