"""Random inputs with which a user's machine checks the kernels.

Each kernel has its cases beside it: few, of the kinds that tend to fail, such as one row, odd
sizes, ties, NaN, trees, windows. A kernel is compiled for one dtype and head size, so all cases
have those of the given shapes. The last case has the sizes of the model; there are none for a model
without such layers.
"""

from typing import Any

import mlx.core as mx

Case = tuple[Any, ...]  # the arguments of an operation
TREE = (-1, 0, 0, 1, 2, 4, 3)  # parents; branches at each depth, one node right after its parent


def normal_array(seed: int, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def dtype_of(name: str) -> mx.Dtype:
    return getattr(mx, name)


def binary_tree(rows: int) -> tuple[int, ...]:
    """The parents of a tree's rows, each with two children while there are rows."""
    return tuple((row - 1) // 2 for row in range(rows))
