"""Describes the Metal kernels of a loaded pair for headers, `/stats` and `--json`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash_mlx.kernels.dispatch import Kernels


def kernels_json(kernels: "Kernels") -> dict[str, Any] | None:
    """The `--json` field: kernels in use, and why others are off; None without Metal."""
    if kernels.launcher is None:
        return None
    return {"on": sorted(kernels.on or ()), "off": dict(kernels.off)}


def kernel_warnings(kernels: "Kernels") -> list[str]:
    """One line per kernel with wrong results, and one when exact mode runs without kernels.

    A kernel that is only slow gets no warning.
    """
    lines = [
        f"kernel {name} off: {kernels.off[name]} (dflash doctor --kernels)"
        for name in sorted(kernels.wrong)
    ]
    if kernels.exact and (kernels.launcher is None or kernels.wrong):
        lines.append("exact without the Metal kernels: row by row, no faster than plain decoding")
    return lines


def kernels_line(kernels: "Kernels") -> str:
    """The `/stats` line; empty without Metal."""
    if kernels.launcher is None:
        return ""
    on = ", ".join(sorted(kernels.on or ())) or "none"
    return " · ".join([on, *(f"{name} off: {reason}" for name, reason in kernels.off.items())])
