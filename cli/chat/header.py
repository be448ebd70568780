"""The header of a chat: the pair, the machine, and the first commands to know."""

import os
from collections.abc import Sequence
from pathlib import Path

from dflash_mlx import __version__

from ..kernel_notes import kernel_warnings
from ..modes import in_bits
from ..terminal.output import format_bytes, stderr_columns
from ..terminal.wrapping import wrap_hanging
from . import remote_model
from .dialogue import Dialogue


def show_header(
    dialogue: Dialogue,
    load_seconds: float,
    *,
    preset: str | None = None,
    more: Sequence[str] = (),
    faults: Sequence[str] = (),
) -> None:
    """Print the header with the preset in use and `more` lines; then what is wrong."""
    if dialogue.server is None:
        lines = header_lines(dialogue, load_seconds, preset)
        faults = [*faults, *kernel_warnings(dialogue.pair.target.kernels)]
    else:
        lines = remote_model.header_lines(dialogue.server, load_seconds, preset)
    for line in [*lines, *more]:
        dialogue.out.note(wrap_hanging(line, stderr_columns()))
    for fault in faults:
        dialogue.out.note(wrap_hanging(fault, stderr_columns()), "warning")
    dialogue.out.note("")


def header_lines(dialogue: Dialogue, load_seconds: float, preset: str | None = None) -> list[str]:
    """The lines of the header."""
    import mlx.core as mx

    pair, drafting = dialogue.pair, dialogue.drafting_summary
    device = "CPU" if mx.default_device() == mx.Device(mx.cpu) else "GPU"
    target = "bundled pair (tiny: sums, lists, everyday facts)"
    if pair.target_name != "bundled":
        target = (
            Path(pair.target_name).name if os.path.isdir(pair.target_name) else pair.target_name
        )
    name = "" if pair.draft_label == "bundled" else f" {pair.draft_label}"
    drafter = ""
    if not drafting:
        drafter = " · draft off"
    elif named := f"{name}{in_bits(pair)}":
        drafter = f" · drafter{named}"
    block = f" · {drafting}" if drafting else ""
    kernels = " · Metal kernels on" if pair.target.kernels.on else ""
    kernels += " · exact" if pair.target.kernels.exact else ""
    return [
        f"dflash {__version__} · {target}{drafter}{block} · {device}{kernels}"
        + (f" · preset {preset}" if preset else ""),
        f"loaded in {load_seconds:.1f} s · {format_bytes(mx.get_active_memory())} · "
        f"context {dialogue.context_length:,} · /help lists commands · Ctrl-C stops · "
        "Ctrl-D leaves",
    ]
