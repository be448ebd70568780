"""Threads, buffers and memory: what a kernel is given and what becomes of what it writes."""

import mlx.core as mx
import numpy as np
import pytest

from .emulator import check, run
from .kit import ATOMICS, ATTRIBUTES, MATRIX, kernel

SCHEDULES = ("forward", "reverse", "random:5")


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


REVERSE = """
threadgroup float values[64], more[2][32];
threadgroup float4 corner;
uint i = thread_position_in_grid.x, l = thread_position_in_threadgroup.x;
values[l] = a[i];
more[l / 32][l % 32] = -a[i];
if (l == 5) corner = float4(a[i]);
threadgroup_barrier(mem_flags::mem_threadgroup);
o[i] = values[63 - l] + more[0][l % 32] + corner.w;
"""


def test_threadgroup_memory() -> None:
    """Several variables in one statement, arrays of arrays, vectors; three threadgroups."""
    a = mx.random.normal((192,), key=mx.random.key(1))

    def reference(a: mx.array) -> mx.array:
        rows = a.reshape(3, 64)
        half = mx.concatenate([rows[:, :32]] * 2, 1)
        return (rows[:, ::-1] + -half + rows[:, 5:6]).reshape(-1)

    outcome = check(kernel(REVERSE, "a", {"o": ((192,), mx.float32)}, 192, 64), reference, a)
    assert outcome.records[0].threadgroup_bytes == 64 * 4 + 64 * 4 + 16


HELPER = """
inline void fill(threadgroup float* to, uint l, float value) { to[l] = value; }
constant constexpr float table[4] = {1, 10, 100, 1000};
template <typename T, int N> struct Tile {
  threadgroup T* data;
  T get(int i) const { return data[i % N]; }
};
"""


def test_helpers_and_constants() -> None:
    """Pointers to threadgroup memory as arguments and members, constants outside the kernel."""
    body = """
    threadgroup float s[32];
    threadgroup float* p = s;
    uint l = thread_position_in_grid.x;
    fill(p, l, a[l] * table[l % 4]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Tile<float, 32> tile = {s};
    o[l] = tile.get(l + 1);
    """
    a = mx.arange(32).astype(mx.float32)
    check(
        kernel(body, "a", {"o": ((32,), mx.float32)}, header=HELPER),
        lambda a: mx.roll(a * mx.array([1.0, 10, 100, 1000] * 8), -1),
        a,
    )


def test_strided_inputs_without_a_copy() -> None:
    """`ensure_row_contiguous=False`: transposed, sliced, broadcast and reversed, with strides."""
    body = """
    uint i = thread_position_in_grid.x;
    o[i] = a[elem_to_loc(int64_t(i), a_shape, a_strides, a_ndim)] * 10 + a_ndim + a_shape[0];
    p[i] = a_strides[0];
    """
    outputs = {"o": ((12,), mx.float32), "p": ((12,), mx.int32)}
    base = mx.arange(48).astype(mx.float32).reshape(8, 6)
    views = [base[:4, :3], base[::2, ::2], base[:3, :4].T, mx.broadcast_to(base[0, :3], (4, 3))]
    fn = kernel(body, "a", outputs, 12, ensure_row_contiguous=False)
    for view in [*views, base[4:0:-1, 2:5]]:
        rows = view.shape[0]
        got = run(fn, view, build="sanitize")
        assert not got.findings
        assert mx.array_equal(got.outputs[0], view.reshape(-1) * 10 + 2 + rows)
        stride = np.asarray(view).strides[0] // 4
        assert (np.array(got.outputs[1]) == stride).all()


def test_inputs_are_made_contiguous_by_default() -> None:
    """As MLX does before a launch; small and 0-d inputs come as constants."""
    body = "uint i = thread_position_in_grid.x; o[i] = a[i] * scale + small[i % 3] + a_shape[1];"
    base = mx.arange(24).astype(mx.float32).reshape(4, 6)
    fn = kernel(body, "a scale small", {"o": ((6, 4), mx.float32)}, 24)
    small = mx.array([1.0, 2.0, 3.0])
    check(
        fn,
        lambda a, s, m: a * s + mx.concatenate([m] * 8).reshape(6, 4) + 4,
        base.T,
        mx.array(3.0),
        small,
    )


@pytest.mark.parametrize(
    "dtype",
    [mx.bool_, mx.uint8, mx.int8, mx.int16, mx.uint32, mx.int64, mx.float16, mx.bfloat16],
)
def test_every_dtype_comes_in_and_out(dtype: mx.Dtype) -> None:
    """Also with the fill value that outputs start from."""
    a = mx.array([0, 1, 1, 0, 1, 1, 0, 1, 1]).astype(dtype)
    body = "uint i = thread_position_in_grid.x; if (i < 5) o[i] = a[i];"
    fn = kernel(body, "a", {"o": ((9,), dtype)}, 9, init_value=1)
    outcome = run(fn, a, build="race")
    assert not outcome.findings
    wanted = mx.where(mx.arange(9) < 5, a, mx.ones(9, dtype)).astype(dtype)
    assert outcome.outputs[0].dtype == dtype
    assert mx.array_equal(outcome.outputs[0], wanted)


def test_atomics() -> None:
    """Across threadgroups and within one, in every order, and no race to the race check."""
    a = mx.arange(-10, 86, dtype=mx.int32)

    def reference(a: mx.array) -> mx.array:
        rest = [a.sum(), a.max(), mx.minimum(a.min(), 0), mx.array(255), mx.array(192)]
        return mx.concatenate([mx.stack(rest), a.reshape(2, 48).sum(1)]).astype(mx.int32)

    outputs = {"o": ((7,), mx.int32)}
    fn = kernel(ATOMICS, "a", outputs, 96, 48, init_value=0, atomic_outputs=True)
    check(fn, reference, a)


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
