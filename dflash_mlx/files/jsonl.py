"""Reading of JSONL files that users provide."""

import json
from pathlib import Path
from typing import Any

from dflash_mlx.errors import DFlashError


def read_lines(path: Path, hint: str) -> list[str]:
    """The lines of a UTF-8 file, empty ones included. Raises DFlashError with `hint`.

    Only a newline ends a line: a JSON string may contain other line separators of Unicode.
    """
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DFlashError(f"'{path}' cannot be read ({reason}).", hint=hint) from None


def value_of(line: str) -> Any:
    """The JSON value of a line. Raises ValueError for invalid JSON or a lone surrogate."""
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value
