"""Compiles kernels and the runner with g++ and keeps the results by hash.

The cache lies in `.pytest_cache/metal` of the repository and is shared between runs.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from .source import Refused

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".pytest_cache" / "metal"
MLX = Path(mx.__file__).parent / "include"
INCLUDE = ("-I", HERE / "shim", "-I", MLX)
PRELUDE = "mlx/backend/metal/kernels/utils.h"  # what MLX puts before every kernel
KERNEL = (
    "-std=c++17 -g1 -fPIC -fsingle-precision-constant -fexcess-precision=16 -ffp-contract=off"
    " -fno-exceptions -fno-rtti -fno-strict-aliasing -fno-tree-vectorize -fno-tree-slp-vectorize"
    " -fstack-clash-protection -nostdinc -nostdinc++ -w"
).split()
SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=all".split()
WRAPPED = "-Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset"
# Unset locals hold a pattern, or zeros: neither may change a result. Unoptimised, because the
# optimiser may pretend that an unset local holds whatever suits it.
BUILDS = {
    "plain": ["-O1"],
    "pattern": ["-O0", "-ftrivial-auto-var-init=pattern"],
    "zero": ["-O0", "-ftrivial-auto-var-init=zero"],
    "sanitize": ["-O1", *SANITIZE],
    "race": ["-O1", "-fsanitize=thread"],
}


def missing() -> str:
    """Why nothing can be emulated on this machine; empty if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the Metal emulator runs on x86-64 Linux only"
    if not shutil.which("g++"):
        return "the Metal emulator needs g++: sudo apt-get install -y g++"
    return ""


def kernel_library(text: str, build: str) -> Path:
    """The shared object of one translation unit. Raises Refused with the compiler's words."""
    flags = _flags(build)
    target = CACHE / f"{_hash(text, ' '.join(flags), _shim(), _compiler())}.so"
    if not target.exists():
        with _working() as folder:
            (folder / "kernel.cpp").write_text(text)
            include = ["-I", _read_prelude(build), *INCLUDE]
            _gcc(*flags, *include, "-c", folder / "kernel.cpp", "-o", folder / "kernel.o")
            link = [WRAPPED] if build == "race" else []
            link += SANITIZE if build == "sanitize" else []
            _gcc("-shared", *link, folder / "kernel.o", "-o", folder / "kernel.so", "-lm")
            os.replace(folder / "kernel.so", target)
    return target


@cache
def _read_prelude(build: str) -> Path:
    """A folder with the prelude of every kernel as g++ keeps it once read: a third less to do."""
    flags = _flags(build)
    folder = CACHE / f"prelude-{_hash(' '.join(flags), _shim(), _compiler())}"
    target = folder / f"{PRELUDE}.gch"
    if not target.exists():
        with _working() as working:
            (working / "prelude.h").write_text(f'#include "{PRELUDE}"\n')
            made = working / "prelude.gch"
            _gcc(*flags, *INCLUDE, "-x", "c++-header", working / "prelude.h", "-o", made)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(made, target)
    return folder


@cache
def runner(build: str) -> Path:
    """The program that executes kernels of a build."""
    files = sorted((HERE / "runner").glob("*.cpp"))
    flags = ["-std=c++17", "-O1", "-g1", "-w"]
    flags += ["-DEMU_ASAN"] if build == "sanitize" else []
    everything = "".join(
        f.read_text() for f in [*files, HERE / "runner" / "runner.h", HERE / "shim" / "runtime.h"]
    )
    target = CACHE / f"runner-{_hash(everything, ' '.join(flags), _compiler())}"
    if not target.exists():
        with _working() as folder:
            objects = [folder / f"{file.stem}.o" for file in files]
            for file, compiled in zip(files, objects, strict=True):
                _gcc(*flags, "-c", file, "-o", compiled)  # itself not instrumented
            link = SANITIZE if build == "sanitize" else []
            _gcc("-rdynamic", *link, *objects, "-o", folder / "runner", "-ldl")
            os.replace(folder / "runner", target)
    return target


def cached_text(kind: str, text: str, make: Callable[[], str]) -> str:
    """What `make` says of a text, asked once."""
    target = CACHE / f"{kind}-{_hash(text, _shim())}.txt"
    if not target.exists():
        answer = make()
        with _working() as folder:
            (folder / "answer").write_text(answer)
            os.replace(folder / "answer", target)
    return target.read_text()


def _gcc(*arguments: str | Path) -> None:
    done = subprocess.run(["g++", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error:" in line]
        raise Refused("\n".join(lines[:8]) or done.stderr)


class _working:
    """A folder of its own beside the cache, so that a result appears whole or not at all."""

    def __enter__(self) -> Path:
        CACHE.mkdir(parents=True, exist_ok=True)
        self.folder = tempfile.TemporaryDirectory(dir=CACHE)
        return Path(self.folder.name)

    def __exit__(self, *_: object) -> None:
        self.folder.cleanup()


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@cache
def _shim() -> str:
    files = sorted(f for f in (HERE / "shim").rglob("*") if f.is_file())
    return _hash(version("mlx"), *(f.read_text() for f in files))


@cache
def _compiler() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True).stdout


def _flags(build: str) -> list[str]:
    return [*KERNEL, *_half(), *BUILDS[build]]


@cache
def _half() -> tuple[str, ...]:
    """Half arithmetic in hardware where there is any: the results are the same."""
    return ("-mf16c",) if "f16c" in Path("/proc/cpuinfo").read_text() else ()
