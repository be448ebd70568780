"""Small JSON files in the user's cache folder: their paths, and atomic replacement."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def cache_file(name: str) -> Path:
    """The path of a file, $XDG_CACHE_HOME/dflash/`name`. The file may not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "dflash" / name


def replace_json(file: Path, data: Any) -> None:
    """Replace a JSON file atomically. Raises OSError if it cannot be written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=file.parent, prefix=file.name, delete=False, encoding="utf-8"
    ) as part:
        json.dump(data, part)
    try:
        os.replace(part.name, file)
    except OSError:
        os.unlink(part.name)
        raise
