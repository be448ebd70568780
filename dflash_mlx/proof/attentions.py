"""What attention is tried and timed with: for each layer type few and many rows, near and far.

Knows shapes; does not know how trials are run.
"""

from collections.abc import Iterator, Sequence

import mlx.core as mx

from dflash_mlx.kernels.verify_attention import FEW_ROWS, NEAR, Rows, Scores, size

from .cases import TREE, Case, dtype_of, normal_array
from .products import Sized
from .shapes import AttentionShape, Shapes

FAR = 2 * NEAR  # tokens in the cache when a long context is timed


def attention_case(
    kind: AttentionShape,
    dtype: mx.Dtype,
    parents: Sequence[int],
    context: int,
    start: int = 0,
    window: int = 0,
) -> Case:
    """Rows of a layer type behind a context. The cache is NaN after the rows of the block."""
    count = context + len(parents)
    q = normal_array(2, kind.heads, len(parents), kind.head_dim, dtype=dtype)
    sinks = normal_array(1, kind.heads, dtype=dtype) if kind.sinks else None
    spare = mx.full((kind.kv_heads, 4, kind.head_dim), mx.nan, dtype=dtype)
    parts = (normal_array(n, kind.kv_heads, count, kind.head_dim, dtype=dtype) for n in (3, 4))
    keys, values = (mx.concatenate([part, spare], axis=1) for part in parts)
    scores = Scores(kind.head_dim**-0.5, window=window, sinks=sinks)
    return q, keys, values, Rows.of(context, parents, start), scores


def attention_cases(shapes: Shapes) -> list[Case]:
    """For each layer type: one row, a tree, a tree across the border of a split; the model's."""
    dtype, chain = dtype_of(shapes.dtype), range(-1, shapes.rows - 1)
    return [
        attention_case(kind, dtype, parents, context, start, window)
        for kind in shapes.attention
        for parents, context, start, window in (
            ((-1,), 0, 0, 0),
            (TREE, 37, 5, 9 if kind.window else 0),
            (TREE, 253, 0, kind.window and 12),
            (chain, shapes.context, 0, kind.window),
        )
    ]


def attention_sizes(shapes: Shapes) -> Iterator[Sized]:
    """Each layer type with few rows and with the model's, behind a short and a long context. A
    window sees no more behind a long one."""
    dtype = dtype_of(shapes.dtype)
    for kind in dict.fromkeys(shapes.attention):
        for count in sorted({min(FEW_ROWS, shapes.rows), shapes.rows}):
            for context in (shapes.context, *(() if kind.window else (FAR,))):
                case = attention_case(kind, dtype, range(-1, count - 1), context, 0, kind.window)
                seen = min(context, kind.window or context)
                read = 2 * seen * kind.kv_heads * kind.head_dim * dtype.size
                yield Sized(size(*case), read, case)
