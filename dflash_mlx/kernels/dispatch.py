"""Dispatch of operations: to a Metal kernel, to the reference, or to stock MLX.

Each loaded pair has one `Kernels`.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx

from dflash_mlx.errors import UsageError

from .source import Launcher, MetalLauncher, StepwiseLauncher

VARIABLE = "DFLASH_KERNELS"  # an environment variable
VALUES = ("on", "off", "stock")
TOO_MANY_THREADS = "Thread group size"
# How MLX's errors begin where a kernel cannot be compiled or launched
# (mlx/backend/metal/device.cpp and custom_kernel.cpp).
KERNEL_MESSAGES = ("[metal::Device]", TOO_MANY_THREADS, "[metal_kernel]")
DEVICE_VARIABLE = "DFLASH_DEVICE"  # an environment variable
EXACT_ROWS = 64  # largest verify in exact mode; longer passes are prompts, equal in every mode


@dataclass(frozen=True, slots=True)
class Op:
    """An operation: `reference(*args)` in MLX operations, `launch(launcher, *args)` by kernels.

    `fits(*args)`: whether the kernels support these shapes and dtypes. `size(*args)`: the sizes
    that decide whether the kernel or stock MLX is faster; None if one of them always is. `exact`:
    the launch in exact mode, where the bits of a row must not depend on the number of rows; None if
    it is `launch`. `smaller`: `launch` with fewer threads in its largest threadgroups, for chips
    that refuse those; None if there is no such launch.
    """

    name: str
    reference: Callable[..., Any]
    launch: Callable[..., Any]
    fits: Callable[..., bool] = lambda *_: True
    size: Callable[..., Any] = lambda *_: None
    exact: Callable[..., Any] | None = None
    smaller: Callable[..., Any] | None = None

    def launching(self, exact: bool, smaller: bool = False) -> Callable[..., Any]:
        if exact and self.exact is not None:
            return self.exact
        return self.smaller if smaller and self.smaller is not None else self.launch


class LaunchFailed(Exception):
    """A kernel raised an error at its launch; its cause. `name`: the operation."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which operations run as Metal kernels, which by their reference, and which by stock MLX.

    launcher: runs the kernels; None without Metal. references: the references also replace the
    functions of stock MLX and mlx-lm. exact: the bits of a row must not depend on the number of
    rows.

    The self-check of this machine sets the rest. on: the operations that may run as kernels; None
    for all. off: the others that the model uses, each with the reason to show. wrong: those of
    `off` whose kernel gave wrong results. sizes: for a kernel that is faster at some of its sizes
    only, those sizes by operation. smaller: the operations that are launched by `Op.smaller`.
    """

    launcher: Launcher | None = None
    off: Mapping[str, str] = field(default_factory=dict)
    references: bool = False
    exact: bool = False
    on: frozenset[str] | None = None
    wrong: frozenset[str] = frozenset()
    sizes: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    smaller: frozenset[str] = frozenset()

    def enables(self, op: Op) -> bool:
        """Whether the kernel of `op` may run, with arguments that fit."""
        if self.launcher is None or op.name in self.off:
            return False
        return self.on is None or op.name in self.on

    def replaces_stock(self, op: Op) -> bool:
        """Whether `op` may run, by kernel or reference, in place of stock MLX or mlx-lm."""
        return self.references or self.exact or self.enables(op)

    def launches(self, op: Op, *args: Any) -> bool:
        sizes = self.sizes.get(op.name)
        wins = sizes is None or op.size(*args) in sizes
        return self.enables(op) and wins and op.fits(*args)

    def __call__(self, op: Op, *args: Any) -> Any:
        if self.launches(op, *args):
            return self._launch(op, args)
        return op.reference(*args)

    def attempt(self, op: Op, *args: Any) -> Any | None:
        """Run `op` in place of stock MLX or mlx-lm; None if stock MLX should compute it."""
        if self.launches(op, *args):
            return self._launch(op, args)
        return op.reference(*args) if self.references or self.exact else None

    def _launch(self, op: Op, args: tuple[Any, ...]) -> Any:
        try:
            return op.launching(self.exact, op.name in self.smaller)(self.launcher, *args)
        except Exception as error:
            raise LaunchFailed(op.name) from error

    @property
    def stepwise(self) -> bool:
        return isinstance(self.launcher, StepwiseLauncher)

    def by_steps(self) -> "Kernels":
        """The same, but each kernel runs to its end at once, so that an error names it."""
        assert self.launcher is not None
        return replace(self, launcher=StepwiseLauncher(self.launcher))

    def without(self, names: Iterable[str] = (), reason: str = "") -> "Kernels":
        """The same, not `stepwise`, without the kernels of these operations, which failed."""
        direct = self.launcher
        if isinstance(direct, StepwiseLauncher):
            direct = direct.launcher
        off = {**self.off, **dict.fromkeys(names, reason)}
        on = None if self.on is None else self.on - off.keys()
        return replace(self, launcher=direct, on=on, off=off, wrong=self.wrong | {*names})

    def find_failure(self, error: BaseException) -> frozenset[str] | None:
        """The operations whose kernels may have raised an error of a pass; None if none has.

        MLX compiles a kernel when it evaluates its outputs, and most of its messages do not name
        it. Then these are all operations that may run; or none if each runs by itself, because
        what is raised outside of them is MLX's own.
        """
        if isinstance(error, LaunchFailed):
            return frozenset({error.name})
        if self.launcher is None or not str(error).startswith(KERNEL_MESSAGES):
            return None
        able = (self.on or frozenset()) - self.off.keys()
        named = frozenset(name for name in able if f"dflash_{name}" in str(error))
        return named or (None if self.stepwise else able)


def cpu_wanted() -> bool:
    """Whether DFLASH_DEVICE names the CPU. Raises UsageError for any other value."""
    value = os.environ.get(DEVICE_VARIABLE, "")
    if value not in ("", "cpu"):
        raise UsageError(
            f"{DEVICE_VARIABLE} cannot be '{value}'.",
            hint=f"give cpu, or `unset {DEVICE_VARIABLE}` to compute on the GPU",
        )
    return value == "cpu"


def use_device() -> None:
    """Make the CPU MLX's default device, for all threads, if DFLASH_DEVICE names it."""
    if cpu_wanted():
        mx.set_default_device(mx.cpu)


def on_cpu() -> bool:
    """Whether MLX computes on the CPU by default, or will once models are loaded."""
    return cpu_wanted() or mx.default_device() == mx.Device(mx.cpu)


def item_bytes() -> int:
    """The size of a number that is not quantised: 4 where MLX computes on the CPU."""
    return 4 if on_cpu() else 2


def by_metal() -> bool:
    return not on_cpu() and mx.metal.is_available()


def wanted() -> str:
    """DFLASH_KERNELS; by default "on" with Metal, else "stock". Raises UsageError for others."""
    value = os.environ.get(VARIABLE) or ("on" if by_metal() else "stock")
    if value not in VALUES:
        raise UsageError(f"{VARIABLE} cannot be '{value}'.", hint=f"give {', '.join(VALUES)}")
    return value


def available(*, exact: bool = False) -> Kernels:
    """The kernels for the value of DFLASH_KERNELS.

    "on": Metal kernels; each is disabled until the self-check has proven it
    (`selfcheck.check`). "off": the references in their place, which are slow, for debugging.
    "stock": the functions of MLX and mlx-lm where they have one.
    """
    value = wanted()
    launcher = MetalLauncher() if by_metal() and value == "on" else None
    on = frozenset() if launcher else None
    return Kernels(launcher, references=value == "off", exact=exact, on=on)
