"""The results of `dflash doctor`'s checks, and the lines that it prints."""

import os
import re
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..terminal.output import THEME, Output, stdout_size, strip_control

DEFAULT_WIDTH = 80
MAX_WIDTH = 100
MIN_WIDTH = 20
STACKED_BELOW = 60
STATUS_STYLES = {"ok": "accent", "warn": "warning", "off": "warning", "fail": "error"}
SEVERITY = tuple(STATUS_STYLES)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check: a key of STATUS_STYLES, what was found, and how to mend it."""

    status: str
    summary: str
    hint: str = ""


def ok(summary: str) -> CheckResult:
    return CheckResult("ok", summary)


def warn(summary: str, hint: str) -> CheckResult:
    return CheckResult("warn", summary, hint)


def fail(summary: str, hint: str) -> CheckResult:
    return CheckResult("fail", summary, hint)


def combine(results: Iterable[CheckResult]) -> CheckResult:
    """Several results as one, with the worst status."""
    results = list(results)
    return CheckResult(
        max((result.status for result in results), key=SEVERITY.index),
        " · ".join(result.summary for result in results),
        "; ".join(result.hint for result in results if result.hint),
    )


def one_line(text: str) -> str:
    return strip_control(" ".join(text.split()))


def short_path(path: Path | str) -> str:
    """A path with ~ for the home folder."""
    path = Path(path)
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):  # outside the home folder, or no home folder is known
        return str(path)


class CheckReport:
    """Results on stdout: aligned, wrapped, and coloured on a terminal; or one JSON object."""

    def __init__(self, out: Output, name_columns: int = 9, *, json: bool = False):
        self._out = out
        self._name_columns = name_columns
        self._json = json
        self.results: dict[str, CheckResult] = {}
        columns = stdout_size()[0] if out.stdout_is_tty else 0
        self.width = max(MIN_WIDTH, min(columns or DEFAULT_WIDTH, MAX_WIDTH))
        self._styled = out.stdout_is_tty and os.environ.get("TERM") not in ("dumb", "unknown")

    def add(self, name: str, result: CheckResult) -> None:
        """Show a result at once, unless the report is JSON."""
        self.results[name] = result
        if self._json:
            return
        text = "\n".join(self.lines(name, result)) + "\n"
        if not self._styled:
            self._out.write(text)
            return
        from rich.console import Console
        from rich.text import Text
        from rich.theme import Theme

        encoding = sys.stdout.encoding or "ascii"
        styled = Text(text.encode(encoding, "replace").decode(encoding))
        styled.stylize(STATUS_STYLES[result.status], 0, len(result.status))
        console = Console(theme=Theme(THEME), force_terminal=True, highlight=False)
        console.print(styled, end="", soft_wrap=True)

    def end(self) -> bool:
        """Write the JSON object, if it is one; whether nothing failed."""
        healthy = all(result.status != "fail" for result in self.results.values())
        if self._json:
            checks = []
            for name, result in self.results.items():
                texts = {"found": one_line(result.summary), "hint": one_line(result.hint)}
                checks.append({"name": name, "status": result.status, **texts})
            self._out.write_json({"checks": checks, "ok": healthy})
        return healthy

    def lines(self, name: str, result: CheckResult) -> list[str]:
        """The lines of one result, none wider than the report unless a character is wide."""
        start = f"{result.status:<6}"
        text = one_line(result.summary)
        if self.width < STACKED_BELOW:
            text = f"{name}: {text}"
        else:
            start += f"{name:<{self._name_columns}}  "
        parts = [text, f"→ {one_line(result.hint)}"] if result.hint else [text]
        lines = []
        for part in parts:
            # The space before a dot is no place for a break.
            joined = re.sub(" (?=[·|] )", "\N{NO-BREAK SPACE}", self._out.ascii_fallback(part))
            lines += textwrap.wrap(joined, self.width - len(start), break_on_hyphens=False)
        lines = [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
        return [(" " * len(start) if number else start) + line for number, line in enumerate(lines)]
