"""The recorded text is what MLX would compile, and whole programs run with emulated kernels."""

import re
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import pytest

from .emulator import Emulator, Refused, caught, check, emulated, run
from .kit import kernel
from .trace import Spec, trace

BODY = "uint i = thread_position_in_grid.x; o[i] = T(a[i] * s + N + b_shape[0]);"
SCALE = kernel(
    BODY,
    "a b s",
    {"o": ((10,), mx.bfloat16)},
    10,
    4,
    header="template <typename T> T own(T x) { return x; }\n",
    template=[("T", mx.bfloat16), ("N", 3), ("B", True)],
)
ARRAYS = (mx.ones(10), mx.ones((2, 3)), mx.array(2.0))


def test_the_versions_the_facts_were_found_on() -> None:
    """Both ways of reading the text are experimental in MLX: look again when it moves."""
    assert version("mlx").startswith("0.32."), "check test_trace.py against the new MLX"


def test_the_recorded_text_is_what_mlx_prints(capfd: pytest.CaptureFixture[str]) -> None:
    """`verbose=True` prints the text given to the compiler; the callback must agree with it."""
    made: Any = mx.fast.metal_kernel(
        name="k", input_names=["a"], output_names=["o"], source=BODY[:35]
    )

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


def test_launches_are_recorded_in_order_with_sizes_and_types() -> None:
    """Two launches of one function, other operations between them."""

    def twice(a: mx.array, b: mx.array, s: mx.array) -> mx.array:
        first = SCALE(mx.exp(a), b, s)[0]
        return SCALE(first.astype(mx.float32), b, s)[0]

    first, second = trace(twice, *ARRAYS)
    assert first.grid == (10, 1, 1)
    assert first.threadgroup == (4, 1, 1)
    assert first.inputs == (
        Spec((10,), mx.float32),
        Spec((2, 3), mx.float32),
        Spec((), mx.float32),
    )
    assert first.outputs == (Spec((10,), mx.bfloat16),)
    assert second.source == first.source
    assert re.search(r"template <typename T, int N, bool B>", first.source)
    assert "const constant float& s" in first.source  # 0-d inputs come by reference
    assert "const constant float* b [[" in first.source  # and small ones as constants


def test_template_arguments_metadata_and_scalars() -> None:
    """What the kernel was instantiated with reaches it; Python numbers are inputs too."""
    check(SCALE, lambda a, b, s: (a * s + 3 + 2).astype(mx.bfloat16), *ARRAYS)
    with emulated() as emulator:
        got = SCALE(mx.ones(10), ARRAYS[1], 4)[0]
    assert (got == 9).all().item()
    assert [r.launch.name for r in emulator.records] == [emulator.records[0].launch.name]


def test_whole_programs_run_with_emulated_kernels() -> None:
    """Kernels made inside run when called, also in functions under `mx.compile`."""

    @mx.compile
    def program(a: mx.array) -> mx.array:
        for _ in range(3):
            a = mx.tanh(SCALE(a, ARRAYS[1], ARRAYS[2])[0].astype(mx.float32))
        return a

    with emulated() as emulator:
        got = program(mx.zeros(10))
    assert len(emulator.records) == 3
    wanted = mx.zeros(10)
    for _ in range(3):
        wanted = mx.tanh((wanted * 2 + 5).astype(mx.bfloat16).astype(mx.float32))
    assert mx.array_equal(got, wanted)
    with pytest.raises(RuntimeError, match="No Metal"):
        SCALE(*ARRAYS)


def test_a_kernel_that_exists_is_launched_by_hand() -> None:
    """`Emulator.launch` is what a dispatcher gets in place of calling the kernel."""
    made: Any = mx.fast.metal_kernel(
        name="k", input_names=["a"], output_names=["o"], source="o[0] = a[0] + 1;"
    )

    def ours(a: mx.array, launch) -> mx.array:
        return launch(
            made,
            inputs=[a],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.float32],
        )[0]

    check(ours, lambda a: a[:1] + 1, mx.ones(9))
    assert ours(mx.ones(9), Emulator().launch).item() == 2


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


def test_mutants_are_caught_or_shown_to_survive() -> None:
    """The kernel tests count on it: a caught mutant says by which run, a surviving one raises."""
    body = """
    threadgroup float s[32];
    uint l = thread_position_in_grid.x;
    s[l] = a[l];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (l < 31) o[l] = s[l + 1] * 1.0f;
    if (l == 31) o[l] = 0;
    """
    fn = kernel(body, "a", {"o": ((32,), mx.float32)})
    a = mx.random.normal((32,), key=mx.random.key(0))

    def reference(a: mx.array) -> mx.array:
        return mx.concatenate([a[1:], mx.zeros(1)])

    check(fn, reference, a)
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup)"
    assert "differ" in caught(fn, reference, a, old="s[l + 1]", new="s[l]")
    assert "differ" in caught(fn, reference, a, old=barrier, new="")
    weak = "threadgroup_barrier(mem_flags::mem_none)"
    assert caught(fn, reference, a, old=barrier, new=weak).startswith("[race, forward] race")
    assert "sanitizer" in caught(fn, reference, a, old="l < 31", new="l <= 31")
    with pytest.raises(AssertionError, match="nothing changed"):
        caught(fn, reference, a, old="* 1.0f", new="")
    with pytest.raises(AssertionError, match="not in the text"):
        caught(fn, reference, a, old="tg_barrier", new="")


def test_unset_outputs_are_nan() -> None:
    """What a kernel forgets to write can hardly pass for a result."""
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        fn = kernel("if (a[0] > 1) o[0] = 1;", "a", {"o": ((3,), dtype)}, 1)
        assert mx.isnan(run(fn, mx.ones(8)).outputs[0]).all().item()


def test_what_mlx_may_write_is_understood() -> None:
    """Every attribute MLX can pass is emulated or refused by name."""
    with pytest.raises(Refused, match="grid_origin"):
        run(kernel("o[0] = grid_origin.x;", "a", {"o": ((1,), mx.float32)}, 1), mx.ones(1))


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


def test_vector_loads_and_copies_are_counted_whole() -> None:
    """Wide loads, copies of structs and of local arrays: no byte is missed."""
    header = "struct Eight { float values[8]; };\n"
    body = """
    uint i = thread_position_in_grid.x;
    float4 v = ((const device float4*)a)[i];
    Eight e = ((const device Eight*)a)[i];
    float sum = v.x + v.w;
    for (int k = 0; k < 8; k++) sum += e.values[k];
    o[i] = sum;
    """
    fn = kernel(body, "a", {"o": ((4,), mx.float32)}, 4, header=header)
    traffic = run(fn, mx.ones(32), build="traffic").traffic
    assert traffic["a"].touched_loads == 128
    assert 4 * (8 + 32) <= traffic["a"].loads <= 4 * (16 + 32)
