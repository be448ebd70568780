"""`dflash doctor`: looks at the machine, the installation and the settings, and says what to mend.

Runs the checks one by one, each by itself; what they look at is theirs to know.
"""

import json as jsonlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, cast

import typer

from dflash_mlx.errors import DFlashError, UsageError

from ..options import ModelOptions
from ..output import ASCII, STYLES, Output, clean, is_utf8
from ..terminal.wait import Wait
from . import installation, machine, surroundings
from .finding import Finding, fail, ok, warn

# 41 tokens, each likelier than the next by far: rounding in 16 bits cannot change them.
PROMPT = "Tom has 12 apples and buys 7 more. How many apples does Tom have now?"
MAX_TOKENS, WARM_UP = 64, 16
LOW_TAU = 2.0  # the bundled drafter does far better on this prompt
REPORT = "install dflash-chat again; if that does not help, report it with `dflash doctor --json`"

NAME = 9  # columns of the longest name
WIDTH, WIDEST, NARROWEST, NARROW = 80, 100, 20, 60
STATUS_STYLES = {"ok": "accent", "warn": "warning", "off": "warning", "fail": "error"}


@dataclass(frozen=True, slots=True)
class Check:
    """A finding and what it is about."""

    name: str
    status: str
    found: str
    hint: str


def doctor(
    ctx: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Prove and time the Metal kernels instead.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="ID", help="At this target's sizes. [bundled pair]"),
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", "-d", metavar="ID", help="And with this drafter.")
    ] = None,
) -> None:
    """Check this machine and this installation, and say what to mend.

    The exit code is 1 when something fails.
    """
    out = Output()
    if kernels:
        from .kernels import check_kernels

        if not check_kernels(ModelOptions(model=model, draft=draft), out, json=json):
            raise typer.Exit(1)
        return
    if model or draft:
        name = "--model" if model else "--draft"
        raise UsageError(f"{name} is for the check of the kernels.", hint="add --kernels")
    report = Report(out)
    checks = []
    for name, look in looks(cast(typer.Context, ctx.find_root()), out).items():
        checks.append(examine(name, look))
        if not json:
            report.show(checks[-1])
    healthy = all(check.status != "fail" for check in checks)
    if json:
        found = {"checks": [asdict(check) for check in checks], "ok": healthy}
        out.write(jsonlib.dumps(found, ensure_ascii=out.answers) + "\n")
    if not healthy:
        raise typer.Exit(1)


def looks(root: typer.Context, out: Output) -> dict[str, Callable[[], Finding]]:
    """Every check by its name, in the order of the report."""
    return {
        "machine": machine.machine,
        "chip": machine.chip,
        "memory": machine.memory,
        "system": machine.system,
        "python": machine.python,
        "versions": installation.versions,
        "blas": machine.blas,
        "metal": machine.metal,
        "kernels": machine.kernels,
        "cache": surroundings.cache,
        "config": lambda: surroundings.config(root),
        "variables": lambda: surroundings.variables(root),
        "data": surroundings.data,
        "history": surroundings.history,
        "terminal": surroundings.terminal,
        "packages": installation.packages,
        "command": installation.command,
        "module": installation.module,
        "self-test": lambda: self_test(out),
    }


def examine(name: str, look: Callable[[], Finding]) -> Check:
    """Run one check; whatever goes wrong in it is what it found."""
    try:
        finding = look()
    except DFlashError as error:
        finding = fail(error.message, error.hint)
    except Exception as error:
        if os.environ.get("DFLASH_DEBUG") == "1":
            traceback.print_exception(error)
        finding = fail(
            f"the check broke off: {type(error).__name__}: {error}".rstrip(": "),
            f"run it again with DFLASH_DEBUG=1 to see where; {REPORT}",
        )
    return Check(name, finding.status, one_line(finding.found), one_line(finding.hint))


def one_line(text: str) -> str:
    """Text without newlines or characters that steer a terminal."""
    return clean(" ".join(text.split()))


def self_test(out: Output) -> Finding:
    """Answer a prompt with the bundled pair both ways and hold the tokens against each other."""
    with Wait(out, "answering with the bundled pair"):
        import dflash_mlx

        pair = dflash_mlx.load()
        for mode in ("dflash", "baseline"):
            dflash_mlx.generate(pair, PROMPT, max_tokens=WARM_UP, mode=mode)
        ours = dflash_mlx.generate(pair, PROMPT, max_tokens=MAX_TOKENS)
        plain = dflash_mlx.generate(pair, PROMPT, max_tokens=MAX_TOKENS, mode="baseline")
    if ours.tokens != plain.tokens:
        pairs = enumerate(zip(ours.tokens, plain.tokens, strict=False), 1)
        shorter = min(len(ours.tokens), len(plain.tokens)) + 1
        first = next((number for number, (a, b) in pairs if a != b), shorter)
        return fail(f"DFlash and plain decoding differ from token {first} on", REPORT)
    tau = ours.stats.acceptance_length
    found = (
        f"{len(ours.tokens)} tokens, the same both ways · "
        f"DFlash {ours.stats.tokens_per_second:,.1f} tok/s · "
        f"plain {plain.stats.tokens_per_second:,.1f} tok/s · τ {tau:.2f}"
    )
    return ok(found) if tau >= LOW_TAU else warn(f"{found}, which is low", REPORT)


class Report:
    """The checks as lines on stdout: aligned, broken at the terminal's width, with colours on it.

    A narrow terminal gets no column for the names, which else has `name` columns.
    """

    def __init__(self, out: Output, name: int = NAME):
        self._out, self._name = out, name
        self.width = width() if out.answers else WIDTH
        self._ascii = out.answers and not is_utf8(sys.stdout)
        self._styled = out.answers and os.environ.get("TERM") not in ("dumb", "unknown")

    def show(self, check: Check) -> None:
        """Print one check."""
        text = "\n".join(self.lines(check)) + "\n"
        if not self._styled:
            self._out.write(text)
            return
        from rich.console import Console
        from rich.text import Text
        from rich.theme import Theme

        encoding = sys.stdout.encoding or "ascii"
        shown = Text(text.encode(encoding, "replace").decode(encoding))
        shown.stylize(STATUS_STYLES[check.status], 0, len(check.status))
        console = Console(theme=Theme(STYLES), force_terminal=True, highlight=False)
        console.print(shown, end="", soft_wrap=True)

    def lines(self, check: Check) -> list[str]:
        """The lines of one check, none longer than the width unless a character is wide."""
        found, hint = self._glyphs(check.found), self._glyphs(f"→ {check.hint}")
        if self.width < NARROW:
            start, indent = f"{check.status:<6}", 6
            found = f"{check.name}: {found}"
        else:
            start, indent = f"{check.status:<6}{check.name:<{self._name}}  ", 8 + self._name
        room = self.width - indent
        lines = wrap(found, room) + (wrap(hint, room) if check.hint else [])
        return [(" " * indent if number else start) + line for number, line in enumerate(lines)]

    def _glyphs(self, text: str) -> str:
        if self._ascii:
            for symbol, stand_in in ASCII.items():
                text = text.replace(symbol, stand_in)
        return text


def width() -> int:
    """Columns to use of the terminal on stdout."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(NARROWEST, min(columns or WIDTH, WIDEST))


def wrap(text: str, room: int) -> list[str]:
    """Break text at spaces, but not before a `·`; a longer word after a `/` if it has one."""
    lines = [""]
    for word in re.split(r" (?![·|] )", text):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append("")
        rest = f"{lines[-1]} {word}" if lines[-1] else word
        while len(rest) > room:
            cut = rest.rfind("/", 1, room) + 1 or room
            lines[-1:] = [rest[:cut], ""]
            rest = rest[cut:]
        lines[-1] = rest
    return lines
