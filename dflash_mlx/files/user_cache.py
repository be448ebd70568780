"""Small files in the user's cache folder. Knows where they are and how they are replaced, not what
is in them."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def cache_file(name: str) -> Path:
    """Where a file of this name is kept; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "dflash" / name


def replace_json(file: Path, data: Any) -> None:
    """Write a JSON file, whole or not at all; OSError when that cannot be."""
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
