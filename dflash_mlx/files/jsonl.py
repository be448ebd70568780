"""Files of JSON values, one a line, as users bring them. Does not know what the values mean."""

import json
from pathlib import Path
from typing import Any

from dflash_mlx.errors import DFlashError


def read_lines(path: Path, hint: str) -> list[str]:
    """The lines of a UTF-8 file, empty ones included; DFlashError with `hint` if it is none.

    Only a newline ends a line: JSON strings may hold what else Unicode takes for one.
    """
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DFlashError(f"'{path}' cannot be read ({reason}).", hint=hint) from None


def value_of(line: str) -> Any:
    """The value of a line; ValueError for what is none, or holds half a surrogate pair."""
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value
