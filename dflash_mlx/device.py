"""The device that MLX computes on: its facts, and the precision of float32 on it."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .errors import DFlashError

# MLX reads it once, at the first product on a GPU (`enable_tf32` in mlx/utils.h). Unless it is 0,
# GPUs with matrix units compute float32 products of several rows with about 10 bits.
TF32 = "MLX_ENABLE_TF32"
UNITS_NEED = (26, 2)  # the macOS whose Metal has the matrix units


def device_info() -> dict[str, Any]:
    """What MLX says of the GPU, or of the CPU if it has no GPU.

    `mx.device_info()` is about the default device, which may be the CPU on a Mac, too.
    """
    return mx.device_info(mx.gpu if mx.is_available(mx.gpu) else mx.cpu)


@dataclass(frozen=True, slots=True)
class Chip:
    """An Apple GPU as MLX tells them apart.

    generation: 13 is M1, 14 M2, 15 M3, 16 M4 and 17 M5. size: "g" is a base chip, "s" a Max, "d" an
    Ultra and "p" a phone's. MLX's comments count Pro chips as "g", but an M1 Pro has reported "s".
    """

    generation: int
    size: str

    @classmethod
    def of(cls, architecture: str) -> "Chip | None":
        """The chip with this architecture, as MLX names it; None if it is no Apple GPU."""
        name = re.search(r"(\d\d)(\D)$", architecture)
        return None if name is None else cls(int(name[1]), name[2])


def has_matrix_units(architecture: str) -> bool:
    """Whether an Apple GPU has matrix units: from M5 and A19 on. `architecture` as MLX names it.

    As `is_nax_available` in mlx/backend/metal/device.cpp, which also needs macOS 26.2.
    """
    chip = Chip.of(architecture)
    return chip is not None and chip.generation >= (18 if chip.size == "p" else 17)


def check_macos() -> None:
    """Raise DFlashError for an M5 whose macOS lacks what MLX uses there.

    MLX's wheel for macOS 26 uses an M5's matrix units on every macOS 26 (ml-explore/mlx#4525).
    """
    if sys.platform != "darwin" or not has_matrix_units(str(device_info().get("architecture", ""))):
        return
    asked = ["/usr/sbin/sysctl", "-n", "kern.osproductversion"]
    version = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if (26,) <= tuple(map(int, re.findall(r"\d+", version))) < UNITS_NEED:
        raise DFlashError(
            f"MLX uses this chip's matrix units, which need macOS 26.2; this is macOS {version}.",
            hint="update macOS, or set DFLASH_DEVICE=cpu, which is slow",
        )


def has_full_float32() -> bool:
    """Whether MLX_ENABLE_TF32 switches the 10 bits off. Read as MLX does, by C's atoi."""
    return re.match(r"\s*[+-]?0*[1-9]", os.environ.get(TF32, "1")) is None
