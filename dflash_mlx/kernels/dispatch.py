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
    """

    launcher: Launcher | None = None
    off: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, op: Op, *args: Any) -> Any:
        """The operation's result."""
        if self.launcher is None or op.name in self.off or not op.fits(*args):
            return op.reference(*args)
        return op.launch(self.launcher, *args)


def available() -> Kernels:
    """All kernels where MLX computes by Metal and DFLASH_KERNELS is "on", else none.

    They were never run on a Mac, so nobody gets them unasked. UsageError for another word.
    """
    wanted = os.environ.get(SWITCH, "off")
    if wanted not in ("on", "off"):
        raise UsageError(f"{SWITCH} cannot be '{wanted}'.", hint="give on or off")
    on_gpu = mx.default_device() == mx.Device(mx.gpu) and mx.metal.is_available()
    return Kernels(MetalLauncher() if on_gpu and wanted == "on" else None)
