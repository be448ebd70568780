"""Put OpenBLAS under MLX's CPU backend on Linux.

MLX's Linux wheel links the reference BLAS, which is many times slower than OpenBLAS at the matrix
products of a model. Both export the same names, and the first library loaded globally wins: call
`use_openblas` before anything imports `mlx.core`. On Apple MLX uses Accelerate; nothing to do.
"""

import ctypes
import logging
import os
import sys
from functools import cache
from pathlib import Path

LIBRARY = "libopenblas.so.0"

log = logging.getLogger(__name__)


@cache
def use_openblas() -> str | None:
    """Load OpenBLAS for the whole process and return its name or path.

    None: not on Linux, `DFLASH_BLAS=off`, not installed, or too late because `mlx.core` is imported
    (see `too_late`), which is logged. The first answer stands for the life of the process.
    """
    if sys.platform != "linux" or os.environ.get("DFLASH_BLAS") == "off":
        return None
    if too_late():
        log.warning(
            "MLX was imported before dflash_mlx, with slow matrix products: import it later"
        )
        return None
    for name in candidates():
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return name
    return None


def too_late() -> bool:
    """Whether MLX has already bound its own BLAS."""
    return "mlx.core" in sys.modules


def candidates() -> list[str]:
    """The name the dynamic loader knows, then the folders Debian uses."""
    return [LIBRARY, *map(str, sorted(Path("/usr/lib").glob(f"*-linux-gnu/openblas*/{LIBRARY}")))]
