"""Products of a few rows by stock MLX, with rows of zeros to the number that reads weights once.

With more rows MLX multiplies by another of its kernels, see `row_limits`. The bits of a row then
depend on the number of rows, as in stock MLX; exact mode does without.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import mlx.core as mx

from dflash_mlx.device import Chip

from . import small_m_qmm
from .dispatch import Kernels, Op
from .row_limits import Padding, padding
from .samples import Case, dtype_of
from .shapes import Shapes
from .small_m_qmm import Weights, matrices, matrix_size, rows_for, weights_of
from .source import Launcher


def reference(x: mx.array, weights: Weights, padding: Padding) -> mx.array:
    """As `small_m_qmm.reference`, whatever the padding."""
    return small_m_qmm.reference(x, weights)


def launch(_: Launcher, x: mx.array, weights: Weights, padding: Padding) -> mx.array:
    """As `reference`: MLX multiplies `padding.width` rows, and those of zeros are cut off."""
    rows = x.reshape(-1, x.shape[-1])
    count = len(rows)
    zeros = [(0, padding.width - count), (0, 0)]
    out = small_m_qmm.product(mx.pad(rows, zeros), weights)
    return out[:count].reshape(*x.shape[:-1], -1)


def fits(x: mx.array, weights: Weights, padding: Padding) -> bool:
    """Whether the padding is for this number of rows, and the weights are ones to check."""
    return weights.fit and padding.least <= x.size // x.shape[-1] < padding.width


def size(x: mx.array, weights: Weights, padding: Padding) -> tuple[int | str, ...]:
    """What the speed depends on: columns, inputs, the weights' form, and the padding."""
    return (*matrix_size(x, weights), *padding)


OP = Op("padded_rows", reference, launch, fits, size)


def faster(kernels: Kernels) -> Iterable[tuple[Any, ...]]:
    """The sizes at which the padding is used; none in exact mode."""
    return kernels.sizes.get(OP.name, ()) if kernels.enables(OP) and not kernels.exact else ()


def most_rows(kernels: Kernels) -> int:
    return max((width - 1 for *_, width in faster(kernels)), default=0)


def chosen(kernels: Kernels, x: mx.array, weights: Weights) -> Padding | None:
    """The padding with which these rows are multiplied; None without one."""
    if not (sizes := faster(kernels)):
        return None
    matrix = matrix_size(x, weights)
    paddings = (Padding(*size[-2:]) for size in sizes if size[:-2] == matrix)
    return next((padding for padding in paddings if fits(x, weights, padding)), None)


def cases(shapes: Shapes) -> list[Case]:
    """The model's matrices with the fewest and the most rows to pad."""
    return [case for least, most in to_try(shapes) for case in (least, most)]


def sizes(shapes: Shapes) -> Iterator[Case]:
    """Yield the model's matrices with the fewest rows to pad: with more, padding gains more."""
    for least, _ in to_try(shapes):
        yield least


def to_try(shapes: Shapes) -> Iterator[tuple[Case, Case]]:
    """Yield the two cases of each matrix that rows of zeros may make faster on this chip."""
    chip = Chip.of(shapes.architecture)
    if chip is None or shapes.exact:
        return
    for kind in matrices(shapes):
        found = padding(chip, kind.outputs, kind.inputs, kind.mode)
        if found is None or (not kind.bits and kind.dtype == "float32"):
            continue
        weights = weights_of(kind, kind.outputs, kind.inputs, dtype_of(shapes.dtype))
        if weights.fit:
            least, most = (
                (rows_for(weights, rows, kind.inputs, shapes), weights, found)
                for rows in (found.least, found.width - 1)
            )
            yield least, most
