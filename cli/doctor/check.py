"""The result of one check of `dflash doctor`. Knows no checks."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Status = Literal["ok", "warn", "fail"]
SEVERITY: tuple[Status, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found; `hint` says how to fix a warn or a fail."""

    status: Status
    found: str
    hint: str = ""


def ok(found: str) -> CheckResult:
    """Nothing to fix."""
    return CheckResult("ok", found)


def warn(found: str, hint: str) -> CheckResult:
    """It works, but not as well as it could."""
    return CheckResult("warn", found, hint)


def fail(found: str, hint: str) -> CheckResult:
    """It does not work."""
    return CheckResult("fail", found, hint)


def combine(results: Iterable[CheckResult]) -> CheckResult:
    """Several results as one, with the worst status."""
    results = list(results)
    return CheckResult(
        SEVERITY[max(SEVERITY.index(result.status) for result in results)],
        " · ".join(result.found for result in results),
        "; ".join(result.hint for result in results if result.hint),
    )


def short_path(path: Path | str) -> str:
    """A path with ~ for the home folder."""
    path = Path(path)
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):  # outside the home folder, or no home folder is known
        return str(path)
