"""The few-row product's kernel: parity, rows that do not depend on others, weights read once."""

import random
from dataclasses import replace

import mlx.core as mx
import pytest
from tiny import ALL

from dflash_mlx.kernels import small_m_qmm
from dflash_mlx.kernels.small_m_qmm import Weights

from .edits import BARRIER, NONE, WEAK
from .emulator import compare
from .ours import Edit, caught, check, run, same_bits, through
from .packed import AFFINE, KINDS, rows_of, truth, weights_of

OP = small_m_qmm.OP
EXACT = replace(OP, launch=small_m_qmm.launch_exact)
DTYPES = (mx.float32, mx.bfloat16, mx.float16)
TOLERANCE = {mx.float32: 1e-5, mx.float16: 1e-3, mx.bfloat16: 8e-3}
Kind = tuple[int, int, str]


@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[2:3])
def test_every_run_equals_the_reference(kind: Kind) -> None:
    """Schedules, sanitizers and the race check; two threadgroups each way, a tail of each."""
    for rows, k in ((3, 768), (7, 384), (19, 1152)):
        case = rows_of(rows, k), weights_of(35, k, kind, biased=True)
        check(through(OP), OP.reference, *case, rtol=1e-5, atol=1e-5)


def test_slices_of_larger_arrays() -> None:
    """Inputs that begin one element off a 16-byte boundary are not loaded as if they did not."""
    for kind in KINDS if ALL else KINDS[:2]:
        for rows in (3, 5):
            case = rows_of(rows, 128), weights_of(5, 128, kind)
            outcome = run(through(OP), *case, build="sanitize", shift=1)
            assert not outcome.findings
            compare(outcome.outputs[0], OP.reference(*case), 1e-5, 1e-5, str(kind))


CASES = [(kind, dtype) for kind in dict.fromkeys([*KINDS, *AFFINE]) for dtype in DTYPES]


@pytest.mark.parametrize("seed", range(5 * len(CASES) if ALL else 12))
def test_random_shapes(seed: int) -> None:
    """Kinds, dtypes, rows and sizes at random, against float32 rounded once."""
    draw = random.Random(seed)
    kind, dtype = CASES[seed % len(CASES)] if ALL else (KINDS[seed % 6], DTYPES[seed % 5 % 3])
    k = draw.randrange(1, 6) * (kind[0] or 4)
    x = rows_of(draw.randrange(1, 33), k, dtype, seed)
    weights = weights_of(draw.randrange(1, 70), k, kind, dtype, draw.random() < 0.5, seed)
    outcome = run(through(OP), x, weights, schedule=f"random:{seed}")
    assert not outcome.findings
    assert outcome.outputs[0].dtype == dtype
    got, error = outcome.outputs[0].astype(mx.float32), TOLERANCE[dtype]
    compare(got, truth(x, weights), error, error, f"{kind} {dtype} {x.shape}")


def test_dtypes_may_differ() -> None:
    """Rows float32, scales half: the result is as exact as the rows."""
    for rows in (2, 6):
        x, weights = rows_of(rows, 128), weights_of(8, 128, KINDS[1], mx.float16)
        got = run(through(OP), x, weights).outputs[0]
        compare(got, truth(x, weights), 1e-5, 1e-5, "float32 and float16")


@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[:3])
def test_a_row_has_the_same_bits_whatever_is_computed_with_it(kind: Kind) -> None:
    """Row i of M rows, 1 to 32, against that row alone; and wherever it stands."""
    x, weights = rows_of(32, 256), weights_of(11, 256, kind, biased=True)
    alone = [run(through(EXACT), x[i : i + 1], weights).outputs[0] for i in range(32)]
    for m in range(2, 33) if ALL else (*range(2, 18), 32):
        out = run(through(EXACT), x[:m], weights).outputs[0]
        assert same_bits(out, mx.concatenate(alone[:m])), m
    moved = run(through(EXACT), x[::-1], weights).outputs[0]
    assert same_bits(moved, mx.concatenate(alone[::-1]))


@pytest.mark.parametrize("bits", [4, 0])
def test_rows_of_vectors_have_their_bits_whatever_is_computed_with_them(bits: int) -> None:
    """Up to 4 rows, also without exactness; more have those of matrices, by whole 8 rows."""
    x, weights = rows_of(16, 256), weights_of(11, 256, KINDS[1 if bits else 0])
    for limits in ((1, 2, 3, 4), (5, 8, 9, 16)):
        most = run(through(OP), x[: limits[-1]], weights).outputs[0]
        for m in limits:
            assert same_bits(run(through(OP), x[:m], weights).outputs[0], most[:m]), m


@pytest.mark.parametrize("count", [4, 5])
def test_a_row_that_is_not_finite_stays_alone(count: int) -> None:
    """Others keep their bits when one overflowed."""
    x, weights = rows_of(count, 128), weights_of(8, 128, KINDS[1])
    broken = mx.where(mx.arange(count)[:, None] == 2, mx.nan, x)
    clean, got = (run(through(OP), rows, weights).outputs[0] for rows in (x, broken))
    assert mx.isnan(got[2]).all()
    for row in (row for row in range(count) if row != 2):
        assert same_bits(clean[row], got[row])


def test_every_code_of_mxfp4_is_what_mlx_says() -> None:
    """All 16 values under the largest, the smallest and middling scales, one at a time."""
    codes = mx.array([[0x76543210, 0xFEDCBA98, 0, 0]] * 4, mx.uint32)
    scales = mx.array([[0], [1], [127], [251]], mx.uint8)
    weights = Weights(codes, scales, group=32, bits=4, mode="mxfp4")
    want = mx.dequantize(codes, scales, None, 32, 4, "mxfp4", dtype=mx.float32)
    got = run(through(OP), mx.eye(32)[:16], weights).outputs[0]
    assert mx.array_equal(got, want[:, :16].T)


@pytest.mark.parametrize(("m", "reads"), [(2, 1), (4, 1), (5, 1), (16, 1), (17, 2), (32, 2)])
@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[1:3])
def test_traffic(m: int, reads: int, kind: Kind) -> None:
    """The counts of the model in `metal_kernels/README.md`: each weight is loaded once, by one
    lane, for up to 16 rows; rows once for the columns of a simdgroup; no other memory, but for
    the sums of matrices."""
    n, k, size = 64, 1024, 2
    x, weights = rows_of(m, k, mx.bfloat16), weights_of(n, k, kind, mx.bfloat16)
    outcome = run(through(OP), x, weights, build="traffic")
    (record,) = outcome.records
    assert outcome.traffic["weight"].loads == reads * weights.values.nbytes
    for name, part in (("scales", weights.scales), ("biases", weights.biases)):
        if part is not None:
            assert outcome.traffic[name].simd_loads == reads * part.nbytes
    columns, groups = (4, n // 16) if m <= 4 else (32, n // 32)
    tile = max(2, 1 << (m - 1).bit_length()) if m <= 16 else 16
    rows = reads * tile * k * size
    assert outcome.traffic["x"].loads == rows * n // columns
    assert outcome.traffic["x"].group_loads == (x.nbytes if m > 16 else m * k * size) * groups
    assert outcome.traffic["out"].stores == m * n * size
    assert record.threadgroup_bytes == (0 if m <= 4 else 8 * 32 * tile * 4)
    assert record.work.barriers == (0 if m <= 4 else record.groups)
    products = n * k * tile * reads // 512
    assert record.work.products == (0 if m <= 4 else products)
    sums = 0 if m <= 4 else 8 * n * tile * reads * 4
    assert record.work.shared_stores == sums
    assert record.work.shared_loads == sums * m // (tile * reads)


FAULTS: list[Edit] = [
    # Both
    ("(1u << BITS) - 1) << shift", "(2u << BITS) - 1) << shift"),
    ("uint power = uint(150", "uint power = uint(151"),
    ("shift > 15", "shift > 20"),
    ("word >>= 16", "word >>= 15"),
    ("shift -= 16;", "shift -= 15;"),
    ("shift = 0;", ";"),
    ("<< (WIDTH - shift)", "<< (WIDTH - shift - 1)"),
    ("code & 8 ?", "code & 4 ?"),
    ("0xC8643210u", "0xC8643201u"),
    ("code << 23", "code << 22"),
    (", scale, shift);\n}", ", scale, 0.0f);\n}"),
    # Vectors
    ("4 * DFLASH_QUADS * lane, K", "2 * DFLASH_QUADS * lane, K"),
    ("K - 4 * DFLASH_QUADS)", "K)"),
    ("WORDS = 4 * DFLASH_QUADS * BITS", "WORDS = 2 * DFLASH_QUADS * BITS"),
    ("DFLASH_LANES * DFLASH_COLUMNS;", "DFLASH_LANES * DFLASH_COLUMNS + 1;"),
    ("columns[c] = min(column + c, N - 1)", "columns[c] = column + c"),
    ("* WORDS + i]);\n        }\n        scale", "* WORDS + i + 1]);\n        }\n        scale"),
    ("QUADS * lane + quad :", "QUADS * lane + 3 - quad :"),
    ("words[c], 4 * quad + j", "words[0], 4 * quad + j"),
    ("4 * quad + j, scale[c], shift[c]", "4 * quad + j, scale[c], shift[0]"),
    ("size_t(columns[c]) * K + min(k", "size_t(columns[0]) * K + min(k"),
    ("size_t(columns[c]) * K + k;", "size_t(columns[0]) * K + k;"),
    ("size_t(rows[row]) * K", "size_t(rows[0]) * K"),
    ("if (row < count)", "if (row + 1 < count)"),
    ("* K + min(k, K - 4)", "* K + k"),
    ("min(first + row, M - 1)", "first + row"),
    ("float4 part = k < K", "float4 part = k <= K"),
    ("float4 part = k < K ?", "float4 part = true ?"),
    ("fma(part[j], w[c][j]", "fma(part[j], w[c][0]"),
    ("dflash_lanes_sum<DFLASH_LANES>(sum", "dflash_lanes_sum<DFLASH_LANES / 2>(sum"),
    ("lane == 0 && first", "first"),
    ("first + row < M && ours", "ours"),
    ("first + row < M && ours", "first + row < M"),
    ("float(bias[column + c])", "float(bias[column])"),
    # Matrices
    (BARRIER, ""),
    (BARRIER, WEAK),
    (BARRIER, NONE),
    ("((lane / 4) & 4)", "((lane / 4) & 2)"),
    ("((lane / 4) & 2)", "((lane / 4) & 4)"),
    ("begin = BLOCK * simdgroup", "begin = BLOCK * (simdgroup / 2)"),
    ("begin += BLOCK * SIMDGROUPS", "begin += BLOCK * SIMDGROUPS * 2"),
    ("CHUNK * q, K - CHUNK", "CHUNK * q, K"),
    ("8 * n + r, N - 1)) * K + k", "8 * n + r, N)) * K + k"),
    ("weight[start / CHUNK * WORDS + i]", "weight[start / CHUNK * WORDS + (i ^ 1)]"),
    ("4 * (r % 2);", "4 * (1 - r % 2);"),
    ("(eight, r / 2)", "(eight, r % 4)"),
    ("4 * chunk + eight", "4 * eight + chunk"),
    ("2 * q + j, M - 1)", "2 * q + j, M)"),
    ("= k < K ? dflash_four(x + size_t(m)", "= true ? dflash_four(x + size_t(m)"),
    ("rows[part][j][i]", "rows[part][0][i]"),
    ("4 * j, K - 4)", "4 * j, K)"),
    ("8 * eight + 4 * j + i", "8 * eight + 4 * j"),
    ("weights, some[part]", "weights, some[0]"),
    ("weights, some[part], sum[n][part]", "weights, some[part], sum[0][part]"),
    ("(simdgroup * Rows + row)", "(row)"),
    ("row < M && n < N", "n < N"),
    ("row < M && n < N", "row < M"),
    ("total += sums", "total = sums"),
]


@pytest.mark.quick_every(5)
@pytest.mark.parametrize("edit", FAULTS)
def test_planted_faults_are_caught(edit: Edit) -> None:
    bodies = [
        body
        for body in (small_m_qmm.VECTORS, small_m_qmm.MATRICES)
        if edit[0] in body.source.header + body.source.body
    ]
    cases = [
        (rows_of(body.rows[-1] + rows, 1216), weights_of(35, 1216, kind, biased=True))
        for rows, body in (
            (-1, small_m_qmm.VECTORS),  # the last block of rows is not full
            (0, small_m_qmm.VECTORS),
            (3, small_m_qmm.MATRICES),
        )
        for kind in (KINDS[3], KINDS[2], KINDS[5], KINDS[0])
        if body in bodies
    ]
    assert cases
    assert caught(OP, edit, cases, 1e-4)
