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
    if "mlx.core" in sys.modules:
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


def candidates() -> list[str]:
    """The library's name for the dynamic loader, then its paths on Debian."""
    return [LIBRARY, *map(str, sorted(Path("/usr/lib").glob(f"*-linux-gnu/openblas*/{LIBRARY}")))]


# Training on all cores of a CPU

THREADS = "OPENBLAS_NUM_THREADS"
WIDTH = "MLX_BFS_MAX_WIDTH"  # MLX reads it once
# Parameters of glibc's mallopt, and their values in bytes: the largest that glibc allows.
TRIM_THRESHOLD = -1
TRIM_BYTES = 2**31 - 1
MMAP_THRESHOLD = -3
MMAP_BYTES = 32 << 20


def use_all_cores() -> None:
    """Let several streams compute at once (`train.streams`). Variables that are set stay as set.

    OpenBLAS gets one thread, because each stream keeps a core busy. MLX evaluates a graph with more
    outputs than its width depth first, so that streams would run one after another: the width is
    raised. Freed memory stays in the process, because mapping new pages takes a tenth of a step.
    """
    library = use_openblas()
    if library is None:  # a Mac, or DFLASH_BLAS=off
        return
    os.environ.setdefault(WIDTH, "400")
    if THREADS not in os.environ:
        os.environ[THREADS] = "1"  # for child processes
        ctypes.CDLL(library).openblas_set_num_threads(1)
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(TRIM_THRESHOLD, TRIM_BYTES)
