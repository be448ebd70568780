"""Which Metal kernels a loaded pair runs, for headers, numbers and `--json`. Knows no proof."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash_mlx.kernels.dispatch import Kernels


def kernels_part(kernels: "Kernels") -> dict[str, Any] | None:
    """What `--json` says: names, and why which are not used; None where no kernel can run."""
    if kernels.launcher is None:
        return None
    return {"on": sorted(kernels.on or ()), "off": dict(kernels.off)}


def kernel_warnings(kernels: "Kernels") -> list[str]:
    """A line for each kernel that gave wrong results, and one where exactness costs the speed.

    To be slow is no fault of a kernel.
    """
    found = [
        f"kernel {name} off: {kernels.off[name]} (dflash doctor --kernels)"
        for name in sorted(kernels.wrong)
    ]
    if kernels.exact and (kernels.launcher is None or kernels.wrong):
        found.append("exact without the Metal kernels: row by row, no faster than plain decoding")
    return found


def kernels_line(kernels: "Kernels") -> str:
    """What `/stats` says; empty where no kernel can run."""
    if kernels.launcher is None:
        return ""
    on = ", ".join(sorted(kernels.on or ())) or "none"
    return " · ".join([on, *(f"{name} off: {reason}" for name, reason in kernels.off.items())])
