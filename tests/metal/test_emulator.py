"""The emulator itself: that it catches what would be wrong on a Mac, and says nothing else."""

import mlx.core as mx
import pytest

from .emulator import KernelFault, check, emulated, run
from .kit import kernel

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


@pytest.mark.quick_every(3)
@pytest.mark.parametrize("body", [SUM, ROWS, LANES])
def test_right_kernels_have_no_findings(body: str) -> None:
    """No false alarm in any build or schedule."""
    a = mx.random.normal((128,), key=mx.random.key(0))
    wanted = run(clean(body), a).outputs[0]
    check(clean(body), lambda a: wanted, a)


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
def test_races_are_found_whatever_the_schedule(body: str) -> None:
    """Missing barriers, too weak ones, and two threadgroups at one address."""
    for schedule in ("forward", "reverse", "random:9"):
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


def test_unset_locals_change_with_the_build() -> None:
    """A local that is read unset gives two different answers, so one of them is wrong."""
    body = "float x; if (a[i] > 2) x = 1; o[i] = x;"
    got = [run(clean(body), mx.ones(128), build=b).outputs[0] for b in ("pattern", "zero")]
    assert not mx.array_equal(got[0], got[1])


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
