"""Simdgroup and quadgroup functions against numpy, lane by lane, in every order of threads."""

import re

import mlx.core as mx
import numpy as np
import pytest

from .emulator import run
from .kit import kernel

SCHEDULES = ("forward", "reverse", "random:5")
LANE = np.arange(64) % 32
OTHER = np.array([3 * i % 32 for i in range(32)])


def two_groups(values: np.ndarray) -> np.ndarray:
    return values.reshape(2, 32)


def shifted(x: np.ndarray, by: int) -> np.ndarray:
    """Lane i gets lane i + by; past the ends a lane keeps its own value."""
    at = np.arange(32) + by
    return x[:, np.where((at >= 0) & (at < 32), at, np.arange(32))]


REDUCTIONS = {
    "simd_sum(x)": lambda x: x.sum(1, keepdims=True),
    "simd_product(x)": lambda x: x.prod(1, keepdims=True),
    "simd_max(x)": lambda x: x.max(1, keepdims=True),
    "simd_min(x)": lambda x: x.min(1, keepdims=True),
    "simd_and(x)": lambda x: np.bitwise_and.reduce(x, 1)[:, None],
    "simd_or(x)": lambda x: np.bitwise_or.reduce(x, 1)[:, None],
    "simd_xor(x)": lambda x: np.bitwise_xor.reduce(x, 1)[:, None],
    "simd_prefix_inclusive_sum(x)": lambda x: x.cumsum(1),
    "simd_prefix_exclusive_sum(x)": lambda x: x.cumsum(1) - x,
    "simd_prefix_inclusive_product(x | 1)": lambda x: (x | 1).cumprod(1),
    "simd_prefix_exclusive_product(x | 1)": lambda x: (x | 1).cumprod(1) // (x | 1),
    "simd_shuffle(x, 3 * lane % 32)": lambda x: x[:, OTHER],
    "simd_broadcast(x, 7)": lambda x: x[:, 7:8],
    "simd_broadcast_first(x)": lambda x: x[:, :1],
    "simd_shuffle_xor(x, 5)": lambda x: x[:, np.arange(32) ^ 5],
    "simd_shuffle_down(x, 3)": lambda x: shifted(x, 3),
    "simd_shuffle_up(x, 3)": lambda x: shifted(x, -3),
    "simd_shuffle_rotate_down(x, 3)": lambda x: np.roll(x, -3, 1),
    "simd_shuffle_rotate_up(x, 3)": lambda x: np.roll(x, 3, 1),
    "simd_shuffle_and_fill_down(x, 100 + int(lane), 3)": lambda x: np.concatenate(
        [x[:, 3:], np.tile(100 + np.arange(3), (2, 1))], 1
    ),
    "simd_shuffle_and_fill_up(x, 100 + int(lane), 3)": lambda x: np.concatenate(
        [np.tile(129 + np.arange(3), (2, 1)), x[:, :29]], 1
    ),
    "simd_all(x > -9)": lambda x: (x > -9).all(1, keepdims=True),
    "simd_all(x > 0)": lambda x: (x > 0).all(1, keepdims=True),
    "simd_any(x > 3)": lambda x: (x > 3).any(1, keepdims=True),
    "simd_any(x > 99)": lambda x: (x > 99).any(1, keepdims=True),
    "simd_is_first()": lambda x: np.arange(32) == 0,
    "int(ulong(simd_ballot(x > 1)))": lambda x: ((x > 1) << np.arange(32)).sum(1, keepdims=True),
    "int(ulong(simd_active_threads_mask()))": lambda x: -1,
    "quad_sum(x)": lambda x: x.reshape(2, 8, 4).sum(2).repeat(4, 1),
    "quad_max(x)": lambda x: x.reshape(2, 8, 4).max(2).repeat(4, 1),
    "quad_broadcast(x, 2)": lambda x: x.reshape(2, 8, 4)[:, :, 2].repeat(4, 1),
    "quad_shuffle_xor(x, 1)": lambda x: x[:, np.arange(32) ^ 1],
}


def test_every_simd_function_gives_every_lane_its_value() -> None:
    """One kernel with one output a function: two simdgroups that must not see each other."""
    lines = [f"o{i}[at] = int({call});" for i, call in enumerate(REDUCTIONS)]
    body = "uint at = thread_position_in_grid.x; uint lane = thread_index_in_simdgroup;\n"
    outputs = {f"o{i}": ((64,), mx.int32) for i in range(len(REDUCTIONS))}
    fn = kernel(body + "int x = a[at];\n" + "\n".join(lines), "a", outputs, 64)
    values = np.random.default_rng(1).integers(-3, 5, 64).astype(np.int32)
    x = two_groups(values)
    for schedule in SCHEDULES:
        outcome = run(fn, mx.array(values), schedule=schedule)
        assert not outcome.findings
        for (call, want), got in zip(REDUCTIONS.items(), outcome.outputs, strict=True):
            wanted = np.broadcast_to(want(x), (2, 32)).astype(np.int32)
            np.testing.assert_array_equal(two_groups(np.array(got)), wanted, call)


@pytest.mark.parametrize("dtype", ["float", "half", "bfloat", "float4", "ulong"])
def test_simd_functions_take_every_type(dtype: str) -> None:
    """Sums of small integers are exact in every type, whatever the order."""
    body = f"""
    uint at = thread_position_in_grid.x;
    {dtype} x = {dtype}(a[at]);
    o[at] = float(simd_sum(x){".w" if dtype == "float4" else ""});
    p[at] = float(simd_shuffle_xor(x, 1){".x" if dtype == "float4" else ""});
    """
    outputs = {"o": ((32,), mx.float32), "p": ((32,), mx.float32)}
    values = np.arange(32, dtype=np.float32) % 5
    o, p = run(kernel(body, "a", outputs), mx.array(values)).outputs
    assert (np.array(o) == values.sum()).all()
    np.testing.assert_array_equal(np.array(p), values[np.arange(32) ^ 1])


def test_simd_sum_adds_in_the_butterfly_order() -> None:
    """Neighbours first, then pairs of pairs: the order MLX's own kernels are built on."""
    values = np.random.default_rng(2).normal(size=32).astype(np.float32)
    tree = values.copy()
    for step in (1, 2, 4, 8, 16):
        tree = tree + tree[np.arange(32) ^ step]
    o = run(
        kernel(
            "uint i = thread_position_in_grid.x; o[i] = simd_sum(a[i]);",
            "a",
            {"o": ((32,), mx.float32)},
        ),
        mx.array(values),
    ).outputs[0]
    np.testing.assert_array_equal(np.array(o), tree)


def test_lanes_that_have_ended_take_no_part() -> None:
    """A partial simdgroup, and lanes that return early, leave the sums of the others right."""
    body = """
    uint i = thread_position_in_grid.x;
    o[i] = simd_sum(a[i]);
    p[i] = simd_prefix_inclusive_sum(a[i]);
    m[i] = uint(ulong(simd_active_threads_mask()));
    if (i % 2) return;
    o[i] = simd_sum(a[i]);
    """
    outputs = {"o": ((40,), mx.int32), "p": ((40,), mx.int32), "m": ((40,), mx.uint32)}
    a = np.arange(40, dtype=np.int32)
    for schedule in SCHEDULES:
        outcome = run(kernel(body, "a", outputs, 40), mx.array(a), schedule=schedule)
        assert not outcome.findings
        o, p, m = (np.array(x) for x in outcome.outputs)
        even, group = a % 2 == 0, a // 32
        for g in (0, 1):
            here = group == g
            assert (o[here & even] == a[here & even].sum()).all()
            assert (o[here & ~even] == a[here].sum()).all()
            np.testing.assert_array_equal(p[here], a[here].cumsum())
        assert (m[:32] == 0xFFFFFFFF).all()
        assert (m[32:] == 0xFF).all()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("if (i < 16) x = simd_sum(x);", "lane 0 .*simd_sum.*(ended|threadgroup_barrier)"),
        ("if (i < 16) x = simd_sum(x); else\n x = simd_max(x);", "different places"),
        ("if (i < 16) x = simd_sum(x); else\n x = simd_sum(x);", "different places"),
        ("if (i == 3) return; x = simd_shuffle(x, 3);", "lane that is not there"),
        ("x = simd_shuffle(x, 32 + i);", "lane that is not there"),
    ],
)
def test_divergence_and_lanes_that_left_are_found(line: str, message: str) -> None:
    """Undefined on a Mac: never a number here."""
    tail = "threadgroup_barrier(mem_flags::mem_none); o[i] = x;"
    if "return" in line:
        tail = "o[i] = x;"
    body = f"uint i = thread_position_in_grid.x; float x = a[i];\n{line}\n{tail}"
    for schedule in SCHEDULES:
        outcome = run(kernel(body, "a", {"o": ((32,), mx.float32)}), mx.ones(32), schedule=schedule)
        assert not outcome.outputs
        (finding,) = outcome.findings
        assert finding.kind in ("divergence", "undefined")
        assert re.search(message, finding.text), finding
