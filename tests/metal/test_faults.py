"""Planted faults: each build finds what it is there for, and clean kernels are left alone."""

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


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random:9"])
@pytest.mark.parametrize(
    "body",
    [
        SUM.replace(f"threadgroup_barrier({FULL});", ""),
        SUM.replace(FULL, "mem_flags::mem_none"),
        SUM.replace(FULL, "mem_flags::mem_device"),
        ROWS.replace(f"threadgroup_barrier({FULL});", f"simdgroup_barrier({FULL});", 1),
        ROWS.replace(f"threadgroup_barrier({FULL});\nif", "if"),
        LANES.replace("l ^ 1", "(l + 32) % 64"),
        LANES.replace(f"simdgroup_barrier({FULL});", "simd_sum(a[i]);"),
        "o[i / 2] = a[i]; o[64 + l] = a[l];",
    ],
)
def test_races_are_found_whatever_the_schedule(body: str, schedule: str) -> None:
    """Missing barriers, too weak ones, and two threadgroups at one address."""
    assert "race" in kinds(body, "race", schedule)


def test_a_race_names_its_lines() -> None:
    """Both accesses, as lines of the text MLX gives to the compiler."""
    outcome = run(
        clean(SUM.replace(f"threadgroup_barrier({FULL});", "")), mx.ones(128), build="race"
    )
    finding = outcome.findings[0]
    lines = outcome.records[0].launch.source.splitlines()
    assert {lines[n - 1].strip() for n in finding.lines} <= {"s[l] = a[i];", "o[i] = s[63 - l];"}
    assert "s at byte" in finding.text


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


def test_order_dependence_shows() -> None:
    """The last thread to write wins: forward and reverse differ."""
    body = "o[i] = 0; if (l % 32 == 0) o[0] = i;"
    got = [run(clean(body), mx.ones(128), schedule=s).outputs[0] for s in ("forward", "reverse")]
    assert not mx.array_equal(got[0], got[1])


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
