"""A rough forecast of plain decoding on an Apple chip, for the choice of a first model.

A token reads the target's weights at a share of the chip's bandwidth, and waits for each kernel.
Nobody measured it. A test holds it beside the table of examples/guide/forecast.md, for which every
kernel was counted.
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from .registry import Entry

# Kernels of one step, as counted for Qwen3-8B (about 650) and Qwen3.6-35B-A3B (1,822).
DENSE_KERNELS = 700
EXPERT_KERNELS = 1800
EARLY = ("M1", "M2")  # generations that get the share `early` of their bandwidth


@cache
def sheet() -> dict[str, Any]:
    return tomllib.loads(files("dflash_mlx.hub").joinpath("chips.toml").read_text(encoding="utf-8"))


def plain_speed(entry: Entry, device: str) -> float | None:
    """The tokens per second that a target may decode without drafts, after a short prompt.

    device: the chip's name as MLX says it, such as "Apple M4 Max". Of chips that differ only in
    their number of cores the slowest counts. None for an unknown chip, or a target of unknown size.
    """
    name = device.removeprefix("Apple ")
    chips = [chip for key, chip in sheet()["chips"].items() if key.partition(" (")[0] == name]
    if not chips or not entry.params or not entry.active or not entry.target_bytes:
        return None
    fitted = sheet()["fitted"]
    share = fitted["early" if name.startswith(EARLY) else "share"]
    experts = entry.active < entry.params
    kernels = EXPERT_KERNELS if experts else DENSE_KERNELS
    read = entry.target_bytes * entry.active / entry.params
    seconds = max(
        read / (share * chip["bandwidth"] * 1e9) + kernels * fitted["gap"] * chip["dispatch"] * 1e-6
        for chip in chips
    )
    return 1 / seconds
