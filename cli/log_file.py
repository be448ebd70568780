"""A log in a file: all that a process writes to stdout and stderr."""

import os
from contextlib import suppress
from pathlib import Path

from dflash_mlx.errors import DFlashError

from .config_file import file_error_reason

MAX_BYTES = 10_000_000
KEPT = 5  # files: the log, and .1 (the one before) to .4


class LogFile:
    """Takes the place of stdout and stderr, also for libraries that write to them in C."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES):
        """Open or continue the file; DFlashError if it cannot be written."""
        self.path = path.expanduser()
        self._max_bytes = max_bytes
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._rotate()
            self._open()
        except OSError as error:
            raise DFlashError(
                f"the log '{path}' cannot be written ({file_error_reason(error)}).",
                hint="give --log-file a file that you may write",
            ) from None

    def rotate(self) -> None:
        """Begin a new file if this one is full. If that fails, this one continues."""
        with suppress(OSError):
            if self._rotate():
                self._open()

    def _rotate(self) -> bool:
        """Rename a full file, and those before it; whether it was full."""
        if not self.path.exists() or self.path.stat().st_size < self._max_bytes:
            return False
        for number in range(KEPT - 1, 0, -1):
            newer = self._numbered(number - 1)
            if newer.exists():
                newer.replace(self._numbered(number))
        return True

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path

    def _open(self) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
