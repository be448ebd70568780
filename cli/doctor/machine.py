"""What the machine is and what MLX makes of it: the checks of `dflash doctor` below Python.

Knows macOS and Linux, not the terminal. MLX is imported here only through `core`.
"""

import ctypes
import os
import platform
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from .finding import Finding, fail, ok, short, warn

CPUINFO = Path("/proc/cpuinfo")
PRODUCT = Path("/sys/class/dmi/id/product_name")
MAPS = Path("/proc/self/maps")


def on_mac() -> bool:
    """Whether this is macOS."""
    return sys.platform == "darwin"


def sysctl(name: str) -> str:
    """A value that macOS tells about the machine; empty when it does not know the name."""
    asked = ["/usr/sbin/sysctl", "-in", name]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def core() -> Any:
    """`mlx.core`, with OpenBLAS under it where there is one."""
    from dflash_mlx.cpu.blas import use_openblas

    use_openblas()
    import mlx.core

    return mlx.core


def machine() -> Finding:
    """The model's name, if it has one, and the architecture."""
    if on_mac():
        model = sysctl("hw.model")
    else:
        model = PRODUCT.read_text("utf-8", "replace").strip() if PRODUCT.is_file() else ""
    return ok(" · ".join(part for part in (model, platform.machine()) if part))


def chip() -> Finding:
    """The processor's name and its cores."""
    if on_mac():
        name = sysctl("machdep.cpu.brand_string")
    else:
        lines = (line.partition(":") for line in CPUINFO.read_text("utf-8").splitlines())
        name = next((v.strip() for k, _, v in lines if k.strip() == "model name"), "")
    return ok(f"{name or 'not named by the system'} · {os.cpu_count()} cores")


def memory() -> Finding:
    """All of the memory and, with Metal, how much of it the GPU should use (GB of 2^30 bytes)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = f"{total / 2**30:.1f} GB"
    if on_mac() and core().metal.is_available():
        limit = core().device_info()["max_recommended_working_set_size"]
        found += f" · recommended working set {limit / 2**30:.1f} GB"
    return ok(found)


def system() -> Finding:
    """macOS or the Linux distribution, with its version."""
    if on_mac():
        return ok(f"macOS {platform.mac_ver()[0]}")
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = "a distribution without os-release"
    return ok(f"{name} · Linux {platform.release()}")


def python() -> Finding:
    """Version and place; on a Mac it must be made for Apple silicon."""
    found = f"{platform.python_version()} · {platform.machine()} · {short(sys.executable)}"
    if not on_mac() or platform.machine() == "arm64":
        return ok(found)
    if sysctl("sysctl.proc_translated") == "1":
        return fail(
            f"{found} · made for Intel, runs under Rosetta",
            "install dflash-chat with an arm64 Python, for example one of python.org or "
            "`uv python install cpython-3.12-macos-aarch64`",
        )
    return fail(f"{found} · this Mac has an Intel processor", "MLX needs a Mac with Apple silicon")


def blas() -> Finding:
    """Which library computes MLX's matrix products on the CPU."""
    if on_mac():
        return ok("Accelerate, as MLX is built")
    core()
    library = product_library()
    if os.environ.get("DFLASH_BLAS") == "off":
        return warn(
            f"DFLASH_BLAS=off: MLX computes with {short(library)}",
            "`unset DFLASH_BLAS`, so that OpenBLAS, which is many times faster, is used",
        )
    if "openblas" in library.name:
        return ok(f"OpenBLAS · {short(library)}")
    return warn(
        f"OpenBLAS is not in force: MLX computes with the slow {short(library)}",
        "`sudo apt install libopenblas0-pthread`, or what your distribution calls OpenBLAS",
    )


def product_library() -> Path:
    """The file that `cblas_sgemm` of MLX is in, found in the order of the dynamic linker.

    What is loaded for the whole process comes first, then what MLX's own library brings along.
    """
    mapped = [line.split(maxsplit=5) for line in MAPS.read_text("utf-8").splitlines()]
    mapped = [fields for fields in mapped if len(fields) == 6]
    own = next(fields[5] for fields in mapped if fields[5].endswith("/libmlx.so"))
    symbol = getattr(ctypes.CDLL(None), "cblas_sgemm", None) or ctypes.CDLL(own).cblas_sgemm
    address = ctypes.cast(symbol, ctypes.c_void_p).value or 0
    for fields in mapped:
        begin, end = (int(number, 16) for number in fields[0].split("-"))
        if begin <= address < end:
            return Path(fields[5])
    raise LookupError("cblas_sgemm is in no mapped file")


def metal() -> Finding:
    """Whether MLX can use the GPU."""
    mx = core()
    if mx.metal.is_available():
        info = mx.device_info()
        return ok(f"{info['device_name']} · {info['architecture']}")
    if on_mac():
        return fail(
            "MLX finds no Metal device",
            "use a Mac with Apple silicon and macOS 14 or later, and no virtual machine",
        )
    return ok("no Metal here: MLX computes on the " + mx.default_device().type.name.upper())


def kernels() -> Finding:
    """The Metal kernels that the package brings."""
    places = files("dflash_mlx.metal_kernels").iterdir()
    names = sorted(p.name.removesuffix(".metal") for p in places if p.name.endswith(".metal"))
    if not names:
        return ok("none yet: MLX's own operations compute everything")
    found = f"{len(names)} in the package: {', '.join(names)}"
    if not core().metal.is_available():
        return ok(found)
    from dflash_mlx.kernels.dispatch import wanted
    from dflash_mlx.proof.verdicts import latest

    if (word := wanted()) != "on":
        found += f" · not used: DFLASH_KERNELS is {word}"
    verdicts = [verdict for verdict in latest().values() if verdict.used]
    if not verdicts:
        return ok(found)
    on = sum(not verdict.reason for verdict in verdicts)
    off = [f"{verdict.name} off: {verdict.reason}" for verdict in verdicts if verdict.reason]
    found = " · ".join([found, f"{on} on at the last check", *off])
    if all(verdict.right for verdict in verdicts):
        return ok(found)
    return warn(found, "`dflash doctor --kernels` checks them anew; MLX's own stand in for them")
