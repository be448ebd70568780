"""Products with weights: which kernel MLX takes, and how often it reads the weights."""

from dataclasses import dataclass

from .chips import Chip
from .operations import copy
from .tape import Array, Tape

GROUP = 64  # columns that share a scale


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix of `outputs` rows and `inputs` columns, or `experts` of them.

    parts: the packed words, scales and biases; or the one array of bfloat16.
    """

    inputs: int
    outputs: int
    parts: tuple[Array, ...]
    experts: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of one matrix."""
        return sum(part.bytes for part in self.parts) // self.experts


def weights(inputs: int, outputs: int, bits: int | None, experts: int = 1) -> Weights:
    """Weights of those figures. bits None: bfloat16."""
    count = inputs * outputs * experts
    if bits is None:
        return Weights(inputs, outputs, (Array(count),), experts)
    scales = Array(count // GROUP), Array(count // GROUP)
    return Weights(inputs, outputs, (Array(count * bits // 32, 4), *scales), experts)


def vector_limit(chip: Chip, inputs: int, outputs: int) -> int:
    """Rows from which a quantised product is one of matrices.

    (quantized.cpp, get_qmv_batch_limit; compared with the wheel, which has 7 for an M1 Max.)
    """
    larger = max(inputs, outputs)
    step = 0 if larger <= 2048 else 1 if larger <= 4096 else 2
    if chip.size == "d":
        return (32, 18, 12)[step]
    if chip.generation >= 17:
        return (33, 25, 13)[step]
    if chip.generation >= 15:
        return (13, 15, 13)[step]
    if chip.generation == 13 and chip.size == "s":
        return (14, 10, 7)[step]
    return (14, 10, 6)[step]


def passes_of_vectors(chip: Chip, rows: int) -> int:
    """How often a product of `rows` vectors reads its weights.

    From generation 15 on, five vectors share a pass (quantized.cpp, use_qmv_wide and qmv_wide);
    before, each row has its own (qmv, whose grid has M columns).
    """
    return -(-rows // 5) if chip.generation >= 15 else rows


def splits(inputs: int, outputs: int, rows: int) -> int:
    """Parts in which a product of matrices cuts the columns; 1 is none (quantized.cpp, qmm_splitk).

    It aims at 512 threadgroups of 32 by 32 tiles, and each part is whole groups.
    """
    tiles = -(-outputs // 32) * -(-rows // 32)
    parts = min(max(1, 512 // tiles), inputs // GROUP)
    while parts > 1 and inputs % (parts * GROUP):
        parts -= 1
    return parts


def linear(tape: Tape, x: Array, by: Weights, rows: int) -> Array:
    """x [rows, inputs] by the transpose of the weights: [rows, outputs]."""
    x = x if x.contiguous else copy(tape, x, more=True)
    if len(by.parts) == 1:
        return _dense(tape, x, by, rows)
    if rows < vector_limit(tape.chip, by.inputs, by.outputs):
        passes = passes_of_vectors(tape.chip, rows)
        return _product(tape, "QuantizedMatmul", x, by, rows, passes=passes)
    parts = splits(by.inputs, by.outputs, rows)
    return _product(tape, "QuantizedMatmul", x, by, rows, parts=parts)


def _dense(tape: Tape, x: Array, by: Weights, rows: int) -> Array:
    """In bfloat16 (matmul.cpp, Matmul::eval_gpu, gemv_wide_config and steel_matmul_axpby)."""
    chip = tape.chip
    wide = -(-rows // 5)
    if rows > 1 and chip.generation >= 15 and wide <= 3:
        return _product(tape, "Matmul", x, by, rows, passes=wide)
    if rows == 1:
        return _product(tape, "Matmul", x, by, rows)
    inputs, outputs = by.inputs, by.outputs
    larger = max(rows, outputs)
    parts = 1
    if chip.nax:
        if inputs >= 3 * larger or (larger <= 1024 and inputs > 2 * larger):
            size = 2048 if inputs <= 4096 else 4096
            parts = -(-inputs // size)
    else:
        tiles = -(-rows // 16) * -(-outputs // 16)
        if tiles <= (2048 if chip.large else 1024) and inputs >= larger:
            whole = inputs // 16 // (-(-rows // 32) * -(-outputs // 32))
            parts = min(max(2, 1 << (whole - 1).bit_length() if whole else 0), 32)
    return _product(tape, "Matmul", x, by, rows, parts=parts)


def _product(
    tape: Tape,
    op: str,
    x: Array,
    by: Weights,
    rows: int,
    *,
    passes: int = 1,
    parts: int = 1,
) -> Array:
    """One dispatch; and where it is split, a second that sums the float32 parts.

    (quantized.cpp, qmm_splitk: in the wheel the parts are float32 and steel_gemm_splitk_accum sums
    them; matmul.cpp, steel_gemm_splitk_axpby.)
    """
    given = Array(rows * by.outputs)
    read = x.bytes + passes * by.bytes
    if parts == 1:
        return tape.launch(op, [x, *by.parts], given, read=read)
    partial = Array(parts * given.elements, 4)
    tape.launch(op, [x, *by.parts], partial, read=read, more=True)
    return tape.launch("split-K sum", [partial], given)


def gathered(tape: Tape, x: Array, by: Weights, indices: Array, pairs: int) -> Array:
    """Each (row, expert) pair by its expert: every pair reads its expert's matrix.

    At most 128 pairs of 128 experts are too few for gather_qmm_rhs, which asks for 4 pairs an
    expert, and one row a pair is below every limit of vectors: gather_qmv (quantized.cpp,
    GatherQMM::eval_gpu; also in the wheel). Before it an Arange makes the rows' indices, because
    mlx-lm passes only the experts' (ops.cpp, indices_or_default). The rows lie in order, so that
    the wheel copies none of them, whatever the strides of their axes of one element
    (ensure_row_contiguous_matrix; the source of 0.32.2 copied them).
    """
    own = tape.launch("Arange", [], Array(pairs, 4))
    read = x.bytes + indices.bytes + own.bytes + pairs * by.bytes
    taken = [x, *by.parts, indices, own]
    return tape.launch("GatherQMM", taken, Array(pairs * by.outputs), read=read)
