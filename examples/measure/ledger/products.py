"""How MLX 0.32.4 multiplies by weights: how often it reads them, and in how many parts.

By quantized.cpp and matmul.cpp of its Metal backend, and the macOS wheel where they differ.
"""

from collections.abc import Mapping
from math import ceil, prod

from count.chips import Chip

from .trace import Array, Operation

TILE_ROWS = 32  # rows of a tile of a product of matrices
SHARED_ROWS = 5  # rows that share a read of the weights, from M3 on
SHARES = 15  # its generation
DENSE_READS = 3  # most reads of weights of 16 bits that rows share; more rows are a matrix
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
    shared = ceil(rows / SHARED_ROWS)
    if is_quantised(op):
        if rows < matrix_rows(chip, *sides(op, arrays)):
            return shared if chip.generation >= SHARES else rows
    elif is_linear(op, arrays) and chip.generation >= SHARES and shared <= DENSE_READS:
        return shared
    return ceil(rows / TILE_ROWS)


def parts(op: Operation, arrays: Mapping[str, Array], chip: Chip) -> int:
    """In how many parts a product cuts its inner side; each writes results of 32 bits."""
    rows, (inputs, outputs) = rows_of(op, arrays), sides(op, arrays)
    if is_quantised(op):
        if rows < matrix_rows(chip, inputs, outputs):
            return 1
        groups = arrays[op.inputs[2]].shape[-1]
        tiles = ceil(outputs / TILE_ROWS) * ceil(rows / TILE_ROWS)
        most = min(GROUPS // tiles, groups)
        return next((count for count in range(most, 1, -1) if groups % count == 0), 1)
    if not is_linear(op, arrays) or rows == 1 or reads(op, arrays, chip) > 1:
        return 1
    if chip.generation >= SHARES and rows <= SHARED_ROWS:
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


def matrix_rows(chip: Chip, inputs: int, outputs: int) -> int:
    """Rows from which a product with quantised weights is one of matrices."""
    if chip.size == "d":
        small, medium, large = 32, 18, 12
    elif chip.nax:
        small, medium, large = 33, 25, 13
    elif chip.generation >= SHARES:
        small, medium, large = 13, 15, 13
    else:
        small, medium, large = 14, 10, 7 if (chip.generation, chip.size) == (13, "s") else 6
    most = max(inputs, outputs)
    return small if most <= 2048 else medium if most <= 4096 else large


def sides(op: Operation, arrays: Mapping[str, Array]) -> tuple[int, int]:
    """Inputs and outputs of a product."""
    return arrays[op.inputs[0]].shape[-1], arrays[op.outputs[0]].shape[-1]


def is_quantised(op: Operation) -> bool:
    return op.name == "QuantizedMatmul"


def is_linear(op: Operation, arrays: Mapping[str, Array]) -> bool:
    """Whether a product's second factor is one matrix: weights."""
    return op.name in ("Matmul", "AddMM") and len(arrays[op.inputs[1]].shape) == 2
