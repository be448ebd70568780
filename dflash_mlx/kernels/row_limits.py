"""From how many rows on MLX multiplies them as a matrix, and how often it reads the weights.

Stock MLX multiplies few rows with a matrix of weights as vectors, and reads the weights again for
every few rows; more rows share one read. All numbers are those of MLX 0.32.4: its sources
(`get_qmv_batch_limit`, `dispatch_qmv`, `qmv_wide` and `qmm_splitk` in metal/quantized.cpp, and
`gemv_wide_config` in metal/matmul.cpp), and the machine code of its macOS wheels, which differs
from the published source in one number: 7 rows instead of 6 on an M1 Max.
"""

from typing import NamedTuple

from dflash_mlx.device import Chip

TILE = 5  # rows that the vector kernels multiply with one read of the weights
MATRIX_TILE = 32  # rows that the matrix kernels multiply with one read
WIDE_GENERATION = 15  # M3: the first one where quantised and 16-bit vectors share reads
ULTRA = "d"

SMALL, MEDIUM = 2048, 4096  # the most rows and columns of a matrix
# Rows from which on quantised weights are multiplied as a matrix: small, medium and larger ones.
M1, M3, M5 = (14, 10, 6), (13, 15, 13), (33, 25, 13)
M1_MAX = (14, 10, 7)
ULTRAS = (32, 18, 12)
OLDER = (18, 12, 10)
GEMV_ROWS = 15  # the most rows of 16-bit weights that are multiplied as vectors


def limits(chip: Chip) -> tuple[int, int, int]:
    """Rows from which on quantised weights are multiplied as a matrix: small, medium, large."""
    if chip.size == ULTRA:
        return ULTRAS
    if chip.generation >= 17:
        return M5
    if chip.generation >= WIDE_GENERATION:
        return M3
    if chip.generation >= 13:
        return M1_MAX if chip == Chip(13, "s") else M1
    return OLDER


def matrix_rows(chip: Chip, outputs: int, inputs: int, *, quantised: bool = True) -> int:
    """Rows from which on [outputs, inputs] is multiplied as a matrix; not `quantised`: 16 bits."""
    if not quantised:
        return GEMV_ROWS + 1 if chip.generation >= WIDE_GENERATION and inputs % 4 == 0 else 2
    small, medium, large = limits(chip)
    most = max(outputs, inputs)
    return small if most <= SMALL else medium if most <= MEDIUM else large


def shares_reads(chip: Chip, mode: str) -> bool:
    """Whether few rows share reads of the weights. `mode`: of the quantisation; "" if none."""
    return chip.generation >= WIDE_GENERATION or mode not in ("", "affine")


class Padding(NamedTuple):
    """`least` to `width` - 1 rows may be multiplied as `width`, the others being zeros."""

    least: int
    width: int


def padding(chip: Chip, outputs: int, inputs: int, mode: str = "affine") -> Padding | None:
    """The rows of a product with a matrix [outputs, inputs] that zeros may make faster.

    With a few more rows MLX reads the matrix once instead of three times or more, on an Ultra
    instead of twice: its limits are older than the kernel whose rows share reads. None where that
    kernel does not run, or where at least two fifths of the rows would be zeros. `mode`: of the
    quantisation; "" for 16 bits. This says where a measurement is worth it, not how it ends.
    """
    width = matrix_rows(chip, outputs, inputs, quantised=bool(mode))
    if not shares_reads(chip, mode) or width > MATRIX_TILE:
        return None
    computed = 2 * TILE if chip.size == ULTRA else 3 * (TILE - 1)
    fitting = (rows for rows in range(3 * width // 5 + 1, width) if tiled(rows) >= computed)
    least = next(fitting, None)
    return None if least is None else Padding(least, width)


def tiled(rows: int) -> int:
    """The rows that MLX's vector kernels compute: as few tiles as possible, all equally large."""
    tiles = -(-rows // TILE)
    return tiles * -(-rows // tiles)
