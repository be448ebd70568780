"""Metal sources of this package, and their launch by `mx.fast.metal_kernel`.

A kernel's source is its headers and the body in `metal_kernels/<name>.metal`. MLX generates the
signature.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, Protocol

import mlx.core as mx

Grid = tuple[int, int, int]
RECORDED = 64  # functions that a launcher keeps: two or three for each number of rows
DEVICE_MEMORY_SIZE = 8  # elements; MLX puts smaller inputs into constant memory, see `pad_small`


@dataclass(frozen=True, slots=True)
class Source:
    """One kernel: the name of its file, and the names of its buffers in the signature's order."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    headers: tuple[str, ...] = ("common.h",)

    @property
    def body(self) -> str:
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
    ) -> list[mx.array]:
        """Run one kernel and return its outputs. `grid` counts threads, not threadgroups."""
        ...


class MetalLauncher:
    """Runs kernels by MLX's Metal backend. MLX compiles a source once for each set of template
    arguments, dtypes and address spaces of the buffers: all of them are part of the name it gives.
    """

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}
        self._recorded: dict[Hashable, Callable[..., Any]] = {}

    def recorded(self, function: Callable[..., Any], kind: Hashable) -> Callable[..., Any]:
        """`partial(function, self)`, compiled; the last RECORDED used with a `kind` are kept."""
        if kind is None:
            return mx.compile(partial(function, self))
        key = function, kind
        if (compiled := self._recorded.pop(key, None)) is None:
            compiled = mx.compile(partial(function, self))
            if len(self._recorded) >= RECORDED:
                del self._recorded[next(iter(self._recorded))]
        self._recorded[key] = compiled
        return compiled

    def __call__(
        self, source: Source, inputs: Sequence[mx.array], **options: Any
    ) -> list[mx.array]:
        """As `Launcher`. MLX copies inputs that are not row-contiguous."""
        kernel: Any = self._built.get(source.name)
        if kernel is None:
            self._built[source.name] = kernel = mx.fast.metal_kernel(
                name=f"dflash_{source.name}",
                input_names=source.inputs,
                output_names=source.outputs,
                source=source.body,
                header=source.header,
            )
        return kernel(inputs=inputs, **options)


class StepwiseLauncher:
    """Slow: runs each kernel to its end at once, so that an error belongs to the last one."""

    def __init__(self, launcher: Launcher):
        self.launcher = launcher

    def __call__(
        self, source: Source, inputs: Sequence[mx.array], **options: Any
    ) -> list[mx.array]:
        outputs = self.launcher(source, inputs, **options)
        mx.eval(outputs)
        return outputs


def recorded(
    launcher: Launcher | None, function: Callable[..., Any], kind: Hashable = None
) -> Callable[..., Any]:
    """`partial(function, launcher)` for arrays, numbers and None by position; compiled on Metal.

    Uncompiled, MLX generates a kernel's text in each call, and keeps it until the kernel has run.
    Compiled, it does so once for each set of shapes, dtypes and numbers. Each `kind` is compiled
    by itself and should have few sets, because MLX searches them one after another.
    """
    if isinstance(launcher, MetalLauncher):
        return launcher.recorded(function, kind)
    return partial(function, launcher)


def pad_small(array: mx.array) -> mx.array:
    """Return an array of at least 8 elements as it is, else flattened and padded to 8 with zeros.

    For inputs that are smaller in some calls only: MLX builds a library per kind of memory.
    """
    missing = DEVICE_MEMORY_SIZE - array.size
    if missing <= 0:
        return array
    return mx.concatenate([array.reshape(-1), mx.array([0] * missing, array.dtype)])


def read_source(name: str) -> str:
    return (files("dflash_mlx.metal_kernels") / name).read_text(encoding="utf-8")
