"""The experts' kernel: parity, rows that do not depend on others, an expert's weights read once."""

import random
from collections import Counter
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tiny import ALL

from dflash_mlx.kernels import grouped_experts
from dflash_mlx.kernels.dispatch import Op
from dflash_mlx.kernels.grouped_experts import Experts
from dflash_mlx.kernels.small_m_qmm import Weights
from dflash_mlx.kernels.source import Launcher, pad_small

from .emulator import compare
from .ours import Edit, caught, check, run, same_bits, through
from .packed import AFFINE, KINDS, chosen, experts_of, rows_of, stacked

OP = grouped_experts.OP
DTYPES = (mx.float32, mx.bfloat16, mx.float16)
TOLERANCE = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 2e-2}
Kind = tuple[int, int, str]


def one_product(x: mx.array, indices: mx.array, weights: Weights) -> mx.array:
    """x [R, K] times the matrix of each pair, by MLX in float32: [pairs, N]."""
    each = indices.size // len(x)
    rows = mx.repeat(x.astype(mx.float32), each, axis=0)[:, None, None]
    return grouped_experts.gathered(rows, indices[:, None], weights).reshape(indices.size, -1)


def launched(launcher: Launcher, x: mx.array, indices: mx.array, weights: Weights) -> mx.array:
    return grouped_experts.product(launcher, x, pad_small(indices), indices.size, weights)


# One of the three products of a layer, which a single launch computes. Indices are flat.
PRODUCT = Op("grouped_experts", one_product, launched)


@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[1:2])
def test_every_run_equals_the_reference(kind: Kind) -> None:
    """Schedules, sanitizers and the race check: an expert with more rows than are computed at once,
    more pairs than lanes, and few; tails of columns and of K."""
    layer = experts_of(3, (640, 128, 35), kind, biased=True)
    for indices in (mx.array([[2], [0], [2]]), chosen(19, 2, 3)):
        case = rows_of(len(indices), 640), indices, layer
        check(through(OP), OP.reference, *case, rtol=2e-5, atol=2e-5)


CHOICES = {
    "all rows the same expert": lambda rows: mx.full((rows, 1), 3),
    "all different": lambda rows: mx.arange(rows)[:, None],
    "two by two": lambda rows: mx.arange(rows)[:, None] // 2,
    "an expert twice in a row": lambda rows: mx.broadcast_to(mx.array([5, 1, 5]), (rows, 3)),
    "a router's": lambda rows: chosen(rows, 4, 32),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("rows", range(1, 33) if ALL else (1, 5, 32))
def test_choices(choice: str, rows: int) -> None:
    """1 to 32 rows, as many choices of one expert or of 32."""
    indices = CHOICES[choice](rows).reshape(-1)
    case = rows_of(rows, 64), indices, stacked(32, 9, 64, KINDS[1])
    outcome = run(through(PRODUCT), *case, schedule=f"random:{rows}")
    assert not outcome.findings
    compare(outcome.outputs[0], one_product(*case), 1e-5, 1e-5, choice)


CASES = [(kind, dtype) for kind in dict.fromkeys([*KINDS, *AFFINE]) for dtype in DTYPES]


@pytest.mark.parametrize("seed", range(2 * len(CASES) if ALL else 6))
def test_random_shapes(seed: int) -> None:
    """Kinds, dtypes, rows, experts and sizes at random, against float32 rounded once."""
    draw = random.Random(seed)
    kind, dtype = CASES[seed % len(CASES)] if ALL else (KINDS[seed % 6], DTYPES[seed % 5 % 3])
    k = draw.randrange(1, 6) * (kind[0] or 4)
    experts = draw.randrange(2, 9)
    taken = draw.randrange(1, experts)
    rows = draw.randrange(1, 33)
    x = rows_of(rows, k, dtype, seed)
    weights = stacked(experts, draw.randrange(1, 40), k, kind, dtype, draw.random() < 0.5, seed)
    indices = chosen(rows, taken, experts, seed).reshape(-1)
    outcome = run(through(PRODUCT), x, indices, weights, schedule=f"random:{seed}")
    assert not outcome.findings
    assert outcome.outputs[0].dtype == dtype
    got, error = outcome.outputs[0].astype(mx.float32), TOLERANCE[dtype]
    want = one_product(x, indices, in_float32(weights))
    compare(got, want, error, error, f"{kind} {dtype} {x.shape}")


def in_float32(weights: Weights) -> Weights:
    layout = {name: getattr(weights, name) for name in ("group", "bits", "mode")}
    arrays = {
        name: array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array
        for name in ("values", "scales", "biases", "bias")
        if (array := getattr(weights, name)) is not None
    }
    return Weights(**arrays, **layout)


def test_a_layer_in_bfloat16() -> None:
    """Each of its three products is rounded once, as on a GPU; MLX's CPU backend rounds parts."""
    layer = experts_of(8, (256, 64, 64), KINDS[1], mx.bfloat16)
    x, indices = rows_of(9, 256, mx.bfloat16), chosen(9, 3, 8)
    outcome = run(through(OP), x, indices, layer)
    assert not outcome.findings
    flat = indices.reshape(-1)

    def product(x: mx.array, weights: Weights) -> mx.array:
        return one_product(x, flat, in_float32(weights)).astype(mx.bfloat16)

    hidden = layer.activation(product(x, layer.up), product(x, layer.gate))
    want = product(hidden, layer.down).reshape(9, 3, 64).astype(mx.float32)
    compare(outcome.outputs[0].astype(mx.float32), want, 1e-2, 1e-2, "bfloat16")


def bits_case(kind: Kind = KINDS[1], rows: int = 32) -> tuple[mx.array, mx.array, Experts]:
    """Rows whose experts have up to all of them."""
    return rows_of(rows, 256), chosen(rows, 2, 3), experts_of(3, (256, 64, 11), kind)


@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[:2])
def test_a_row_has_the_same_bits_whatever_is_computed_with_it(kind: Kind) -> None:
    """Row i of M rows, 1 to 32, against that row alone; and wherever it stands."""
    x, indices, layer = bits_case(kind)
    some = range(32) if ALL else (0, 1, 6, 31)
    alone = {i: output(x[i : i + 1], indices[i : i + 1], layer) for i in some}
    for m in range(2, 33) if ALL else (2, 7, 32):
        out = output(x[:m], indices[:m], layer)
        assert all(same_bits(out[i : i + 1], alone[i]) for i in some if i < m), m
    order = [*range(31, -1, -2), *range(0, 32, 2)]
    moved = output(x[mx.array(order)], indices[mx.array(order)], layer)
    where = {row: place for place, row in enumerate(order)}
    assert all(same_bits(moved[where[i]][None], alone[i]) for i in some)


def output(*case: Any, edit: Edit | None = None) -> mx.array:
    return run(through(OP, edit), *case).outputs[0]


def test_the_order_of_a_rows_experts_does_not_matter() -> None:
    """The results move with the experts, and keep their bits."""
    x, indices, layer = bits_case(rows=5)
    turned = output(x, indices[:, ::-1], layer)
    assert same_bits(turned[:, ::-1], output(x, indices, layer))


def test_a_row_that_is_not_finite_stays_alone() -> None:
    """Others of the same expert keep their bits when one overflowed."""
    x, indices, layer = bits_case(rows=6)
    broken = mx.where(mx.arange(6)[:, None] == 2, mx.nan, x)
    clean, got = (output(rows, indices, layer) for rows in (x, broken))
    assert mx.isnan(got[2]).all()
    for row in (row for row in range(6) if row != 2):
        assert same_bits(clean[row], got[row])


@pytest.mark.parametrize(("rows", "taken", "experts"), [(1, 8, 16), (16, 8, 16), (16, 2, 32)])
@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[1:2])
def test_traffic(kind: Kind, rows: int, taken: int, experts: int) -> None:
    """The counts of `metal_kernels/README.md`: the threadgroups of an expert read its weights once,
    and again from caches for every four rows more; its rows once for the columns of a simdgroup."""
    n, k = 32, 512
    x, weights = rows_of(rows, k, mx.bfloat16), stacked(experts, n, k, kind, mx.bfloat16)
    indices = chosen(rows, taken, experts).reshape(-1)
    outcome = run(through(PRODUCT), x, indices, weights, build="traffic")
    (record,) = outcome.records
    counts = Counter(np.array(indices).tolist())
    tiles = sum(-(-count // grouped_experts.ROWS) for count in counts.values())
    expert = weights.values.nbytes // experts
    assert outcome.traffic["weight"].group_loads == len(counts) * expert
    assert outcome.traffic["weight"].loads == tiles * expert
    for name, part in (("scales", weights.scales), ("biases", weights.biases)):
        if part is not None:
            assert outcome.traffic[name].group_loads == len(counts) * part.nbytes // experts
    assert outcome.traffic["x"].loads == indices.size * k * 2 * n // 4
    assert outcome.traffic["out"].stores == indices.size * n * 2
    assert record.threadgroup_bytes == record.work.barriers == 0


FAULTS: list[Edit] = [
    ("pair, lane) < pair", "pair, lane) <= pair"),
    ("indices, expert, 0, pair, lane) < pair", "indices, expert, 1, pair, lane) < pair"),
    ("expert, 0, pair, lane) < pair", "expert, 0, pair, lane) > pair"),
    ("== expert ? at", ">= expert ? at"),
    ("from + lane;", "from + lane + 1;"),
    ("return simd_min(found)", "return found"),
    ("pair + 1, P, lane", "pair + 2, P, lane"),
    ("P = threadgroups_per_grid.y", "P = indices_shape[0]"),
    ("pair / (P / R)", "pair % R"),
    ("pairs[i] = pair;", "pairs[i] = pair + 1;"),
    ("count += 1;", "count = 1;"),
    ("expert * N + min", "min"),
    ("min(column + c, N - 1)", "column + c"),
    ("sum[i] = 0.0f;", "sum[0] = 0.0f;"),
    ("if (row < count) {\n          float4", "if (true) {\n          float4"),
    ("if (row < count) {\n        float", "if (true) {\n        float"),
    ("rows, count, columns", "rows, 1, columns"),
    ("rows, count, columns", "pairs, count, columns"),
    ("size_t(pairs[row])", "size_t(rows[row])"),
    ("float(bias[columns[c]])", "float(bias[column + c])"),
    ("lane == 0 && column", "column"),
    ("column + c < N)", "column + c <= N)"),
    ("weight_shape[1]", "weight_shape[0]"),
]


@pytest.mark.quick_every(5)
@pytest.mark.parametrize("edit", FAULTS)
def test_planted_faults_are_caught(edit: Edit) -> None:
    weights = stacked(5, 35, 192, KINDS[1], biased=True)
    some = mx.array([2, 0, 2]), chosen(21, 2, 5).reshape(-1)
    cases = [
        (rows_of(count, 192), each, weights) for count, each in zip((3, 21), some, strict=True)
    ]
    assert caught(PRODUCT, edit, cases, 1e-4)
