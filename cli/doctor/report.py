"""The lines that `dflash doctor` prints: one entry per check."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..terminal.output import ASCII_FALLBACKS, THEME, Output, is_utf8, strip_control

NAME_COLUMNS = 9  # columns of the longest name
DEFAULT_WIDTH = 80
MAX_WIDTH = 100
MIN_WIDTH = 20
STACKED_BELOW = 60
STATUS_STYLES = {"ok": "accent", "warn": "warning", "off": "warning", "fail": "error"}


@dataclass(frozen=True, slots=True)
class ReportEntry:
    name: str
    status: str
    summary: str
    hint: str

    def data(self) -> dict[str, str]:
        return {
            "name": self.name,
            "status": self.status,
            "found": self.summary,
            "hint": self.hint,
        }


def one_line(text: str) -> str:
    return strip_control(" ".join(text.split()))


class CheckReport:
    """Prints entries on stdout: aligned, wrapped, and coloured on a terminal."""

    def __init__(self, out: Output, name_columns: int = NAME_COLUMNS):
        self._out = out
        self._name_columns = name_columns
        self.width = report_width() if out.stdout_is_tty else DEFAULT_WIDTH
        self._ascii = out.stdout_is_tty and not is_utf8(sys.stdout)
        self._styled = out.stdout_is_tty and os.environ.get("TERM") not in ("dumb", "unknown")

    def write_json(self, entries: Sequence[ReportEntry], *, healthy: bool) -> None:
        self._out.write_json({"checks": [entry.data() for entry in entries], "ok": healthy})

    def show(self, entry: ReportEntry) -> None:
        text = "\n".join(self.lines(entry)) + "\n"
        if not self._styled:
            self._out.write(text)
            return
        from rich.console import Console
        from rich.text import Text
        from rich.theme import Theme

        encoding = sys.stdout.encoding or "ascii"
        styled = Text(text.encode(encoding, "replace").decode(encoding))
        styled.stylize(STATUS_STYLES[entry.status], 0, len(entry.status))
        console = Console(theme=Theme(THEME), force_terminal=True, highlight=False)
        console.print(styled, end="", soft_wrap=True)

    def lines(self, entry: ReportEntry) -> list[str]:
        """The lines of one entry, none wider than the report unless a character is wide."""
        text = self._ascii_fallback(entry.summary)
        hint = self._ascii_fallback(f"→ {entry.hint}")
        if self.width < STACKED_BELOW:
            start = f"{entry.status:<6}"
            indent = 6
            text = f"{entry.name}: {text}"
        else:
            start = f"{entry.status:<6}{entry.name:<{self._name_columns}}  "
            indent = 8 + self._name_columns
        text_width = self.width - indent
        lines = wrap_words(text, text_width) + (wrap_words(hint, text_width) if entry.hint else [])
        return [(" " * indent if number else start) + line for number, line in enumerate(lines)]

    def _ascii_fallback(self, text: str) -> str:
        if self._ascii:
            for symbol, stand_in in ASCII_FALLBACKS.items():
                text = text.replace(symbol, stand_in)
        return text


def report_width() -> int:
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(MIN_WIDTH, min(columns or DEFAULT_WIDTH, MAX_WIDTH))


def wrap_words(text: str, width: int) -> list[str]:
    """Wrap text at spaces, but not before a `·`; breaks a longer word after a `/` if it can."""
    lines = [""]
    for word in re.split(r" (?![·|] )", text):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        rest = f"{lines[-1]} {word}" if lines[-1] else word
        while len(rest) > width:
            cut = rest.rfind("/", 1, width) + 1 or width
            lines[-1:] = [rest[:cut], ""]
            rest = rest[cut:]
        lines[-1] = rest
    return lines


# The result of one check

Status = Literal["ok", "warn", "fail"]
SEVERITY: tuple[Status, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check. hint: how to fix a warn or a fail."""

    status: Status
    summary: str
    hint: str = ""

    def entry(self, name: str) -> ReportEntry:
        return ReportEntry(name, self.status, one_line(self.summary), one_line(self.hint))


def ok(summary: str) -> CheckResult:
    return CheckResult("ok", summary)


def warn(summary: str, hint: str) -> CheckResult:
    """The result for a thing that works, but not as well as it could."""
    return CheckResult("warn", summary, hint)


def fail(summary: str, hint: str) -> CheckResult:
    return CheckResult("fail", summary, hint)


def combine(results: Iterable[CheckResult]) -> CheckResult:
    """Several results as one, with the worst status."""
    results = list(results)
    return CheckResult(
        SEVERITY[max(SEVERITY.index(result.status) for result in results)],
        " · ".join(result.summary for result in results),
        "; ".join(result.hint for result in results if result.hint),
    )


def short_path(path: Path | str) -> str:
    """A path with ~ for the home folder."""
    path = Path(path)
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):  # outside the home folder, or no home folder is known
        return str(path)
