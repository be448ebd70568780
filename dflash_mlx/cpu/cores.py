"""All cores at work for training on a CPU: what has to be set before MLX computes anything."""

import ctypes
import os

from .blas import use_openblas

THREADS = "OPENBLAS_NUM_THREADS"
WIDTH = "MLX_BFS_MAX_WIDTH"  # MLX reads it once
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
KEPT, LARGEST = 2**31 - 1, 32 << 20  # bytes; glibc allows no larger ones


def use_all_cores() -> None:
    """Have streams share the cores (`train.streams`); what the environment says already stays.

    Each stream keeps one core busy, and more threads of OpenBLAS would compete for them. A graph of
    more outputs than MLX's width is gone through depth first: one stream's part after another's.
    Memory that MLX frees stays in the process: fresh pages take a tenth of a step.
    """
    library = use_openblas()
    if library is None:  # a Mac, or DFLASH_BLAS=off
        return
    os.environ.setdefault(WIDTH, "400")
    if THREADS not in os.environ:
        os.environ[THREADS] = "1"  # for what this process starts
        ctypes.CDLL(library).openblas_set_num_threads(1)
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, KEPT)
