"""A file of JSON lines that a later run continues: a killed run leaves half a line at most."""

import fcntl
import json
from pathlib import Path
from typing import Any, Self

from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.text import whole_text


class LineFile:
    """A file of JSON objects, one a line, to which one writer at a time adds lines.

    lines: the complete lines at the start, without their ends. rest: an incomplete last one, which
    stays until `cut`, because the file may be another program's.
    """

    def __init__(self, path: Path, writer: str):
        """Open the file or make it, and lock it until `close`.

        writer: who writes such files, for the message. Raises DFlashError if the file is locked, or
        cannot be used.
        """
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise cannot_be_written(path, error) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.seek(0)
            *self.lines, self.rest = self._file.read().split(b"\n")
        except BlockingIOError:
            self.close()
            raise DFlashError(
                f"another {writer} is writing to '{path}'.",
                hint="wait until it is done, or give --out another file",
            ) from None
        except OSError as error:
            self.close()
            raise cannot_be_written(path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> None:
        self._file.truncate(sum(len(line) + 1 for line in self.lines))
        self.rest = b""

    def append(self, data: dict[str, Any], *, ascii_only: bool = True) -> None:
        """Write a line at once."""
        text = json.dumps(data, ensure_ascii=ascii_only)
        self._file.write(whole_text(text).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def cannot_be_written(path: Path, error: OSError) -> DFlashError:
    return DFlashError(
        f"'{path}' cannot be written ({error.strerror or first_line(error)}).",
        hint="give --out a file in an existing folder that you may write to",
    )
