"""`dflash doctor --kernels`: checks every Metal kernel against its reference and times it."""

import platform
import time
from dataclasses import asdict, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..loading import load_pair, prepare_libraries
from ..options import ModelOptions
from ..terminal.output import Output
from ..terminal.spinner import Spinner
from .report import CheckReport, CheckResult, ok

if TYPE_CHECKING:
    from mlx.nn import Module

    from dflash_mlx import Pair
    from dflash_mlx.selfcheck.results import KernelResult

NAME_COLUMNS = 20  # columns of the longest name
NO_METAL = "MLX computes on the CPU here: no kernel runs"
OTHER_EXPERTS = "layers of experts are MLX's own: no kernel covers those of this model"
WRONG_HINT = "MLX's own operations stand in for it; report it with `dflash doctor --kernels --json`"


def check_kernels(model_options: ModelOptions, out: Output, *, json: bool) -> bool:
    """Check the kernels at a pair's sizes and store the results; False when one is wrong."""
    prepare_libraries(offline=model_options.offline)
    from dflash_mlx.cpu.blas import use_openblas

    use_openblas()
    from dflash_mlx.device import device_info
    from dflash_mlx.installation import versions
    from dflash_mlx.kernels.dispatch import by_metal, wanted

    switch = wanted()
    if not by_metal():
        requested = [name for name in (model_options.model, model_options.draft) if name]
        nothing = f", so nothing was done with {' and '.join(requested)}" if requested else ""
        if json:
            note = {"device": None, "note": NO_METAL + nothing, "kernels": [], "ok": True}
            out.write_json(note)
        else:
            CheckReport(out).add("kernels", ok(NO_METAL + nothing))
        return True
    pair, _ = load_pair(model_options, out)
    started_at = time.perf_counter()
    results = check_all(pair, out)
    all_right = all(result.right for result in results)
    others = has_other_experts(pair.target.model)
    if json:
        info = device_info()
        document = {
            "device": info.get("device_name"),
            "architecture": info.get("architecture"),
            "system": platform.platform(),
            "model": pair.target_name,
            "switch": switch,
            "versions": versions(),
            "kernels": [result_json(result) for result in results],
            "experts": OTHER_EXPERTS if others else None,
            "seconds": round(time.perf_counter() - started_at, 3),
            "ok": all_right,
        }
        out.write_json(document)
        return all_right
    report = CheckReport(out, NAME_COLUMNS)
    for result in results:
        report.add(result.name, line_of(result))
    if others:
        report.add("experts", ok(OTHER_EXPERTS))
    if switch != "on":
        out.info(f"none is used as long as DFLASH_KERNELS is {switch}", "warning")
    return all_right


def has_other_experts(model: "Module") -> bool:
    from dflash_mlx.models.linear import SWITCHES, has_grouped_experts

    return any(isinstance(m, SWITCHES) and not has_grouped_experts(m) for m in model.modules())


def check_all(pair: "Pair", out: Output) -> list["KernelResult"]:
    """Check all kernels of a pair again, without a time limit; one result for each operation."""
    from dflash_mlx.kernels import dispatch
    from dflash_mlx.selfcheck.check import KernelCheck
    from dflash_mlx.selfcheck.results import UNUSED, KernelResult
    from dflash_mlx.selfcheck.shapes import shapes_of
    from dflash_mlx.selfcheck.trials import TRIALS

    kernels = pair.target.kernels
    kernels = replace(kernels, launcher=kernels.launcher or dispatch.MetalLauncher())
    with Spinner(out, "checking the kernels", unit="kernels") as spinner:
        check = KernelCheck(kernels, shapes_of(pair.target, pair.drafter), anew=True)
        check.run(on_check=spinner.update)
    names = [trial.name for trial in TRIALS]
    return [check.results.get(name, KernelResult(name, True, reason=UNUSED)) for name in names]


def result_json(result: "KernelResult") -> dict[str, Any]:
    """A kernel's result as JSON; `on`: whether the kernel is used.

    JSON has no infinity: an infinite error becomes null, and the reason explains it.
    """
    error = result.error if result.error is not None and isfinite(result.error) else None
    means = {"seconds": result.seconds, "ratio": result.ratio}
    return {**asdict(result), "error": error, **means, "on": not result.reason}


def line_of(result: "KernelResult") -> CheckResult:
    from dflash_mlx.selfcheck.results import UNUSED

    details = [result.reason] if result.reason else []
    if result.right and result.error is not None:
        details.append(f"error {result.error:.0e}" if result.error else "error 0")
    if result.ratio is not None and not result.reason:
        details.append(f"{result.ratio:.2f}× the time without it")
    if len(result.sizes) > 1:
        details.append(f"used at {len(result.won)} of {len(result.sizes)} sizes")
    if result.seconds is not None:
        details.append(f"{1e3 * result.seconds:.3f} ms")
    status = "ok" if result.reason in ("", UNUSED) else "off"
    return CheckResult(status, " · ".join(details), "" if result.right else WRONG_HINT)
