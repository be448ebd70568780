"""What a check of `dflash doctor` found, and how findings become one. Knows no checks."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Status = Literal["ok", "warn", "fail"]
ORDER: tuple[Status, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Finding:
    """What is there; `hint` says what to do about a warn or a fail."""

    status: Status
    found: str
    hint: str = ""


def ok(found: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", found)


def warn(found: str, hint: str) -> Finding:
    """It works, but not as well as it could."""
    return Finding("warn", found, hint)


def fail(found: str, hint: str) -> Finding:
    """It does not work."""
    return Finding("fail", found, hint)


def together(parts: Iterable[Finding]) -> Finding:
    """Several findings as one, with the worst status."""
    parts = list(parts)
    return Finding(
        ORDER[max(ORDER.index(part.status) for part in parts)],
        " · ".join(part.found for part in parts),
        "; ".join(part.hint for part in parts if part.hint),
    )


def short(path: Path | str) -> str:
    """A path with ~ for the home folder."""
    path = Path(path)
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):  # elsewhere, or no home folder is known
        return str(path)
