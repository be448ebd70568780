"""OpenBLAS for MLX's CPU backend on Linux.

MLX's Linux wheel links the reference BLAS, whose matrix products are many times slower than those
of OpenBLAS. Both export the same symbols, and the first library that is loaded globally wins. So
`use_openblas` must run before `mlx.core` is imported. On macOS MLX uses Accelerate.
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
    """Load OpenBLAS for the process. Returns its name or path; the result is cached.

    Returns None if the system is not Linux, if `DFLASH_BLAS=off`, if OpenBLAS is not installed, or
    if `mlx.core` is already imported (with a warning in the log).
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
    """Whether MLX is imported, and so is linked to its default BLAS."""
    return "mlx.core" in sys.modules


def candidates() -> list[str]:
    """The library's name for the dynamic loader, then its paths on Debian."""
    return [LIBRARY, *map(str, sorted(Path("/usr/lib").glob(f"*-linux-gnu/openblas*/{LIBRARY}")))]
