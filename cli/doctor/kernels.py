"""`dflash doctor --kernels`: every kernel held against its reference, and timed, before the user.

Knows verdicts and how to show them; what they are made of is the engine's to know.
"""

import json as jsonlib
import time
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..loading import load_pair, prepare_libraries
from ..options import ModelOptions
from ..output import Output
from ..terminal.wait import Wait
from .command import Check, Report, one_line

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.proof.prove import Verdict

NAME = 20  # columns of the longest name
NO_METAL = "MLX computes on the CPU here: no kernel runs"
INSTEAD = "MLX's own operations stand in for it; report it with `dflash doctor --kernels --json`"


def check_kernels(models: ModelOptions, out: Output, *, json: bool) -> bool:
    """Prove the kernels anew at a pair's sizes and keep the verdicts; False when one is wrong."""
    prepare_libraries(offline=models.offline)
    from dflash_mlx.cpu.blas import use_openblas

    use_openblas()
    from dflash_mlx.kernels.dispatch import by_metal, wanted

    word = wanted()
    if not by_metal():
        tell_none(models, out, json=json)
        return True
    pair, _ = load_pair(models, out)
    began = time.perf_counter()
    verdicts = prove_all(pair, out)
    seconds = time.perf_counter() - began
    right = all(verdict.right for verdict in verdicts)
    if json:
        found = {
            **whereabouts(pair.target_name, word),
            "kernels": [parts(verdict) for verdict in verdicts],
            "seconds": round(seconds, 3),
            "ok": right,
        }
        out.write(jsonlib.dumps(found, ensure_ascii=out.answers) + "\n")
        return right
    report = Report(out, NAME)
    for verdict in verdicts:
        report.show(check_of(verdict))
    if word != "on":
        out.tell(f"none is used as long as DFLASH_KERNELS is {word}", "warning")
    return right


def tell_none(models: ModelOptions, out: Output, *, json: bool) -> None:
    """Say that there is nothing to prove, and that a model was not looked at for it."""
    asked = " and ".join(name for name in (models.model, models.draft) if name)
    note = f"{NO_METAL}, so nothing was done with {asked}" if asked else NO_METAL
    if json:
        found = {"device": None, "note": note, "kernels": [], "ok": True}
        out.write(jsonlib.dumps(found, ensure_ascii=out.answers) + "\n")
    else:
        Report(out).show(Check("kernels", "ok", note, ""))


def prove_all(pair: "Pair", out: Output) -> list["Verdict"]:
    """The verdicts on all operations, whatever the file says; the time is not limited."""
    from dflash_mlx.kernels import dispatch
    from dflash_mlx.proof.shapes import Shapes
    from dflash_mlx.proof.verdicts import prove_and_keep

    with Wait(out, "checking the kernels") as wait:
        return list(
            prove_and_keep(
                pair.target.kernels.launcher or dispatch.MetalLauncher(),
                Shapes.of(pair),
                budget=float("inf"),
                everything=True,
                on_verdict=lambda verdict: wait.turn(f"checking {verdict.name}"),
            )
        )


def whereabouts(model: str, word: str) -> dict[str, Any]:
    """What the verdicts were found with."""
    import platform
    from importlib.metadata import version

    import mlx.core as mx

    from dflash_mlx import __version__

    info = mx.device_info()
    return {
        "device": info.get("device_name"),
        "architecture": info.get("architecture"),
        "system": platform.platform(),
        "model": model,
        "switch": word,
        "versions": {"dflash": __version__, "mlx": version("mlx"), "mlx_lm": version("mlx-lm")},
    }


def parts(verdict: "Verdict") -> dict[str, Any]:
    """A verdict as it is printed; `on` says whether the kernel is used.

    JSON has no infinity: an error that is none stands in the reason.
    """
    error = verdict.error if verdict.error is not None and isfinite(verdict.error) else None
    return {**asdict(verdict), "error": error, "on": not verdict.reason}


def check_of(verdict: "Verdict") -> Check:
    """A verdict as a line: what was found, and what to do about a kernel that is wrong."""
    used = not verdict.reason or (verdict.right and not verdict.used)
    found = [] if not verdict.reason else [verdict.reason]
    if verdict.right and verdict.error is not None:
        found.append(f"error {verdict.error:.0e}" if verdict.error else "error 0")
    if verdict.ratio is not None and not verdict.reason:
        found.append(f"{verdict.ratio:.2f}× the time of MLX's own")
    if verdict.seconds is not None:
        found.append(f"{1e3 * verdict.seconds:.3f} ms")
    hint = "" if verdict.right else INSTEAD
    return Check(verdict.name, "ok" if used else "off", one_line(" · ".join(found)), hint)
