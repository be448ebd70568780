"""Small kernels for the emulator's own tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx

Size = tuple[int, int, int]
Outputs = Mapping[str, tuple[Sequence[int], mx.Dtype]]


def kernel(
    body: str,
    inputs: str,
    outputs: Outputs,
    grid: int | Size = 32,
    threadgroup: int | Size | None = None,
    *,
    header: str = "",
    template: Sequence[tuple[str, Any]] = (),
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
        return made(
            inputs=list(arrays),
            output_shapes=[shape for shape, _ in outputs.values()],
            output_dtypes=[dtype for _, dtype in outputs.values()],
            grid=size,
            threadgroup=group,
            **call,
        )

    return fn
