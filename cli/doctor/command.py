"""`dflash doctor`: checks the machine, the installation and the settings, and gives hints.

`checks`, `macos` and `mlx_checks` have the checks of this machine, `kernels` the self-check of the
Metal kernels, `model` that of a model's files.
"""

import os
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dflash_mlx.errors import DFlashError

from ..options import ModelOptions
from ..terminal.output import Output
from ..terminal.spinner import Spinner
from .report import CheckReport, CheckResult, ReportEntry, fail, ok, warn

if TYPE_CHECKING:
    from .mlx_checks import MLXFacts

# The answer has 41 tokens, each by far the likeliest: 16-bit rounding cannot change them.
SELF_TEST_PROMPT = "Tom has 12 apples and buys 7 more. How many apples does Tom have now?"
MAX_TOKENS = 64
WARM_UP_TOKENS = 16
LOW_ACCEPTANCE_LENGTH = 2.0  # the bundled drafter reaches far more on this prompt
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
    from .mlx_checks import ask_mlx

    report = CheckReport(out)
    entries = []
    with Spinner(out, "asking MLX"):
        facts = ask_mlx()
    for name, check in all_checks(root, facts, out).items():
        entries.append(run_check(name, check))
        if not json:
            report.show(entries[-1])
    healthy = all(entry.status != "fail" for entry in entries)
    if json:
        report.write_json(entries, healthy=healthy)
    return healthy


def all_checks(
    root: typer.Context, facts: "MLXFacts", out: Output
) -> dict[str, Callable[[], CheckResult]]:
    """Every check by its name, in the order of the report. Some need MLX in this process."""
    # Slow to import, and `--help` of all commands imports this module.
    from . import checks, macos, mlx_checks

    def with_mlx(check: Callable[[], CheckResult]) -> Callable[[], CheckResult]:
        return mlx_checks.not_imported if facts.folder is None else check

    return {
        "machine": checks.machine,
        "chip": checks.chip,
        "memory": lambda: checks.memory(facts.info),
        "power": macos.power,
        "system": checks.system,
        "python": checks.python,
        "versions": checks.versions,
        "mlx": lambda: mlx_checks.mlx(facts),
        "metal": lambda: mlx_checks.metal(facts),
        "blas": with_mlx(checks.blas),
        "products": lambda: mlx_checks.products(facts),
        "float32": lambda: mlx_checks.float32(facts),
        "kernels": with_mlx(lambda: checks.kernels(gpu=facts.gpu)),
        "cache": checks.cache,
        "config": lambda: checks.config(root),
        "variables": lambda: checks.variables(root),
        "data": checks.data,
        "history": checks.history,
        "service": macos.service,
        "terminal": checks.terminal,
        "packages": checks.packages,
        "command": checks.command,
        "module": checks.module,
        "self-test": with_mlx(lambda: self_test(out)),
    }


def run_check(name: str, check: Callable[[], CheckResult]) -> ReportEntry:
    """Run one check; an exception becomes a failed result."""
    try:
        result = check()
    except DFlashError as error:
        result = fail(error.message, error.hint)
    except Exception as error:
        if os.environ.get("DFLASH_DEBUG") == "1":
            traceback.print_exception(error)
        result = fail(
            f"the check broke off: {type(error).__name__}: {error}".rstrip(": "),
            f"run it again with DFLASH_DEBUG=1 to see where; {REINSTALL_HINT}",
        )
    return result.entry(name)


def self_test(out: Output) -> CheckResult:
    """Answer a prompt with the bundled pair in both modes and compare the tokens."""
    with Spinner(out, "answering with the bundled pair"):
        import dflash_mlx

        pair = dflash_mlx.load(cache_ram=0)
        for mode in ("dflash", "baseline"):
            dflash_mlx.generate(pair, SELF_TEST_PROMPT, max_tokens=WARM_UP_TOKENS, mode=mode)
        dflash = dflash_mlx.generate(pair, SELF_TEST_PROMPT, max_tokens=MAX_TOKENS)
        baseline = dflash_mlx.generate(
            pair, SELF_TEST_PROMPT, max_tokens=MAX_TOKENS, mode="baseline"
        )
    if dflash.tokens != baseline.tokens:
        token_pairs = enumerate(zip(dflash.tokens, baseline.tokens, strict=False), 1)
        shorter = min(len(dflash.tokens), len(baseline.tokens)) + 1
        first = next((number for number, (a, b) in token_pairs if a != b), shorter)
        return fail(f"DFlash and plain decoding differ from token {first} on", REINSTALL_HINT)
    tau = dflash.stats.acceptance_length
    summary = (
        f"the bundled pair · {len(dflash.tokens)} tokens, the same both ways · "
        f"DFlash {dflash.stats.tokens_per_second:,.1f} tok/s · "
        f"plain {baseline.stats.tokens_per_second:,.1f} tok/s · τ {tau:.2f}"
    )
    if tau < LOW_ACCEPTANCE_LENGTH:
        return warn(f"{summary}, which is low", REINSTALL_HINT)
    return ok(summary)
