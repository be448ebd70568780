"""`dflash doctor --kernels`: checks every Metal kernel against its reference and times it."""

import time
from dataclasses import asdict, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..loading import load_pair, prepare_libraries
from ..options import ModelOptions
from ..terminal.output import Output
from ..terminal.spinner import Spinner
from .report import CheckReport, ReportEntry, one_line

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
    from dflash_mlx.kernels.dispatch import by_metal, wanted

    switch = wanted()
    if not by_metal():
        report_no_metal(model_options, out, json=json)
        return True
    pair, _ = load_pair(model_options, out)
    started_at = time.perf_counter()
    results = check_all(pair, out)
    seconds = time.perf_counter() - started_at
    all_right = all(result.right for result in results)
    if json:
        document = {
            **check_environment(pair.target_name, switch),
            "kernels": [result_json(result) for result in results],
            "experts": OTHER_EXPERTS if has_other_experts(pair.target.model) else None,
            "seconds": round(seconds, 3),
            "ok": all_right,
        }
        out.write_json(document)
        return all_right
    report = CheckReport(out, NAME_COLUMNS)
    for result in results:
        report.show(result_entry(result))
    if has_other_experts(pair.target.model):
        report.show(ReportEntry("experts", "ok", OTHER_EXPERTS, ""))
    if switch != "on":
        out.info(f"none is used as long as DFLASH_KERNELS is {switch}", "warning")
    return all_right


def report_no_metal(model_options: ModelOptions, out: Output, *, json: bool) -> None:
    """Report that no kernel runs here, and that the models named were not loaded."""
    requested = " and ".join(name for name in (model_options.model, model_options.draft) if name)
    note = f"{NO_METAL}, so nothing was done with {requested}" if requested else NO_METAL
    if json:
        out.write_json({"device": None, "note": note, "kernels": [], "ok": True})
    else:
        CheckReport(out).show(ReportEntry("kernels", "ok", note, ""))


def has_other_experts(model: "Module") -> bool:
    """Whether a model has layers of experts that `grouped_experts` does not know."""
    from dflash_mlx.models.linear import SWITCHES, has_grouped_experts

    return any(isinstance(m, SWITCHES) and not has_grouped_experts(m) for m in model.modules())


def check_all(pair: "Pair", out: Output) -> list["KernelResult"]:
    """Check all operations again, without a time limit."""
    from dflash_mlx.kernels import dispatch
    from dflash_mlx.selfcheck.check import KernelCheck
    from dflash_mlx.selfcheck.results import UNUSED, KernelResult
    from dflash_mlx.selfcheck.shapes import Shapes
    from dflash_mlx.selfcheck.trials import TRIALS

    kernels = pair.target.kernels
    kernels = replace(kernels, launcher=kernels.launcher or dispatch.MetalLauncher())
    with Spinner(out, "checking the kernels", unit="kernels") as spinner:
        check = KernelCheck(kernels, Shapes.of(pair.target, pair.drafter), anew=True)
        check.run(on_check=spinner.update)
    names = [trial.name for trial in TRIALS]
    return [check.results.get(name, KernelResult(name, True, reason=UNUSED)) for name in names]


def check_environment(model: str, switch: str) -> dict[str, Any]:
    """The machine, the model and the versions that the results hold for."""
    import platform

    from dflash_mlx.device import device_info
    from dflash_mlx.installation import versions

    info = device_info()
    return {
        "device": info.get("device_name"),
        "architecture": info.get("architecture"),
        "system": platform.platform(),
        "model": model,
        "switch": switch,
        "versions": versions(),
    }


def result_json(result: "KernelResult") -> dict[str, Any]:
    """A kernel's result as JSON; `on`: whether the kernel is used.

    JSON has no infinity: an infinite error becomes null, and the reason explains it.
    """
    error = result.error if result.error is not None and isfinite(result.error) else None
    means = {"seconds": result.seconds, "ratio": result.ratio}
    return {**asdict(result), "error": error, **means, "on": not result.reason}


def result_entry(result: "KernelResult") -> ReportEntry:
    from dflash_mlx.selfcheck.results import UNUSED

    details = [result.reason] if result.reason else []
    if result.right and result.error is not None:
        details.append(f"error {result.error:.0e}" if result.error else "error 0")
    if result.ratio is not None and not result.reason:
        details.append(f"{result.ratio:.2f}× the time of MLX's own")
    if len(result.sizes) > 1:
        details.append(f"used at {len(result.won)} of {len(result.sizes)} sizes")
    if result.seconds is not None:
        details.append(f"{1e3 * result.seconds:.3f} ms")
    hint = "" if result.right else WRONG_HINT
    status = "ok" if result.reason in ("", UNUSED) else "off"
    return ReportEntry(result.name, status, one_line(" · ".join(details)), hint)
