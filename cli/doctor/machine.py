"""The checks of `dflash doctor` about the machine, the system and MLX's backends.

Knows macOS and Linux, not the terminal. Imports MLX only through `mlx_core`.
"""

import ctypes
import os
import platform
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from .check import CheckResult, fail, ok, short_path, warn

CPUINFO = Path("/proc/cpuinfo")
PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")
MEMORY_MAPS = Path("/proc/self/maps")


def on_mac() -> bool:
    """Whether this is macOS."""
    return sys.platform == "darwin"


def sysctl(name: str) -> str:
    """A value of macOS's sysctl; empty when the name is unknown."""
    command = ["/usr/sbin/sysctl", "-in", name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def mlx_core() -> Any:
    """`mlx.core`, with OpenBLAS loaded first where it is installed."""
    from dflash_mlx.cpu.blas import use_openblas

    use_openblas()
    import mlx.core

    return mlx.core


def machine() -> CheckResult:
    """The machine's model name, if known, and its architecture."""
    if on_mac():
        model = sysctl("hw.model")
    else:
        model = PRODUCT_NAME.read_text("utf-8", "replace").strip() if PRODUCT_NAME.is_file() else ""
    return ok(" · ".join(part for part in (model, platform.machine()) if part))


def chip() -> CheckResult:
    """The processor's name and its cores."""
    if on_mac():
        name = sysctl("machdep.cpu.brand_string")
    else:
        lines = (line.partition(":") for line in CPUINFO.read_text("utf-8").splitlines())
        name = next((v.strip() for k, _, v in lines if k.strip() == "model name"), "")
    return ok(f"{name or 'not named by the system'} · {os.cpu_count()} cores")


def memory() -> CheckResult:
    """Total memory and, with Metal, the GPU's recommended working set (GB of 2^30 bytes)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = f"{total / 2**30:.1f} GB"
    if on_mac() and mlx_core().metal.is_available():
        limit = mlx_core().device_info()["max_recommended_working_set_size"]
        found += f" · recommended working set {limit / 2**30:.1f} GB"
    return ok(found)


def system() -> CheckResult:
    """The version of macOS or of the Linux distribution."""
    if on_mac():
        return ok(f"macOS {platform.mac_ver()[0]}")
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = "a distribution without os-release"
    return ok(f"{name} · Linux {platform.release()}")


def python() -> CheckResult:
    """Python's version and path; on a Mac it must be an arm64 build."""
    found = f"{platform.python_version()} · {platform.machine()} · {short_path(sys.executable)}"
    if not on_mac() or platform.machine() == "arm64":
        return ok(found)
    if sysctl("sysctl.proc_translated") == "1":
        return fail(
            f"{found} · made for Intel, runs under Rosetta",
            "run `make setup` with an arm64 Python, for example one of python.org or "
            "`uv python install cpython-3.12-macos-aarch64`",
        )
    return fail(f"{found} · this Mac has an Intel processor", "MLX needs a Mac with Apple silicon")


def blas() -> CheckResult:
    """The library that computes MLX's matrix products on the CPU."""
    if on_mac():
        return ok("Accelerate, as MLX is built")
    mlx_core()
    library = product_library()
    if os.environ.get("DFLASH_BLAS") == "off":
        return warn(
            f"DFLASH_BLAS=off: MLX computes with {short_path(library)}",
            "`unset DFLASH_BLAS`, so that OpenBLAS, which is many times faster, is used",
        )
    if "openblas" in library.name:
        return ok(f"OpenBLAS · {short_path(library)}")
    return warn(
        f"OpenBLAS is not in force: MLX computes with the slow {short_path(library)}",
        "`sudo apt install libopenblas0-pthread`, or what your distribution calls OpenBLAS",
    )


def product_library() -> Path:
    """The file of MLX's `cblas_sgemm`, found in the order of the dynamic linker.

    Libraries loaded for the whole process come first, then those that MLX's library loads.
    """
    mapped = [line.split(maxsplit=5) for line in MEMORY_MAPS.read_text("utf-8").splitlines()]
    mapped = [fields for fields in mapped if len(fields) == 6]
    mlx_library = next(fields[5] for fields in mapped if fields[5].endswith("/libmlx.so"))
    symbol = getattr(ctypes.CDLL(None), "cblas_sgemm", None) or ctypes.CDLL(mlx_library).cblas_sgemm
    address = ctypes.cast(symbol, ctypes.c_void_p).value or 0
    for fields in mapped:
        begin, end = (int(number, 16) for number in fields[0].split("-"))
        if begin <= address < end:
            return Path(fields[5])
    raise LookupError("cblas_sgemm is in no mapped file")


def metal() -> CheckResult:
    """Whether MLX can use the GPU."""
    mx = mlx_core()
    if mx.metal.is_available():
        info = mx.device_info()
        return ok(f"{info['device_name']} · {info['architecture']}")
    if on_mac():
        return fail(
            "MLX finds no Metal device",
            "use a Mac with Apple silicon and macOS 14 or later, and no virtual machine",
        )
    return ok("no Metal here: MLX computes on the " + mx.default_device().type.name.upper())


def kernels() -> CheckResult:
    """The Metal kernels in the package, and their last verdicts."""
    sources = files("dflash_mlx.metal_kernels").iterdir()
    names = sorted(p.name.removesuffix(".metal") for p in sources if p.name.endswith(".metal"))
    if not names:
        return ok("none yet: MLX's own operations compute everything")
    found = f"{len(names)} in the package: {', '.join(names)}"
    if not mlx_core().metal.is_available():
        return ok(found)
    from dflash_mlx.kernels.dispatch import wanted
    from dflash_mlx.proof.results import latest_results

    if (switch := wanted()) != "on":
        found += f" · not used: DFLASH_KERNELS is {switch}"
    verdicts = [verdict for verdict in latest_results().values() if verdict.used]
    if not verdicts:
        return ok(found)
    on = sum(not verdict.reason for verdict in verdicts)
    off = [f"{verdict.name} off: {verdict.reason}" for verdict in verdicts if verdict.reason]
    found = " · ".join([found, f"{on} on at the last check", *off])
    if all(verdict.right for verdict in verdicts):
        return ok(found)
    return warn(found, "`dflash doctor --kernels` checks them anew; MLX's own stand in for them")
