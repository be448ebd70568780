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
EXACT_ROWS = 64  # of a verify at most; a prompt's longer pieces are the same in every decoding


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

    `off` has the names of operations whose kernel is not used, each with the reason, for people;
    of those `wrong` are the ones whose kernel gave wrong results. `on`: the only operations that
    may run as kernels, where they were proven; None is all.
    `own`: where MLX or mlx-lm has a function of its own for an operation, the reference stands in
    for it all the same. `exact`: so that no row's bits depend on how many rows there are.
    """

    launcher: Launcher | None = None
    off: Mapping[str, str] = field(default_factory=dict)
    own: bool = False
    exact: bool = False
    on: frozenset[str] | None = None
    wrong: frozenset[str] = frozenset()

    @property
    def stock(self) -> bool:
        """Whether MLX's and mlx-lm's own functions run wherever there are such."""
        return self.launcher is None and not self.own and not self.exact

    def launches(self, op: Op, *args: Any) -> bool:
        """Whether a kernel would run."""
        if self.launcher is None or op.name in self.off:
            return False
        return (self.on is None or op.name in self.on) and op.fits(*args)

    def takes(self, op: Op, *args: Any) -> bool:
        """Whether to run an operation here that MLX or mlx-lm has a function of its own for."""
        return self.own or self.exact or self.launches(op, *args)

    def __call__(self, op: Op, *args: Any) -> Any:
        """The operation's result."""
        if self.launcher is not None and self.launches(op, *args):
            return op.launch(self.launcher, *args)
        return op.reference(*args)


def by_metal() -> bool:
    """Whether MLX computes by Metal."""
    return mx.default_device() == mx.Device(mx.gpu) and mx.metal.is_available()


def wanted() -> str:
    """The word of DFLASH_KERNELS; UsageError for one that is not known.

    Where it is not set: "on" where MLX computes by Metal, "stock" elsewhere.
    """
    word = os.environ.get(SWITCH) or ("on" if by_metal() else "stock")
    if word not in WORDS:
        raise UsageError(f"{SWITCH} cannot be '{word}'.", hint=f"give {', '.join(WORDS)}")
    return word


def available(*, exact: bool = False) -> Kernels:
    """What DFLASH_KERNELS asks for.

    "on": kernels where MLX computes by Metal, none of them before it is proven (`proof.proven`);
    "off": the references in their place, which are slow and good for finding faults; "stock":
    neither, where MLX or mlx-lm has a function of its own.
    """
    word = wanted()
    launcher = MetalLauncher() if by_metal() and word == "on" else None
    on = frozenset() if launcher else None
    return Kernels(launcher, own=word == "off", exact=exact, on=on)
