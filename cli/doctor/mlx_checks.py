"""The checks of MLX: that it can be imported, where it is from, its device and the kernels."""

import mmap
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from dflash_mlx.files.folder import is_sidecar
from dflash_mlx.installation import install_command, installed

from . import machine
from .checks import requirements
from .report import CheckResult, fail, ok, short_path, warn

PATIENCE = 60.0  # seconds for the other process
SHAPE = (16, 512)  # rows of a verify pass, and outputs
TOLERANCE = 0.03  # of the largest number
IMPORT_HINT = (  # on a Mac
    "start it in a terminal on the Mac's own screen: in a sandbox, a virtual machine or over "
    "ssh there may be no GPU; after a fault of the GPU, restart the Mac"
)


@dataclass(frozen=True, slots=True)
class MLXFacts:
    """What MLX says of itself. error: why it cannot be imported.

    folder: where it is; None with an error. gpu: whether it can use one. info: its facts of the
    GPU, or of the CPU without one.
    """

    error: str = ""
    folder: Path | None = None
    gpu: bool = False
    info: dict[str, Any] = field(default_factory=dict)


def ask_mlx() -> MLXFacts:
    """First in a process of its own, because MLX's import can abort where no GPU is."""
    # -P: what lies in the current folder is not imported, as in this process.
    asked = "from dflash_mlx.device import device_info; device_info()"
    line = [sys.executable, "-P", "-c", asked]
    try:
        done = subprocess.run(line, capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return MLXFacts(f"no answer within {PATIENCE:.0f} seconds")
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip() or "it said nothing"
        error = said.splitlines()[-1].strip()[:200]
        if done.returncode < 0:
            error += f" ({signal.Signals(-done.returncode).name})"
        return MLXFacts(error)
    from dflash_mlx.cpu.blas import use_openblas

    use_openblas()  # must run before MLX is imported
    import mlx.core as mx

    from dflash_mlx.device import device_info

    return MLXFacts("", Path(mx.__file__).parent, mx.is_available(mx.gpu), device_info())


def mlx(facts: MLXFacts) -> CheckResult:
    """Where MLX is from, and whether it has the kernels that this Mac's GPU can use."""
    on_mac = machine.on_mac()
    if facts.folder is None:
        hint = IMPORT_HINT if on_mac else reinstall_hint()
        return fail(f"cannot be imported: {facts.error}", hint)
    package = installed("mlx-metal" if on_mac else "mlx-cpu")
    tag = re.search(r"^Tag: .*-(.*)", (package and package.read_text("WHEEL")) or "", re.MULTILINE)
    summary = f"{short_path(facts.folder)} · wheel {tag[1] if tag else 'unknown'}"
    if not on_mac:
        return ok(summary)
    version = machine.macos_version()
    summary += f" on macOS {version}"
    kernels = facts.folder / "lib" / "mlx.metallib"
    if package is None or package.read_text("direct_url.json") or not kernels.is_file():
        return warn(
            f"{short_path(facts.folder)} · not the wheel of PyPI: kernels for the matrix units of "
            "M5 can be missing or wrong",
            reinstall_hint(),
        )
    from dflash_mlx.device import UNITS_NEED, has_matrix_units

    if not has_matrix_units(facts.info.get("architecture", "")):
        return ok(summary)
    if tuple(map(int, re.findall(r"\d+", version))) < UNITS_NEED:
        return fail(
            f"{summary}: MLX uses this GPU's matrix units, which need macOS 26.2",
            "update to macOS 26.2 or later",
        )
    with kernels.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        has_unit_kernels = data.find(b"_nax_") >= 0  # as the macOS 26 wheel has
    if not has_unit_kernels:
        return warn(f"{summary} has no kernels for this GPU's matrix units", reinstall_hint())
    return ok(f"{summary} · with kernels for the matrix units")


def reinstall_hint() -> str:
    """The command that installs MLX's wheel in the place of another one."""
    package = next((str(need) for need in requirements() if need.name == "mlx"), "mlx")
    return f"{install_command(package, again=True)} installs the right wheel"


def metal(facts: MLXFacts) -> CheckResult:
    """The device that MLX computes on; without a GPU also the library of matrix products."""
    if facts.gpu:
        return ok(f"{facts.info['device_name']} · {facts.info['architecture']}")
    if machine.on_mac():
        return fail(
            "MLX finds no Metal device",
            "use a Mac with Apple silicon and macOS 14 or later, and no virtual machine",
        )
    from dflash_mlx.cpu.blas import use_openblas

    summary = "no Metal here: MLX computes on the CPU"
    if library := use_openblas():
        return ok(f"{summary} with OpenBLAS · {library}")
    hint = "`sudo apt install libopenblas0-pthread`, or what your distribution calls OpenBLAS"
    if os.environ.get("DFLASH_BLAS") == "off":
        hint = "`unset DFLASH_BLAS`, so that OpenBLAS, which is many times faster, is used"
    return warn(f"{summary} with its own slow libblas, not with OpenBLAS", hint)


def products() -> CheckResult:
    """Whether a pass over several rows computes what a pass over each row does.

    Some builds of MLX multiplied more than 8 rows wrongly (mlx #3585).
    """
    import mlx.core as mx

    from dflash_mlx.kernels.dispatch import use_device

    use_device()
    rows, weight = (mx.random.normal((n, 1024), mx.bfloat16, key=mx.random.key(0)) for n in SHAPE)
    packed = mx.quantize(weight, bits=4)
    alone = mx.split(rows, len(rows))
    wrong = []
    for kind, multiply in (
        ("bfloat16", lambda x: x @ weight.T),
        ("4-bit", lambda x: mx.quantized_matmul(x, *packed, bits=4)),
    ):
        expected = mx.concatenate([multiply(row) for row in alone])
        error = mx.abs(multiply(rows) - expected).max() / mx.abs(expected).max()
        difference = cast(float, error.item())
        if not difference <= TOLERANCE:  # NaN is wrong, too
            wrong.append(f"{kind} by {difference:.2f}")
    if wrong:
        found = f"{len(rows)} rows at once differ from each row alone: {', '.join(wrong)}"
        return fail(f"{found} of the largest number", reinstall_hint())
    return ok(f"{len(rows)} rows at once equal each row alone: bfloat16, 4-bit")


def kernels(facts: MLXFacts) -> CheckResult:
    """The Metal kernels in the package; with a GPU also the results of their last self-check."""
    sources = files("dflash_mlx.metal_kernels").iterdir()
    names = [p.name for p in sources if p.name.endswith(".metal") and not is_sidecar(p.name)]
    listed = ", ".join(sorted(name.removesuffix(".metal") for name in names))
    summary = f"{len(names)} in the package: {listed}"
    if not facts.gpu:
        return ok(summary)
    from dflash_mlx.kernels.dispatch import wanted
    from dflash_mlx.selfcheck.results import latest_results

    if (switch := wanted()) != "on":
        summary += f" · not used: DFLASH_KERNELS is {switch}"
    results = latest_results().values()
    if not results:
        return ok(summary)
    on = sum(not result.reason for result in results)
    off = [f"{result.name} off: {result.reason}" for result in results if result.reason]
    summary = " · ".join([summary, f"{on} on at the last check", *off])
    if all(result.right for result in results):
        return ok(summary)
    return warn(summary, "`dflash doctor --kernels` checks them anew; MLX's own stand in for them")
