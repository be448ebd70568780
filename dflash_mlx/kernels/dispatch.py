"""Which operations run as Metal kernels and which by their reference, and why.

One `Kernels` belongs to one loaded pair. Knows operations only as a reference and a launch.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from dflash_mlx.errors import UsageError

from .source import Launcher, MetalLauncher

SWITCH = "DFLASH_KERNELS"
WORDS = ("on", "off", "stock")


@dataclass(frozen=True, slots=True)
class Op:
    """An operation: `reference(*args)` in MLX operations, `launch(launcher, *args)` by kernels.

    `fits(*args)` says whether the kernels take these shapes and dtypes.
    """

    name: str
    reference: Callable[..., Any]
    launch: Callable[..., Any]
    fits: Callable[..., bool] = lambda *_: True


@dataclass(frozen=True, slots=True)
class Kernels:
    """Runs operations; without a launcher all by their references.

    `off` has the names of operations whose kernel is not used, each with the reason, for people.
    `own`: where MLX or mlx-lm has a function of its own for an operation, the reference stands in
    for it all the same. `exact`: so that no row's bits depend on how many rows there are.
    """

    launcher: Launcher | None = None
    off: Mapping[str, str] = field(default_factory=dict)
    own: bool = False
    exact: bool = False

    @property
    def stock(self) -> bool:
        """Whether MLX's and mlx-lm's own functions run wherever there are such."""
        return self.launcher is None and not self.own and not self.exact

    def launches(self, op: Op, *args: Any) -> bool:
        """Whether a kernel would run."""
        return self.launcher is not None and op.name not in self.off and op.fits(*args)

    def takes(self, op: Op, *args: Any) -> bool:
        """Whether to run an operation here that MLX or mlx-lm has a function of its own for."""
        return self.own or self.exact or self.launches(op, *args)

    def __call__(self, op: Op, *args: Any) -> Any:
        """The operation's result."""
        if self.launcher is not None and self.launches(op, *args):
            return op.launch(self.launcher, *args)
        return op.reference(*args)


def available(*, exact: bool = False) -> Kernels:
    """What DFLASH_KERNELS asks for, which is "stock" where it is not set.

    "on": kernels where MLX computes by Metal; "off": the references in their place, which are slow
    and good for finding faults; "stock": neither, where MLX or mlx-lm has a function of its own.
    UsageError for another word.
    """
    wanted = os.environ.get(SWITCH, "stock")
    if wanted not in WORDS:
        raise UsageError(f"{SWITCH} cannot be '{wanted}'.", hint=f"give {', '.join(WORDS)}")
    on_gpu = mx.default_device() == mx.Device(mx.gpu) and mx.metal.is_available()
    launcher = MetalLauncher() if on_gpu and wanted == "on" else None
    return Kernels(launcher, own=wanted == "off", exact=exact)
