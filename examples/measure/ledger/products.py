"""How MLX 0.32.4 multiplies by weights: how often it reads them, and in how many parts.

By quantized.cpp and matmul.cpp of its Metal backend, and the macOS wheel where they differ.
"""

from collections.abc import Mapping
from math import ceil, prod

from count.chips import Chip

from dflash_mlx import device
from dflash_mlx.kernels import row_limits
from dflash_mlx.kernels.row_limits import MATRIX_TILE, TILE, WIDE_GENERATION

from .trace import Array, Operation

GROUPS = 512  # threadgroups that a product in parts aims at
MOST_PARTS = 32  # of a product with weights of 16 bits
ACCUMULATOR = 4  # bytes of an element of a part


def rows_of(op: Operation, arrays: Mapping[str, Array]) -> int:
    """The number of rows that each matrix of a product multiplies."""
    shape, matrix = (arrays[name].shape for name in op.inputs[:2])
    return shape[-2] if prod(matrix[:-2]) > 1 else prod(shape[:-1])


def reads(op: Operation, arrays: Mapping[str, Array], chip: Chip) -> int:
    """How often a product reads its matrix: few rows are vectors, more are tiles of a matrix."""
    rows = rows_of(op, arrays)
    if not is_quantised(op) and not is_linear(op, arrays):
        return ceil(rows / MATRIX_TILE)
    inputs, outputs = sides(op, arrays)
    mode = "affine" if is_quantised(op) else ""
    return row_limits.reads(device_chip(chip), rows, outputs, inputs, mode)


def parts(op: Operation, arrays: Mapping[str, Array], chip: Chip) -> int:
    """In how many parts a product cuts its inner side; each writes results of 32 bits."""
    rows, (inputs, outputs) = rows_of(op, arrays), sides(op, arrays)
    if is_quantised(op):
        if as_vectors(op, arrays, chip):
            return 1
        groups = arrays[op.inputs[2]].shape[-1]
        tiles = ceil(outputs / MATRIX_TILE) * ceil(rows / MATRIX_TILE)
        most = min(GROUPS // tiles, groups)
        return next((count for count in range(most, 1, -1) if groups % count == 0), 1)
    if not is_linear(op, arrays) or rows == 1 or reads(op, arrays, chip) > 1:
        return 1
    if chip.generation >= WIDE_GENERATION and rows <= TILE:
        return 1
    if chip.nax:
        larger = max(rows, outputs)
        few = larger <= 1024 and inputs > 2 * larger
        return (
            ceil(inputs / (2048 if inputs <= 4096 else 4096)) if few or inputs >= 3 * larger else 1
        )
    small = ceil(rows / 16) * ceil(outputs / 16) <= (2048 if chip.large else 1024)
    if not small or inputs < max(rows, outputs):
        return 1
    wanted = inputs // 16 // (ceil(rows / 32) * ceil(outputs / 32))
    return min(max(2, 1 << max(0, wanted - 1).bit_length()), MOST_PARTS)


def as_vectors(op: Operation, arrays: Mapping[str, Array], chip: Chip) -> bool:
    """Whether MLX multiplies the rows of a product one by one, not in tiles."""
    rows, (inputs, outputs) = rows_of(op, arrays), sides(op, arrays)
    if not is_quantised(op) and not is_linear(op, arrays):
        return rows == 1
    quantised = is_quantised(op)
    return rows < row_limits.matrix_rows(device_chip(chip), outputs, inputs, quantised=quantised)


def device_chip(chip: Chip) -> device.Chip:
    """The chip as the package tells them apart."""
    return device.Chip(chip.generation, chip.size)


def sides(op: Operation, arrays: Mapping[str, Array]) -> tuple[int, int]:
    """Inputs and outputs of a product."""
    return arrays[op.inputs[0]].shape[-1], arrays[op.outputs[0]].shape[-1]


def is_quantised(op: Operation) -> bool:
    return op.name == "QuantizedMatmul"


def is_linear(op: Operation, arrays: Mapping[str, Array]) -> bool:
    """Whether a product's second factor is one matrix: weights."""
    return op.name in ("Matmul", "AddMM") and len(arrays[op.inputs[1]].shape) == 2
