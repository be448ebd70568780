"""The checks of MLX: that it can be imported, where it is from, and whether it multiplies right.

They read what the process of `probe` says, so that they import MLX only where that went well.
"""

import json
import mmap
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_mlx.installation import install_command, installed

from . import macos
from .checks import REQUIRED, version_numbers
from .probe import ROWS
from .report import CheckResult, fail, ok, short_path, warn

PATIENCE = 60.0  # seconds for the probe
# In parts of a product's largest number. bfloat16 rounds by 0.004; a wrong kernel is far beyond.
TOLERANCE = 0.03
IMPORT_HINT = (  # on a Mac
    "start it in a terminal on the Mac's own screen: in a sandbox, a virtual machine or over "
    "ssh there may be no GPU; after a fault of the GPU, restart the Mac"
)


@dataclass(frozen=True, slots=True)
class MLXFacts:
    """What the probe says. error: its last words if it failed, and the signal; else empty.

    folder: where MLX is; None if it could not be imported. gpu: whether MLX can use one. device:
    the default one, "gpu" or "cpu". info: MLX's facts of the GPU, or of the CPU without one.
    differences: as `probe.differences`; empty if the probe failed.
    """

    error: str = ""
    folder: Path | None = None
    gpu: bool = False
    device: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)


def ask_mlx() -> MLXFacts:
    """Import MLX in another process, and let it multiply."""
    # -P: what lies in the current folder is not imported, as in this process.
    line = [sys.executable, "-P", "-m", "dflash_mlx.cli.doctor.probe"]
    try:
        done = subprocess.run(line, capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as expired:
        printed = expired.stdout or b""
        error = f"no answer within {PATIENCE:.0f} seconds"
    else:
        printed = done.stdout
        error = ""
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip() or "it said nothing"
            error = said.splitlines()[-1].strip()[:200]
        if done.returncode < 0:
            error += f" ({signal.Signals(-done.returncode).name})"
    records = [json.loads(line) for line in printed.splitlines() if line.startswith(b"{")]
    if not records:
        return MLXFacts(error)
    facts = {**records[0], "folder": Path(records[0]["folder"])}
    return MLXFacts(error, **facts, differences=records[1] if len(records) > 1 else {})


def mlx(facts: MLXFacts) -> CheckResult:
    """Where MLX is from, and whether it has the kernels that this Mac's GPU can use."""
    if facts.folder is None:
        hint = IMPORT_HINT if macos.on_mac() else reinstall_hint()
        return fail(f"cannot be imported: {facts.error}", hint)
    package = installed("mlx-metal" if macos.on_mac() else "mlx-cpu")
    tag = re.search(r"^Tag: .*-(.*)", (package and package.read_text("WHEEL")) or "", re.MULTILINE)
    summary = f"{short_path(facts.folder)} · wheel {tag[1] if tag else 'unknown'}"
    if not macos.on_mac():
        return ok(summary)
    summary += f" on macOS {macos.version()}"
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
    if version_numbers(macos.version()) < UNITS_NEED:
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
    name = "mlx" if macos.on_mac() else "mlx[cpu]"
    return f"{install_command(name + REQUIRED['mlx'], again=True)} installs the right wheel"


def metal(facts: MLXFacts) -> CheckResult:
    if facts.gpu:
        return ok(f"{facts.info['device_name']} · {facts.info['architecture']}")
    if macos.on_mac():
        return fail(
            "MLX finds no Metal device",
            "use a Mac with Apple silicon and macOS 14 or later, and no virtual machine",
        )
    return ok(f"no Metal here: MLX computes on the {facts.device.upper()}")


def products(facts: MLXFacts) -> CheckResult:
    """Whether a pass over several rows computes what a pass over each row does."""
    if not facts.differences:
        return fail(f"MLX cannot multiply: {facts.error}", reinstall_hint())
    wrong = [
        f"{kind} by {difference:.2f}"
        for kind, difference in facts.differences.items()
        if not difference <= TOLERANCE  # NaN is wrong, too
    ]
    if wrong:
        return fail(
            f"{ROWS} rows at once differ from each row alone, in parts of the largest number: "
            f"{', '.join(wrong)}",
            reinstall_hint(),
        )
    return ok(f"{ROWS} rows at once equal each row alone: {', '.join(facts.differences)}")


def float32(facts: MLXFacts) -> CheckResult:
    """Whether MLX rounds float32 products. `engine.worker_thread` switches that off."""
    from dflash_mlx.device import TF32, has_full_float32, has_matrix_units

    value = os.environ.get(TF32)
    if value is None:
        return ok(f"products are not rounded: dflash sets {TF32} to 0")
    has_units = facts.device == "gpu" and has_matrix_units(facts.info["architecture"])
    if has_units and not has_full_float32():
        return warn(f"products are rounded to about 10 bits: {TF32} is {value}", f"`unset {TF32}`")
    return ok(f"products are not rounded: {TF32} is {value}")
