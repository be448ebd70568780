"""What a chat begins with: who answers, and the first things to know."""

import os
from pathlib import Path

from dflash_mlx import __version__

from ..kernel_notes import kernel_warnings
from ..output import columns, size
from ..terminal.layout import folded
from .dialogue import Dialogue


def greet(dialogue: Dialogue, seconds: float) -> None:
    """The header, and what is wrong with kernels."""
    for line in header(dialogue, seconds):
        dialogue.out.note(folded(line, columns()))
    for line in kernel_warnings(dialogue.pair.target.kernels):
        dialogue.out.note(folded(line, columns()), "warning")


def header(dialogue: Dialogue, seconds: float) -> list[str]:
    """Who answers, and the first things to know."""
    import mlx.core as mx

    pair, shape = dialogue.pair, dialogue.shape
    where = "CPU" if mx.default_device() == mx.Device(mx.cpu) else "GPU"
    target = "bundled pair (tiny: sums, lists, everyday facts)"
    if pair.target_name != "bundled":
        target = (
            Path(pair.target_name).name if os.path.isdir(pair.target_name) else pair.target_name
        )
    drafter = ""
    if not shape:
        drafter = " · draft off"
    elif pair.draft_name != "bundled":
        drafter = f" · drafter {pair.draft_name}"
    block = f" · {shape}" if shape else ""
    kernels = " · Metal kernels on" if pair.target.kernels.on else ""
    kernels += " · exact" if pair.target.kernels.exact else ""
    return [
        f"dflash {__version__} · {target}{drafter}{block} · {where}{kernels}",
        f"loaded in {seconds:.1f} s · {size(mx.get_active_memory())} · "
        f"context {dialogue.context_length:,} · /help lists commands · Ctrl-C stops · "
        "Ctrl-D leaves",
        "",
    ]
