"""The products of a few rows with a model's matrices: what they are tried and timed with.

Knows shapes and packed weights; does not know how trials are run.
"""

from collections.abc import Iterator
from typing import NamedTuple

import mlx.core as mx

from dflash_mlx.kernels.small_m_qmm import BUCKETS, LEAST_COLUMNS, MOST_COLUMNS, Weights, size

from .cases import Case, dtype_of, normal_array
from .shapes import LinearShape, Shapes


def weights_of(kind: LinearShape, outputs: int, inputs: int, dtype: mx.Dtype) -> Weights:
    """Random weights, scaled so that products are about as large as their inputs.

    Quantised weights are random bits: all bit patterns are valid. A bias has the `dtype`.
    """
    small = inputs**-0.5
    bias = normal_array(1, outputs, dtype=dtype) if kind.biased else None
    if not kind.bits:
        values = small * normal_array(outputs, outputs, inputs)
        return Weights(values.astype(dtype_of(kind.dtype)), bias=bias)
    key, shape = mx.random.key(outputs), (outputs, inputs * kind.bits // 32)
    values = mx.random.randint(0, 1 << 32, shape, mx.uint32, key=key)
    scales = mx.random.uniform(0.5 * small, small, (outputs, inputs // kind.group), key=key)
    packing = kind.group, kind.bits, kind.mode
    if kind.mode != "affine":  # scales are powers of 2, stored as exponents
        powers = mx.round(mx.log2(scales)).astype(mx.int32) + 127
        return Weights(values, powers.astype(mx.uint8), None, bias, *packing)
    scales = (scales * 2.0 ** (1 - kind.bits)).astype(dtype_of(kind.dtype))
    return Weights(values, scales, -scales * 2 ** (kind.bits - 1), bias, *packing)


def product_cases(shapes: Shapes) -> list[Case]:
    """For each kind of weights: a number of rows for each size of a threadgroup, 19 for more than
    one of the largest; the model's."""
    found, dtype = [], dtype_of(shapes.dtype)
    for kind in shapes.linears:
        few = 3 * max(kind.group, 64)
        for rows, outputs, inputs in (
            (1, 33, few),
            (3, 35, few),
            (7, 33, few),
            (19, 35, few),
            (shapes.rows, kind.outputs, kind.inputs),
        ):
            weights = weights_of(kind, outputs, inputs, dtype)
            found.append((normal_array(rows, rows, inputs, dtype=dtype), weights))
    return found


class Sized(NamedTuple):
    """A case to time an operation at one of its sizes; `weight` are the bytes that it reads."""

    size: tuple[int, ...]
    weight: int
    case: Case


def product_sizes(shapes: Shapes) -> Iterator[Sized]:
    """Every matrix of the model with every bucket of rows; too narrow ones are left out.

    Those of one size count together. Weights are made when their turn comes.
    """
    dtype = dtype_of(shapes.dtype)
    kinds: dict[tuple[int, int, int, bool], tuple[LinearShape, int]] = {}
    for kind, count in shapes.products:
        key = min(kind.outputs, MOST_COLUMNS), kind.inputs, kind.bits, kind.biased
        read = count * kind.outputs * kind.inputs * (kind.bits or 16) // 8
        kinds[key] = kind, read + kinds.get(key, (kind, 0))[1]
    for (columns, inputs, *_), (kind, read) in kinds.items():
        if columns < LEAST_COLUMNS:
            continue
        weights = weights_of(kind, columns, inputs, dtype)
        for rows in BUCKETS:
            x = normal_array(rows, rows, inputs, dtype=dtype)
            yield Sized(size(x, weights), read, (x, weights))
