"""The emulator itself: that it catches what would be wrong on a Mac, and says nothing else."""

import re
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from .emulator import KernelFault, check, emulated, run
from .kit import ATTRIBUTES, MATRIX, kernel
from .trace import trace

SCHEDULES = ("forward", "reverse", "random:5")
RNG = np.random.default_rng(4)
PLACE = "uint i = thread_position_in_grid.x, l = thread_position_in_threadgroup.x;\n"
SUM = """
threadgroup float s[64];
s[l] = a[i];
threadgroup_barrier(mem_flags::mem_threadgroup);
o[i] = s[63 - l];
"""
ROWS = """
threadgroup float s[2];
float x = simd_sum(a[i]);
if (l % 32 == 0) s[l / 32] = x;
threadgroup_barrier(mem_flags::mem_threadgroup);
float y = s[0] + s[1];
threadgroup_barrier(mem_flags::mem_threadgroup);
if (l % 32 == 0) s[l / 32] = y * (l + 1);
threadgroup_barrier(mem_flags::mem_threadgroup);
o[i] = s[1 - l / 32];
"""
LANES = """
threadgroup float s[64];
s[l] = a[i];
simdgroup_barrier(mem_flags::mem_threadgroup);
o[i] = s[l ^ 1];
"""
FULL = "mem_flags::mem_threadgroup"
OUTPUTS = {"o": ((128,), mx.float32)}


def clean(body: str):
    return kernel(PLACE + body, "a", OUTPUTS, 128, 64)


def kinds(body: str, build: str, schedule: str = "forward", **options) -> set[str]:
    fn = kernel(PLACE + body, "a", OUTPUTS, 128, 64, **options)
    return {f.kind for f in run(fn, mx.ones(128), build=build, schedule=schedule).findings}


# Memory and order.


@pytest.mark.quick_every(3)
@pytest.mark.parametrize("body", [SUM, ROWS, LANES])
def test_right_kernels_have_no_findings(body: str) -> None:
    """No false alarm in any build or schedule."""
    a = mx.random.normal((128,), key=mx.random.key(0))
    wanted = run(clean(body), a).outputs[0]
    check(clean(body), lambda a: wanted, a)


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random:9"])
@pytest.mark.parametrize(
    "body",
    [
        SUM.replace(f"threadgroup_barrier({FULL});", ""),
        SUM.replace(FULL, "mem_flags::mem_none"),
        ROWS.replace(f"threadgroup_barrier({FULL});", f"simdgroup_barrier({FULL});", 1),
        LANES.replace("l ^ 1", "(l + 32) % 64"),
        LANES.replace(f"simdgroup_barrier({FULL});", "simd_sum(a[i]);"),
        "o[i / 2] = a[i]; o[64 + l] = a[l];",
    ],
)
def test_races_are_found_whatever_the_schedule(body: str, schedule: str) -> None:
    """Missing barriers, too weak ones, and two threadgroups at one address."""
    assert "race" in kinds(body, "race", schedule)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("threadgroup float s[64]; s[l / 2] = 1; o[i] = s[l];", "unset"),
        ("o[i] = o[i] + 1;", "unset"),
        ("if (i != 77) o[i] = a[i];", "unwritten"),
        ("((device float*)a)[i] = 2; o[i] = 1;", "write to an input"),
        ("o[i] = a[i + 1];", "outside"),
        ("o[i + 1] = a[i]; o[i] = 0;", "outside"),
        ("threadgroup float s[64]; s[l] = a[i]; o[i] = s[l + (i == 127)];", "sanitizer"),
        ("float x[4] = {1, 2, 3, 4}; o[i] = x[(int(a[i]) + 3) & 7];", "sanitizer"),
        ("o[i] = ((const device float4*)(a + 1))[i / 8].x;", "sanitizer"),
        ("o[i] = float(7 / (int(a[i]) - 1));", "sanitizer"),
        ("o[i] = float(1 << (32 * int(a[i])));", "sanitizer"),
    ],
)
def test_each_build_finds_its_faults(body: str, kind: str) -> None:
    """Unset and unwritten bytes, accesses outside, misaligned vectors, bad integer arithmetic."""
    if kind != "sanitizer":
        assert kind in kinds(body, "race")
    if kind in ("sanitizer", "outside"):
        fn = kernel(PLACE + body, "a", OUTPUTS, 128, 64)
        outcome = run(fn, mx.ones(128), build="sanitize")
        (finding,) = outcome.findings
        assert finding.kind == "sanitizer"
        assert finding.lines, finding


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("if (l < 32) threadgroup_barrier(mem_flags::mem_none); o[i] = 1;", "divergence"),
        (
            "if (l < 32) threadgroup_barrier(mem_flags::mem_none);\n"
            "else\n threadgroup_barrier(mem_flags::mem_none);\no[i] = 1;",
            "divergence",
        ),
        ("if (l < 16) simdgroup_barrier(mem_flags::mem_none); o[i] = 1;", "divergence"),
        ("threadgroup float s[8193]; s[l] = 1; o[i] = s[l];", "threadgroup memory"),
        ("while (a[0] > 0) o[i] = a[0];", "endless"),
        ("volatile float x[90000]; x[int(a[i])] = 1; o[i] = x[1];", "stack overflow"),
    ],
)
def test_what_is_always_watched(body: str, kind: str) -> None:
    """In every build, also the plain one that whole programs use."""
    fn = kernel(PLACE + body, "a", OUTPUTS, 128, 64)
    with emulated(limit=0.3) as emulator, pytest.raises(KernelFault) as caught:
        fn(mx.ones(128))
    assert caught.value.finding.kind == kind
    assert emulator.records[0].findings == (caught.value.finding,)


def test_slices_may_lie_anywhere() -> None:
    """MLX gives a slice as it lies: wide loads from it are misaligned, narrow ones are fine."""
    wide = "o[i] = ((const device float4*)a)[i / 4][i % 4];"
    narrow = wide.replace("float4", "packed_float4")
    fns = [kernel(PLACE + body, "a", OUTPUTS, 128, 64) for body in (wide, narrow)]
    a = mx.random.normal((128,), key=mx.random.key(2))
    check(fns[0], lambda a: a, a)
    check(fns[1], lambda a: a, a, shift=1)
    (finding,) = run(fns[0], a, build="sanitize", shift=1).findings
    assert "misaligned" in finding.text


def test_too_many_threads() -> None:
    """Metal's limit of 1024 a threadgroup."""
    fn = kernel("o[thread_position_in_grid.x] = a[0];", "a", {"o": ((2048,), mx.float32)}, 2048)
    with emulated(), pytest.raises(KernelFault, match="over 1024"):
        fn(mx.ones(4))


def test_unset_locals_change_with_the_build() -> None:
    """A local that is read unset gives two different answers, so one of them is wrong."""
    body = "float x; if (a[i] > 2) x = 1; o[i] = x;"
    got = [run(clean(body), mx.ones(128), build=b).outputs[0] for b in ("pattern", "zero")]
    assert not mx.array_equal(got[0], got[1])


def test_unset_outputs_are_nan() -> None:
    """What a kernel forgets to write can hardly pass for a result."""
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        fn = kernel("if (a[0] > 1) o[0] = 1;", "a", {"o": ((3,), dtype)}, 1)
        assert mx.isnan(run(fn, mx.ones(8)).outputs[0]).all().item()


def test_a_fault_does_not_outlive_its_launch() -> None:
    """After a process died the next launch is served by a fresh one, with other sizes too."""
    bad = kernel("while (a[0] > 0) o[0] = a[0];", "a", {"o": ((1,), mx.float32)}, 1)
    good = kernel(
        "o[thread_position_in_grid.x] = a[0];", "a", {"o": ((500_000,), mx.float32)}, 500_000, 500
    )
    with emulated(limit=0.2):
        for _ in range(2):
            with pytest.raises(KernelFault, match="endless"):
                bad(mx.ones(1))
            assert good(mx.ones(1))[0].sum().item() == 500_000


def test_every_thread_knows_its_place_also_in_threadgroups_at_the_edge() -> None:
    """Metal's `dispatch_threads`: smaller threadgroups where the grid is no multiple."""
    grid, group = (7, 5, 3), (4, 3, 2)
    fn = kernel(ATTRIBUTES, "a", {"o": ((3, 5, 7, 24), mx.int32)}, grid, group)
    for schedule in SCHEDULES:
        o = np.array(run(fn, mx.zeros(1), schedule=schedule).outputs[0])
        for z, y, x in np.ndindex(3, 5, 7):
            place, size = (x, y, z), [0] * 3
            inside, which = [0] * 3, [0] * 3
            for d in range(3):
                which[d], inside[d] = divmod(place[d], group[d])
                size[d] = min(group[d], grid[d] - which[d] * group[d])
            index = (inside[2] * size[1] + inside[1]) * size[0] + inside[0]
            simds = -(-size[0] * size[1] * size[2] // 32)
            expected = [*place, *inside, *which, 2, 2, 2, *size, *group]
            expected += [index, index % 32, index // 32, simds, 32, index % 4]
            assert o[z, y, x].tolist() == expected


# Lanes of a simdgroup.


def in_groups(values: np.ndarray) -> np.ndarray:
    return values.reshape(2, 32)


# What our kernels call, and what a lane gets.
CALLS = {
    "simd_sum(x)": lambda x: x.sum(1, keepdims=True),
    "simd_min(x)": lambda x: x.min(1, keepdims=True),
    "simd_max(x)": lambda x: x.max(1, keepdims=True),
    "simd_prefix_inclusive_sum(x)": lambda x: x.cumsum(1),
    "simd_prefix_exclusive_sum(x)": lambda x: x.cumsum(1) - x,
    "simd_shuffle(x, 3 * lane % 32)": lambda x: x[:, 3 * np.arange(32) % 32],
    "simd_shuffle_xor(x, 5)": lambda x: x[:, np.arange(32) ^ 5],
    "simd_broadcast(x, 7)": lambda x: x[:, 7:8],
    "simd_all(x > 0)": lambda x: (x > 0).all(1, keepdims=True),
    "simd_any(x > 3)": lambda x: (x > 3).any(1, keepdims=True),
}


def test_every_simd_function_gives_every_lane_its_value() -> None:
    """One kernel with one output a function: two simdgroups that must not see each other."""
    lines = [f"o{i}[at] = int({call});" for i, call in enumerate(CALLS)]
    body = "uint at = thread_position_in_grid.x; uint lane = thread_index_in_simdgroup;\n"
    outputs = {f"o{i}": ((64,), mx.int32) for i in range(len(CALLS))}
    fn = kernel(body + "int x = a[at];\n" + "\n".join(lines), "a", outputs, 64)
    values = np.random.default_rng(1).integers(-3, 5, 64).astype(np.int32)
    x = in_groups(values)
    for schedule in SCHEDULES:
        outcome = run(fn, mx.array(values), schedule=schedule)
        assert not outcome.findings
        for (call, want), got in zip(CALLS.items(), outcome.outputs, strict=True):
            wanted = np.broadcast_to(want(x), (2, 32)).astype(np.int32)
            np.testing.assert_array_equal(in_groups(np.array(got)), wanted, call)


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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_simdgroup_matrices(dtype: mx.Dtype) -> None:
    """Load with stride, origin and transpose, multiply-accumulate in float, store, lane layout."""
    rng = np.random.default_rng(1)
    a, b = (mx.array(rng.integers(-4, 5, n).astype(np.float32)) for n in ((10, 10), (8, 8)))
    outputs = {"o": ((8, 9), mx.float32), "p": ((32,), mx.float32), "q": ((32, 2), mx.float32)}
    fn = kernel(MATRIX, "a b", outputs, template=[("T", dtype)], init_value=0)

    def reference(a: mx.array, b: mx.array) -> list[mx.array]:
        x, y = a.astype(mx.float32)[2:, 1:9], b.astype(mx.float32).T
        z = x @ y + 0.5
        lane = np.arange(32)
        row = ((lane // 4) & 4) + (lane // 2) % 4
        column = ((lane // 4) & 2) * 2 + (lane % 2) * 2
        own = mx.stack([z[mx.array(row), mx.array(column + i)] for i in (0, 1)], 1)
        return [mx.pad(2 * z, [(0, 0), (1, 0)]), x.reshape(-1)[:32], own]

    check(fn, reference, a.astype(dtype), b.astype(dtype))


# Numbers.


def bits(array: mx.array) -> np.ndarray:
    return np.array(array.view({1: mx.uint8, 2: mx.uint16, 4: mx.uint32}[array.dtype.size]))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_narrow_arithmetic_rounds_after_each_operation(dtype: mx.Dtype) -> None:
    """`a * b + c` in two roundings, as MLX's own ops of this type give it, bit for bit."""
    n = 512
    raw = [mx.array(RNG.normal(size=n) * 10.0 ** RNG.integers(-6, 5, n)) for _ in range(3)]
    a, b, c = (x.astype(mx.float32).astype(dtype) for x in raw)
    body = """
    uint i = thread_position_in_grid.x;
    T sum = a[i] + b[i], product = a[i] * b[i];
    o[i] = sum; p[i] = product; q[i] = product + c[i]; r[i] = a[i] / b[i]; s[i] = -a[i] - c[i];
    t[i] = static_cast<T>(f[i]);
    u[i] = float(a[i]) * f[i];
    """
    names = {n: ((n_,), dtype) for n, n_ in zip("opqrst", [n] * 6, strict=True)}
    fn = kernel(body, "a b c f", {**names, "u": ((n,), mx.float32)}, n, template=[("T", dtype)])
    f = mx.array(RNG.normal(size=n).astype(np.float32) * 10.0 ** RNG.integers(-9, 6, n))
    f = mx.where(mx.arange(n) == 3, float("nan"), mx.where(mx.arange(n) == 4, float("inf"), f))
    f = f.astype(mx.float32)
    got = run(fn, a, b, c, f).outputs
    wanted = [a + b, a * b, a * b + c, a / b, -a - c, f.astype(dtype), a.astype(mx.float32) * f]
    for name, x, y in zip("opqrstu", got, wanted, strict=True):
        nan = mx.isnan(y)
        assert mx.array_equal(mx.isnan(x), nan), name
        zero = mx.array(0, x.dtype)
        x, y = mx.where(nan, zero, x), mx.where(nan, zero, y)
        np.testing.assert_array_equal(bits(x), bits(y), name)


def test_literals_are_float_and_types_widen_as_in_metal() -> None:
    """`0.1` is a float; half with float is float; bfloat with bfloat stays bfloat."""
    body = """
    static_assert(is_same_v<decltype(0.1), float>);
    static_assert(is_same_v<decltype(h[0] * h[0]), half>);
    static_assert(is_same_v<decltype(h[0] * 2.0), float>);
    static_assert(is_same_v<decltype(h[0] * 2.0h), half>);
    static_assert(is_same_v<decltype(b[0] * b[0]), bfloat>);
    static_assert(is_same_v<decltype(b[0] * 2), bfloat>);
    static_assert(is_same_v<decltype(b[0] * 2.0f), float>);
    static_assert(is_same_v<decltype(b[0] < b[0]), bool>);
    half k = thread_position_in_grid.x == 0 ? h[0] : 0.0;
    o[0] = 0.1 + 0.2;
    o[1] = k;
    o[2] = float(bfloat(1.00390625f)) + Limits<half>::max;
    o[3] = as_type<float>(0x40490fdbu) + ceildiv(7, 2) + log1p(0.0f);
    """
    fn = kernel(body, "h b", {"o": ((4,), mx.float32)}, 1)
    o = np.array(run(fn, mx.ones(8, mx.float16), mx.ones(8, mx.bfloat16)).outputs[0])
    expected = [np.float32(0.1) + np.float32(0.2), 1.0, np.inf, np.float32(np.pi) + 4]
    np.testing.assert_array_equal(o, np.array(expected, np.float32))


# What is run, counted and compared.


def test_the_versions_the_facts_were_found_on() -> None:
    """Both ways of reading the text are experimental in MLX: look again when it moves."""
    assert version("mlx").startswith("0.32."), "check test_emulator.py against the new MLX"


def test_the_recorded_text_is_what_mlx_prints(capfd: pytest.CaptureFixture[str]) -> None:
    """`verbose=True` prints the text given to the compiler; the callback must agree with it."""
    made: Any = mx.fast.metal_kernel(name="k", input_names=["a"], output_names=["o"], source=PLACE)

    def call(a: mx.array) -> mx.array:
        return made(
            inputs=[a],
            grid=(10, 1, 1),
            threadgroup=(4, 1, 1),
            output_shapes=[(10,)],
            output_dtypes=[mx.float32],
            verbose=True,
        )[0]

    (launch,) = trace(call, mx.ones(10))
    printed = capfd.readouterr().out
    assert launch.source.strip() in printed
    assert "thread_position_in_grid" in launch.source


def test_wrong_results_fail_the_check() -> None:
    """A wrong number, a wrong type, a missing kernel and a finding all fail, each by name."""
    good = kernel("o[thread_position_in_grid.x] = a[0];", "a", {"o": ((4,), mx.float32)}, 4)
    a = mx.ones(8)
    one = mx.ones(4)
    check(good, lambda a: one, a)
    with pytest.raises(AssertionError, match=r"\[plain, forward\] output 0: 4 of 4 differ"):
        check(good, lambda a: one * 2, a)
    check(good, lambda a: one * (1 + 1e-6), a, rtol=1e-5)
    with pytest.raises(AssertionError, match="float32, not"):
        check(good, lambda a: one.astype(mx.float16), a)
    with pytest.raises(AssertionError, match="shape"):
        check(good, lambda a: mx.ones(3), a)
    with pytest.raises(AssertionError, match="no kernel ran"):
        check(lambda a: a, lambda a: a, a)
    racy = kernel("o[0] = a[0];", "a", {"o": ((1,), mx.float32)}, 4)
    with pytest.raises(AssertionError, match=r"\[race, forward\] race: o at byte 0"):
        check(racy, lambda a: one[:1], a)
    nan = kernel("o[thread_position_in_grid.x] = NAN;", "a", {"o": ((4,), mx.float32)}, 4)
    check(nan, lambda a: one * float("nan"), a)
    with pytest.raises(AssertionError, match="differ"):
        check(nan, lambda a: one, a, atol=1e9)


def test_traffic_is_counted_by_buffer() -> None:
    """Bytes of each thread, and distinct bytes by simdgroup, threadgroup and launch."""
    body = """
    uint i = thread_position_in_grid.x, l = thread_position_in_threadgroup.x;
    float sum = 0;
    for (uint k = 0; k < 64; k++) sum += w[k];
    o[i] = sum + x[i] + float4(v[l % 2]).x;
    """
    fn = kernel(body, "w x v", {"o": ((256,), mx.float32)}, 256, 128)
    for build in ("traffic", "race"):
        outcome = run(fn, mx.ones(64), mx.ones(256), mx.ones(9, mx.float16), build=build)
        assert not outcome.findings
        w, x, v, o = (outcome.traffic[name] for name in "wxvo")
        assert (w.loads, w.simd_loads, w.group_loads, w.touched_loads) == (65536, 2048, 512, 256)
        assert (x.loads, x.simd_loads, x.group_loads, x.touched_loads) == (1024,) * 4
        assert (v.loads, v.simd_loads, v.group_loads, v.touched_loads) == (512, 32, 8, 4)
        assert (o.stores, o.group_stores, o.touched_stores, o.loads) == (1024, 1024, 1024, 0)
