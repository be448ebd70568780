"""The few-row product's kernel: parity, rows that do not depend on others, weights read once."""

import random

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
DTYPES = (mx.float32, mx.bfloat16, mx.float16)
TOLERANCE = {mx.float32: 1e-5, mx.float16: 1e-3, mx.bfloat16: 8e-3}
Kind = tuple[int, int, str]


@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[2:3])
def test_every_run_equals_the_reference(kind: Kind) -> None:
    """Schedules, sanitizers and the race check; two threadgroups each way, a tail of each."""
    case = rows_of(19, 384), weights_of(35, 384, kind, biased=True)
    check(through(OP), OP.reference, *case, rtol=1e-5, atol=1e-5)


def test_slices_of_larger_arrays() -> None:
    """Inputs that begin one element off a 16-byte boundary are not loaded as if they did not."""
    for kind in KINDS if ALL else KINDS[:2]:
        case = rows_of(3, 128), weights_of(5, 128, kind)
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
    x, weights = rows_of(2, 128), weights_of(8, 128, KINDS[1], mx.float16)
    got = run(through(OP), x, weights).outputs[0]
    compare(got, truth(x, weights), 1e-5, 1e-5, "float32 and float16")


@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[:3])
def test_a_row_has_the_same_bits_whatever_is_computed_with_it(kind: Kind) -> None:
    """Row i of M rows, 1 to 32, against that row alone; and wherever it stands."""
    x, weights = rows_of(32, 256), weights_of(11, 256, kind, biased=True)
    alone = [run(through(OP), x[i : i + 1], weights).outputs[0] for i in range(32)]
    for m in range(2, 33) if ALL else (2, 3, 5, 8, 9, 16, 17, 32):
        out = run(through(OP), x[:m], weights).outputs[0]
        assert same_bits(out, mx.concatenate(alone[:m])), m
    moved = run(through(OP), x[::-1], weights).outputs[0]
    assert same_bits(moved, mx.concatenate(alone[::-1]))


def test_sums_whose_order_depends_on_the_rows_are_seen() -> None:
    """A kernel that is right, but not the same for 1 and 16 rows, has other bits."""
    edit = ("part[j], w[c][j]", "part[j ^ (Rows > 4)], w[c][j ^ (Rows > 4)]")
    x, weights = rows_of(16, 256), weights_of(11, 256, KINDS[1])
    out, alone = (run(through(OP, edit), rows, weights).outputs[0] for rows in (x, x[:1]))
    compare(out, OP.reference(x, weights), 1e-5, 1e-5, "another order")
    assert not same_bits(out[:1], alone)


def test_a_row_that_is_not_finite_stays_alone() -> None:
    """Others keep their bits when one overflowed."""
    x, weights = rows_of(5, 128), weights_of(8, 128, KINDS[1])
    broken = mx.where(mx.arange(5)[:, None] == 2, mx.nan, x)
    clean, got = (run(through(OP), rows, weights).outputs[0] for rows in (x, broken))
    assert mx.isnan(got[2]).all()
    for row in (0, 1, 3, 4):
        assert same_bits(clean[row], got[row])


def test_every_code_of_mxfp4_is_what_mlx_says() -> None:
    """All 16 values under the largest, the smallest and middling scales, one at a time."""
    codes = mx.array([[0x76543210, 0xFEDCBA98, 0, 0]] * 4, mx.uint32)
    scales = mx.array([[0], [1], [127], [251]], mx.uint8)
    weights = Weights(codes, scales, group=32, bits=4, mode="mxfp4")
    want = mx.dequantize(codes, scales, None, 32, 4, "mxfp4", dtype=mx.float32)
    got = run(through(OP), mx.eye(32)[:16], weights).outputs[0]
    assert mx.array_equal(got, want[:, :16].T)


@pytest.mark.parametrize(("m", "reads"), [(1, 1), (5, 1), (16, 1), (17, 2), (32, 2)])
@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[1:3])
def test_traffic(m: int, reads: int, kind: Kind) -> None:
    """Each weight is loaded once, by one thread, for up to 16 rows, each scale by one simdgroup."""
    x, weights = rows_of(m, 512, mx.bfloat16), weights_of(37, 512, kind, mx.bfloat16)
    outcome = run(through(OP), x, weights, build="traffic")
    assert len(outcome.records) == 1
    assert outcome.traffic["weight"].loads == reads * weights.values.nbytes
    for name, part in (("scales", weights.scales), ("biases", weights.biases)):
        if part is not None:
            assert outcome.traffic[name].simd_loads == reads * part.nbytes
    assert outcome.traffic["x"].loads == 2 * x.nbytes
    assert outcome.traffic["out"].stores == m * 37 * 2
    assert outcome.records[0].threadgroup_bytes <= 8192


FIRST = BARRIER + "\n  for (int at"
SECOND = BARRIER + "\n\n  DFLASH_UNROLL"
FAULTS: list[Edit] = [
    (FIRST, FIRST.removeprefix(BARRIER)),
    (FIRST, FIRST.replace(BARRIER, WEAK)),
    (SECOND, SECOND.removeprefix(BARRIER)),
    (SECOND, SECOND.replace(BARRIER, WEAK)),
    (SECOND, SECOND.replace(BARRIER, NONE)),
    ("at < Rows * FOURS", "at <= Rows * FOURS"),
    ("at += threads", "at += threads + 1"),
    ("int me = ", "int me = 1 + "),
    ("row < M && k < K ? dflash_four(x", "k < K ? dflash_four(x"),
    ("row < M && k < K ? dflash_four(x", "row < M && k <= K ? dflash_four(x"),
    ("+ at / FOURS;", "+ at / FOURS + 1;"),
    ("LANES * COLUMNS;", "LANES * COLUMNS + 1;"),
    ("threadgroup_position_in_grid.y * Rows", "threadgroup_position_in_grid.y * (Rows - 1)"),
    ("k < K && column + c < N;\n      size_t from", "column + c < N;\n      size_t from"),
    ("k < K && column + c < N;\n      size_t from", "k < K && column + c <= N;\n      size_t from"),
    ("k < K && column + c < N;\n        plain", "column + c < N;\n        plain"),
    ("k < K && column + c < N;\n        plain", "k < K && column + c <= N;\n        plain"),
    ("weight[from + i]", "weight[from + i + 1]"),
    ("(start + k) / Group", "(start + k) / (2 * Group)"),
    ("ours && !Mxfp4 ? float", "false ? float"),
    ("words[c], quad,", "words[0], quad,"),
    ("tile[row * FOURS + quad", "tile[quad"),
    ("quad * LANES + lane]", "quad * LANES + (lane ^ 1)]"),
    ("begin += TILE", "begin += TILE + 4"),
    ("fma(part[j], w[c][j]", "fma(part[j], w[c][0]"),
    ("dflash_lanes_sum<LANES>(sum", "dflash_lanes_sum<LANES / 2>(sum"),
    ("row % LANES == lane &&", "row == lane &&"),
    ("row % LANES == lane &&", "row % LANES <= lane &&"),
    ("first + row < M &&", "first + row <= M &&"),
    ("< M && ours)", "< M)"),
    ("total + more", "total"),
    ("QUADS * lane + quad", "LANES * lane + quad"),
    ("shift + BITS > WIDTH", "shift + BITS > WIDTH + 1"),
    ("shift + BITS > WIDTH", "shift + BITS >= WIDTH"),
    ("<< (WIDTH - shift)", "<< (WIDTH - shift - 1)"),
    ("(1u << BITS) - 1", "(2u << BITS) - 1"),
    ("code & 8 ?", "code & 4 ?"),
    ("0xC8643210u", "0xC8643201u"),
    ("code << 23", "code << 22"),
    ("fma(float(value), scale, shift)", "float(value) * scale"),
]


@pytest.mark.parametrize("edit", FAULTS)
def test_planted_faults_are_caught(edit: Edit) -> None:
    """Barriers, bounds, lanes, bits and scales: each shows in some run."""
    kinds = (KINDS[3], KINDS[2], KINDS[5], KINDS[0])
    cases = [(rows_of(19, 192), weights_of(35, 192, kind, biased=True)) for kind in kinds]
    assert caught(OP, edit, cases, 1e-4)
