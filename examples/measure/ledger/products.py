"""How MLX 0.32.4 multiplies by weights: how often it reads them, and in how many parts.

By quantized.cpp and matmul.cpp of its Metal backend, and the macOS wheel where they differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from dflash_mlx.device import Chip
from dflash_mlx.kernels.row_limits import (
    MATRIX_TILE,
    TILE,
    WIDE_GENERATION,
    matrix_rows,
    shares_reads,
)

from .trace import Array, Operation

NAMES = ("QuantizedMatmul", "Matmul", "AddMM")
GROUPS = 512  # threadgroups that a product in parts aims at
MOST_PARTS = 32  # of a product with weights of 16 bits
ACCUMULATOR = 4  # bytes of an element of a part
NAX_GENERATION = 17  # M5: the first one with matrix units


def reads(chip: Chip, rows: int, outputs: int, inputs: int, mode: str = "affine") -> int:
    """How often a product of `rows` rows reads a matrix [outputs, inputs].

    `mode`: of the quantisation; "" for 16 bits. Caches, which may serve repeated reads, are left
    out, as are the tiles of 64 rows that matrix units have from 33 rows on.
    """
    if rows >= matrix_rows(chip, outputs, inputs, quantised=bool(mode)):
        return -(-rows // MATRIX_TILE)
    return -(-rows // TILE) if shares_reads(chip, mode) else rows


@dataclass(frozen=True, slots=True)
class Product:
    """Rows times a matrix: `quantised` or `linear` weights, else one matrix of a batch.

    `groups`: of the inner side that share a scale. `matrix`: bytes of the weights. `row`: bytes of
    a row of inputs and one of outputs.
    """

    rows: int
    inputs: int
    outputs: int
    quantised: bool
    linear: bool
    groups: int
    matrix: int
    row: int

    @classmethod
    def of(cls, op: Operation, arrays: Mapping[str, Array]) -> "Product":
        """The product of one of NAMES."""
        x, weights, *_ = (arrays[name] for name in op.inputs)
        out = arrays[op.outputs[0]]
        quantised = op.name == "QuantizedMatmul"
        batched = prod(weights.shape[:-2]) > 1
        return cls(
            x.shape[-2] if batched else prod(x.shape[:-1]),
            x.shape[-1],
            out.shape[-1],
            quantised,
            not quantised and len(weights.shape) == 2,
            arrays[op.inputs[2]].shape[-1] if quantised else 0,
            sum(arrays[name].nbytes for name in dict.fromkeys(op.inputs[1:])),
            x.shape[-1] * x.dtype.size + out.shape[-1] * out.dtype.size,
        )

    @property
    def weighted(self) -> bool:
        """Whether the matrix is of weights, which rows share."""
        return self.quantised or self.linear

    @property
    def mode(self) -> str:
        """The quantisation as row_limits.py names it."""
        return "affine" if self.quantised else ""

    def reads(self, chip: Chip) -> int:
        """How often the matrix is read: few rows are vectors, more are tiles of a matrix."""
        if not self.weighted:
            return ceil(self.rows / MATRIX_TILE)
        return reads(chip, self.rows, self.outputs, self.inputs, self.mode)

    def as_vectors(self, chip: Chip) -> bool:
        """Whether MLX multiplies the rows one by one, not in tiles."""
        if not self.weighted:
            return self.rows == 1
        limit = matrix_rows(chip, self.outputs, self.inputs, quantised=self.quantised)
        return self.rows < limit

    def parts(self, chip: Chip) -> int:
        """In how many parts the inner side is cut; each writes results of 32 bits."""
        rows, inputs, outputs = self.rows, self.inputs, self.outputs
        if self.quantised:
            if self.as_vectors(chip):
                return 1
            tiles = ceil(outputs / MATRIX_TILE) * ceil(rows / MATRIX_TILE)
            most = min(GROUPS // tiles, self.groups)
            return next((count for count in range(most, 1, -1) if self.groups % count == 0), 1)
        if not self.linear or rows == 1 or self.reads(chip) > 1:
            return 1
        if chip.generation >= WIDE_GENERATION and rows <= TILE:
            return 1
        larger = max(rows, outputs)
        if chip.generation >= NAX_GENERATION:
            few = larger <= 1024 and inputs > 2 * larger
            if few or inputs >= 3 * larger:
                return ceil(inputs / (2048 if inputs <= 4096 else 4096))
            return 1
        small = ceil(rows / 16) * ceil(outputs / 16) <= (2048 if chip.size in "sd" else 1024)
        if not small or inputs < larger:
            return 1
        wanted = inputs // 16 // (ceil(rows / 32) * ceil(outputs / 32))
        return min(max(2, 1 << max(0, wanted - 1).bit_length()), MOST_PARTS)

    def partial(self, chip: Chip) -> int:
        """Bytes of the results of all parts; 0 of a product that is not cut."""
        count = self.parts(chip)
        return count * self.rows * self.outputs * ACCUMULATOR if count > 1 else 0
