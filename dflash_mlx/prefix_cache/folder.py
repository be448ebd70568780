"""The folders of the cache on disk: one a pair, all under one limit, for the owner alone.

What was not used for the longest time is removed first, of whichever pair; the time of a file's
last use is its modification time. Several processes may work in one folder. Knows files and
entries; does not know what is in them. Imports no MLX.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.user_cache import cache_file, replace_json

from . import tensor_file
from .entry import Entry, entry_of
from .tensor_file import PART, Damaged

LABELS = "pair.json"
SUFFIX = ".safetensors"
SETTLED = 10**9  # nanoseconds after a change in which there may be another with the same time


def cache_root() -> Path:
    """Where the folders of all pairs lie; it need not exist."""
    return cache_file("prefixes")


def make_private(folder: Path) -> None:
    """Make a folder that only the owner may open. DFlashError where that cannot be."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise DFlashError(
            f"the prefix cache cannot use the folder '{folder}' ({error.strerror}).",
            hint="leave --cache-disk out, or make the folder yours",
        ) from None


@dataclass(frozen=True, slots=True)
class Labels:
    """What a pair's folder is called for people."""

    target: str
    draft: str | None


class Folder:
    """The files of one pair, whose `key` changes with whatever their content depends on."""

    def __init__(self, key: str, root: Path):
        self.path = root / key
        self._seen: set[str] = set()
        self._changed = 0

    def make(self, labels: Labels) -> None:
        """Make the folder, and remove what killed writers have left. DFlashError as above."""
        make_private(self.path.parent)
        make_private(self.path)
        replace_json(self.path / LABELS, {"target": labels.target, "draft": labels.draft})
        for part in self.path.glob(f"*{PART}*"):
            if not is_alive(part.name.rpartition(PART)[2].partition("-")[0]):
                part.unlink(missing_ok=True)

    @property
    def labels(self) -> Labels:
        """Its pair; Raises OSError or ValueError for a folder that is none of ours."""
        found = json.loads((self.path / LABELS).read_text(encoding="utf-8"))
        return Labels(str(found["target"]), found["draft"])

    def new_entries(self) -> Iterator[Entry | Path]:
        """The entries that came since the last call, by this process or others.

        In place of an entry that is damaged its file. Costs one look at the folder where nothing
        has changed.
        """
        with suppress(FileNotFoundError):
            changed = self.path.stat().st_mtime_ns
            if changed == self._changed:
                return
            if time.time_ns() - changed > SETTLED:
                self._changed = changed
            names = {item.name for item in os.scandir(self.path) if item.name.endswith(SUFFIX)}
            for name in sorted(names - self._seen):
                with suppress(FileNotFoundError):
                    yield self._entry(self.path / name)
            self._seen = names

    def look_again(self) -> None:
        """All entries are new at the next call."""
        self._seen, self._changed = set(), 0

    def _entry(self, file: Path) -> Entry | Path:
        try:
            return entry_of(tensor_file.read_head(file), file.name, file.stat().st_size)
        except Damaged:
            return file

    def touch(self, names: Iterable[str]) -> None:
        """Say that these files are used now, each a little later than the one before."""
        for name in names:
            with suppress(FileNotFoundError):
                os.utime(self.path / name)


@dataclass(frozen=True, slots=True)
class Used:
    """A file of any pair, and when it was used."""

    path: Path
    nbytes: int
    used_ns: int


def files_of(root: Path) -> list[Used]:
    """The files of all pairs, that used longest ago first."""
    found = []
    for file in root.glob(f"*/*{SUFFIX}"):
        with suppress(FileNotFoundError):
            about = file.stat()
            found.append(Used(file, about.st_size, about.st_mtime_ns))
    return sorted(found, key=lambda one: one.used_ns)


def shrink(root: Path, limit: int) -> None:
    """Remove what was not used for the longest time, until all files have at most `limit` bytes."""
    files = files_of(root)
    total = sum(file.nbytes for file in files)
    for file in files:
        if total <= limit:
            return
        file.path.unlink(missing_ok=True)
        total -= file.nbytes


def is_alive(process: str) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
