"""`dflash doctor`: checks the machine, the installation and the settings, and gives hints.

`machine`, `mlx_checks` and `checks` have the checks of this machine, `kernels` the self-check of
the Metal kernels, `model` that of a model's files.
"""

import os
import traceback
from collections.abc import Callable
from itertools import takewhile
from typing import Annotated, cast

import typer

from dflash_mlx.errors import DFlashError

from ..options import ModelOptions
from ..terminal.output import Output
from ..terminal.spinner import Spinner
from .report import CheckReport, CheckResult, fail, ok, warn

# The answer has 41 tokens, each by far the likeliest: 16-bit rounding cannot change them.
SELF_TEST_PROMPT = "Tom has 12 apples and buys 7 more. How many apples does Tom have now?"
MAX_TOKENS = 64
WARM_UP_TOKENS = 16
LOW_ACCEPTANCE_LENGTH = 2.0  # the bundled drafter reaches far more on this prompt
NEED_MLX = ("metal", "products", "kernels", "self-test")
NOT_IMPORTED = warn("not checked: MLX cannot be imported", "repair first what `mlx` says")
REINSTALL_HINT = (
    "run `make setup` in the clone again; if that does not help, report it with "
    "`dflash doctor --json`"
)


def doctor(
    ctx: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Check and time the Metal kernels.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="ID",
            help="Check this target's files; with --kernels its sizes.",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option("--draft", "-d", metavar="ID", help="Check this drafter, too."),
    ] = None,
) -> None:
    """Check this machine and say what to repair.

    \b
      dflash doctor                         the machine, MLX, models, settings
      dflash doctor -m qwen3:4b             the files of a model
      dflash doctor --kernels -m qwen3:4b   check and time the Metal kernels

    The exit code is 1 if something is wrong. Guide: `dflash help troubleshooting`.
    """
    out = Output()
    if kernels:
        from .kernels import check_kernels

        healthy = check_kernels(ModelOptions(model=model, draft=draft), out, json=json)
    elif model or draft:
        from .model import check_files

        healthy = check_files(model, draft, out, json=json)
    else:
        healthy = check_installation(cast(typer.Context, ctx.find_root()), out, json=json)
    if not healthy:
        raise typer.Exit(1)


def check_installation(root: typer.Context, out: Output, *, json: bool) -> bool:
    """Run and report all checks of this machine; False when one fails."""
    # Slow to import, and `--help` of all commands imports this module.
    from . import checks, machine, mlx_checks

    with Spinner(out, "asking MLX"):
        facts = mlx_checks.ask_mlx()
    # Every check by its name, in the order of the report.
    table: dict[str, Callable[[], CheckResult]] = {
        "machine": lambda: machine.machine(facts.info),
        "memory": lambda: machine.memory(facts.info),
        "power": machine.power,
        "versions": checks.versions,
        "mlx": lambda: mlx_checks.mlx(facts),
        "metal": lambda: mlx_checks.metal(facts),
        "products": mlx_checks.products,
        "kernels": lambda: mlx_checks.kernels(facts),
        "cache": checks.cache,
        "config": lambda: checks.config(root),
        "variables": lambda: checks.variables(root),
        "service": machine.service,
        "command": checks.command,
        "self-test": lambda: self_test(out),
    }
    report = CheckReport(out, json=json)
    for name, check in table.items():
        imported = facts.folder is not None or name not in NEED_MLX
        report.add(name, run_check(check) if imported else NOT_IMPORTED)
    return report.end()


def run_check(check: Callable[[], CheckResult]) -> CheckResult:
    """Run one check; an exception becomes a failed result."""
    try:
        return check()
    except DFlashError as error:
        return fail(error.message, error.hint)
    except Exception as error:
        if os.environ.get("DFLASH_DEBUG") == "1":
            traceback.print_exception(error)
        return fail(
            f"the check broke off: {type(error).__name__}: {error}".rstrip(": "),
            f"run it again with DFLASH_DEBUG=1 to see where; {REINSTALL_HINT}",
        )


def self_test(out: Output) -> CheckResult:
    """Answer a prompt with the bundled pair in both modes and compare the tokens."""
    with Spinner(out, "answering with the bundled pair"):
        import dflash_mlx

        pair = dflash_mlx.load(cache_ram=0)
        for tokens in (WARM_UP_TOKENS, MAX_TOKENS):
            dflash, plain = (
                dflash_mlx.generate(pair, SELF_TEST_PROMPT, max_tokens=tokens, mode=mode)
                for mode in ("dflash", "baseline")
            )
    if dflash.tokens != plain.tokens:
        token_pairs = zip(dflash.tokens, plain.tokens, strict=False)
        first = 1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], token_pairs))
        return fail(f"DFlash and plain decoding differ from token {first} on", REINSTALL_HINT)
    tau = dflash.stats.acceptance_length
    summary = (
        f"the bundled pair · {len(dflash.tokens)} tokens, the same both ways · "
        f"DFlash {dflash.stats.tokens_per_second:,.1f} tok/s · "
        f"plain {plain.stats.tokens_per_second:,.1f} tok/s · τ {tau:.2f}"
    )
    if tau < LOW_ACCEPTANCE_LENGTH:
        return warn(f"{summary}, which is low", REINSTALL_HINT)
    return ok(summary)
