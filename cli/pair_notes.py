"""A loaded pair in a few words: its drafting, its drafter's bits, its Metal kernels."""

from typing import TYPE_CHECKING, Any

from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.kernels.dispatch import Kernels


def check_block(pair: "Pair", block_size: int | None) -> None:
    """UsageError for a block that is longer than those a DFlash drafter was trained for."""
    from dflash_mlx.drafters.dflash.drafter import DFlashDrafter

    own = pair.drafter.block_size if isinstance(pair.drafter, DFlashDrafter) else None
    if block_size is not None and own is not None and block_size > own:
        raise UsageError(
            f"a block cannot have {block_size} tokens: this drafter's have {own}.",
            hint=f"give 2 to {own}, or none for the drafter's own",
        )


def describe_drafting(pair: "Pair", options: GenerationOptions) -> str:
    """Block size and mode in a few words; empty for plain decoding."""
    if not pair.drafts or options.mode == "baseline":
        return ""
    block = f"block {options.block_size or pair.block_size}"
    if options.mode == "auto":
        return f"{block} · auto"
    return f"{block} · tree {options.tree_nodes}" if options.mode == "ddtree" else block


def in_bits(pair: "Pair") -> str:
    """The bits of a quantised drafter, to stand after its name; empty where it is as published."""
    from dflash_mlx.models.quantise import bits_of

    bits = bits_of(pair.drafter.model) if pair.drafter else 0
    return f" in {bits} bits" if bits else ""


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
