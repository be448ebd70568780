"""Run a program that uses MLX with OpenBLAS for its matrix products, as `dflash` does on a CPU.

    python with_openblas.py NAME ARGUMENTS

NAME is a program of this Python's environment, written in Python.
"""

import ctypes
import runpy
import sys
from pathlib import Path

ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)  # before MLX
program = Path(sys.executable).parent / sys.argv[1]
sys.argv = sys.argv[1:]
runpy.run_path(str(program), run_name="__main__")
