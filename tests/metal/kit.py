"""Small kernels for the emulator's own tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx

Size = tuple[int, int, int]
Outputs = Mapping[str, tuple[Sequence[int], mx.Dtype]]
ATTRIBUTES = """
uint3 p = thread_position_in_grid, t = thread_position_in_threadgroup;
uint3 g = threadgroup_position_in_grid, n = threadgroups_per_grid, s = threads_per_threadgroup;
uint3 whole = threads_per_grid, full = dispatch_threads_per_threadgroup;
uint at = (p.z * whole.y + p.y) * whole.x + p.x;
device int* row = o + at * 24;
row[0] = p.x; row[1] = p.y; row[2] = p.z; row[3] = t.x; row[4] = t.y; row[5] = t.z;
row[6] = g.x; row[7] = g.y; row[8] = g.z; row[9] = n.x; row[10] = n.y; row[11] = n.z;
row[12] = s.x; row[13] = s.y; row[14] = s.z; row[15] = full.x; row[16] = full.y; row[17] = full.z;
row[18] = thread_index_in_threadgroup; row[19] = thread_index_in_simdgroup;
row[20] = simdgroup_index_in_threadgroup; row[21] = simdgroups_per_threadgroup;
row[22] = threads_per_simdgroup; row[23] = thread_index_in_quadgroup;
"""
MATRIX = """
threadgroup T s[8 * 11 + 5];
uint l = thread_index_in_simdgroup;
simdgroup_matrix<T, 8, 8> x, y;
simdgroup_matrix<float, 8, 8> z = make_filled_simdgroup_matrix<float, 8, 8>(0.5f), w(2.0f);
simdgroup_load(x, a, 10, ulong2(1, 2));
simdgroup_load(y, b, 8, ulong2(0, 0), true);
simdgroup_multiply_accumulate(z, x, y, z);
simdgroup_multiply(w, z, w);
simdgroup_store(w, o, 9, ulong2(1, 0));
simdgroup_store(x, s, 11);
threadgroup_barrier(mem_flags::mem_threadgroup);
p[l] = float(s[11 * (l / 8) + l % 8]);
q[l * 2] = z.thread_elements()[0]; q[l * 2 + 1] = z.thread_elements()[1];
"""


def kernel(
    body: str,
    inputs: str,
    outputs: Outputs,
    grid: int | Size = 32,
    threadgroup: int | Size | None = None,
    *,
    header: str = "",
    template: Sequence[tuple[str, Any]] = (),
    init_value: float | None = None,
    name: str = "small",
    **options: Any,
) -> Callable[..., list[mx.array]]:
    """A function of arrays that makes and launches one kernel; `inputs` are words."""
    size = (grid, 1, 1) if isinstance(grid, int) else grid
    group = size if threadgroup is None else threadgroup
    group = (group, 1, 1) if isinstance(group, int) else group

    def fn(*arrays: mx.array) -> list[mx.array]:
        made: Any = mx.fast.metal_kernel(
            name=name,
            input_names=inputs.split(),
            output_names=list(outputs),
            source=body,
            header=header,
            **options,
        )
        call: dict[str, Any] = {"template": list(template)} if template else {}
        if init_value is not None:
            call["init_value"] = init_value
        return made(
            inputs=list(arrays),
            output_shapes=[shape for shape, _ in outputs.values()],
            output_dtypes=[dtype for _, dtype in outputs.values()],
            grid=size,
            threadgroup=group,
            **call,
        )

    return fn
