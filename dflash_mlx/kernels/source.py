"""Metal sources of this package, and their launch by `mx.fast.metal_kernel`.

A kernel's source is its headers and the body in `metal_kernels/<name>.metal`. MLX generates the
signature.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Protocol

import mlx.core as mx

Grid = tuple[int, int, int]
DEVICE_MEMORY_SIZE = 8  # elements; MLX puts smaller inputs into constant memory


@dataclass(frozen=True, slots=True)
class Source:
    """One kernel: the name of its file, and the names of its buffers in the signature's order."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    headers: tuple[str, ...] = ("common.h",)

    @property
    def body(self) -> str:
        """The statements of the kernel."""
        return read_source(f"{self.name}.metal")

    @property
    def header(self) -> str:
        """The source before the signature: helpers that kernels share."""
        return "\n".join(read_source(name) for name in self.headers)


class Launcher(Protocol):
    """Runs a kernel: MLX on a Mac, an emulator in the tests."""

    def __call__(
        self,
        source: Source,
        inputs: Sequence[mx.array],
        *,
        grid: Grid,
        threadgroup: Grid,
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        template: Sequence[tuple[str, Any]] = (),
        init_value: float | None = None,
    ) -> list[mx.array]:
        """Run one kernel and return its outputs. `grid` counts threads, not threadgroups."""
        ...


class MetalLauncher:
    """Builds each kernel once for each signature, and runs it by MLX's Metal backend.

    MLX keeps one compiled source for each name. Buffers with other dtypes, or with fewer than 8
    elements (constant memory), change the source. So the name contains the signature.
    """

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __call__(
        self,
        source: Source,
        inputs: Sequence[mx.array],
        *,
        grid: Grid,
        threadgroup: Grid,
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        template: Sequence[tuple[str, Any]] = (),
        init_value: float | None = None,
    ) -> list[mx.array]:
        """As `Launcher`. MLX copies inputs that are not row-contiguous."""
        name = f"dflash_{source.name}_{signature(inputs, output_dtypes)}"
        if name not in self._built:
            self._built[name] = mx.fast.metal_kernel(
                name=name,
                input_names=list(source.inputs),
                output_names=list(source.outputs),
                source=source.body,
                header=source.header,
            )
        return self._built[name](
            inputs=list(inputs),
            template=list(template),
            grid=grid,
            threadgroup=threadgroup,
            output_shapes=[tuple(shape) for shape in output_shapes],
            output_dtypes=list(output_dtypes),
            init_value=init_value,
        )


def signature(inputs: Sequence[mx.array], output_dtypes: Sequence[mx.Dtype]) -> str:
    """The dtypes and address spaces of a kernel's buffers as an identifier."""
    buffers = [
        (x.dtype, "" if x.size >= DEVICE_MEMORY_SIZE else "c" if x.ndim else "s") for x in inputs
    ]
    buffers += [(dtype, "") for dtype in output_dtypes]
    return "_".join(f"{dtype}".rpartition(".")[2] + space for dtype, space in buffers)


def read_source(name: str) -> str:
    """The text of a file in `metal_kernels`."""
    return (files("dflash_mlx.metal_kernels") / name).read_text(encoding="utf-8")
