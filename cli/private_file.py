"""Files that only their owner may open: keys, and the descriptions of services."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from dflash_mlx.errors import DFlashError

from .config_file import file_error_reason


def write_private(path: Path, content: bytes) -> None:
    """Write a file that no other user could ever read; DFlashError if that fails."""
    new = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileNotFoundError):
            new.unlink()
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        new.replace(path)
    except OSError as error:
        raise DFlashError(
            f"'{path}' cannot be written ({file_error_reason(error)}).",
            hint="make room, or make its folder one that you may write",
        ) from None


def others_may_read(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
