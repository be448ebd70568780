"""The Metal sources of this package and how one is launched. Knows no operation by name.

A kernel's text is its headers and the body in `metal_kernels/<name>.metal`; MLX writes the
signature around the body.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Protocol

import mlx.core as mx

Grid = tuple[int, int, int]
CONSTANT = 8  # elements from which MLX puts an input into device memory


@dataclass(frozen=True, slots=True)
class Source:
    """One kernel: the name of its file, and those of its buffers in the order of its signature."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    headers: tuple[str, ...] = ("common.h",)

    @property
    def body(self) -> str:
        """The statements of the kernel."""
        return text(f"{self.name}.metal")

    @property
    def header(self) -> str:
        """What stands before the signature: helpers that several kernels share."""
        return "\n".join(text(name) for name in self.headers)


class Launcher(Protocol):
    """Runs kernels: MLX on a Mac, an emulator in the tests."""

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
        """The outputs; `grid` counts threads, as in `mx.fast.metal_kernel`."""
        ...


class MetalLauncher:
    """Builds each kernel once a signature and gives it to MLX's Metal backend.

    MLX keeps one compiled text a name and compiles anew when another comes: buffers of other types,
    or of fewer than 8 elements, which it puts elsewhere, are another text. So each has its name.
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
        """As `Launcher`; inputs are made row-contiguous by MLX where they are not."""
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
    """What MLX writes into a kernel's signature beside its buffers' names, as one word."""
    kinds = [(x.dtype, "" if x.size >= CONSTANT else "c" if x.ndim else "s") for x in inputs]
    kinds += [(dtype, "") for dtype in output_dtypes]
    return "_".join(f"{dtype}".rpartition(".")[2] + place for dtype, place in kinds)


def text(name: str) -> str:
    """A file of `metal_kernels`."""
    return (files("dflash_mlx.metal_kernels") / name).read_text(encoding="utf-8")
