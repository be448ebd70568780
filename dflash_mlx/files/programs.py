"""What other programs of ours on this machine hold in memory.

Each loaded pair has a small file in the user's cache folder, and so has a server that needs no key.
The file is locked as long as it is true. The lock ends with its process: a file that can be locked
was left by a program that was killed, and whoever reads it removes it.
"""

import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from weakref import finalize

from .checkpoint import cache_file
from .folder import matching
from .measurements import DAMAGED

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProgramEntry:
    """What a file says. model, nbytes: of a loaded pair, its `full_name` and its weights.

    address: of a server, whose file has no model: its models have files of their own.
    """

    pid: int
    model: str = ""
    nbytes: int = 0
    address: str = ""

    def __str__(self) -> str:
        name = Path(self.model).name if os.path.isabs(self.model) else self.model
        return f"process {self.pid} ({name}, {self.nbytes / 1e9:.1f} GB)"


class Notice:
    """A file for other programs. It goes with this object, at `remove`, or when the program ends.

    Without a folder that can be written there is none, and the log says so.
    """

    def __init__(self, model: str = "", nbytes: int = 0, address: str = ""):
        pid = os.getpid()
        try:
            path, handle = write_locked(ProgramEntry(pid, model, nbytes, address))
        except OSError as error:
            log.info("other programs do not see what this one has loaded: %s", error)
            self.remove = finalize(self, lambda: None)
        else:
            self.remove = finalize(self, remove, path, handle, pid)


def write_locked(entry: ProgramEntry) -> tuple[Path, int]:
    """Write a file that is locked before others see it; its path and the handle of the lock."""
    folder = cache_file("loaded")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, hidden = tempfile.mkstemp(prefix=".", dir=folder)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(handle, json.dumps(asdict(entry)).encode())
        path = folder / f"{entry.pid}{Path(hidden).name}.json"
        os.rename(hidden, path)
    except BaseException:
        os.close(handle)
        os.unlink(hidden)
        raise
    return path, handle


def remove(path: Path, handle: int, pid: int) -> None:
    if os.getpid() != pid:  # a fork has copies of its parent's objects
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:  # the lock goes, so the file does not count any more
        log.info("'%s' stays: %s", path, error)
    os.close(handle)


def other_programs() -> list[ProgramEntry]:
    entries = [read(path) for path in matching(cache_file("loaded"), "*.json")]
    return [entry for entry in entries if entry is not None and entry.pid != os.getpid()]


def read(path: Path) -> ProgramEntry | None:
    """A file's entry; None for one that is damaged, or whose program has ended: it is removed."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # several may look at once
            except BlockingIOError:
                data = json.load(file)
                return ProgramEntry(
                    int(data["pid"]), str(data["model"]), int(data["nbytes"]), str(data["address"])
                )
            path.unlink(missing_ok=True)
    except FileNotFoundError:  # its program has ended meanwhile
        pass
    except (OSError, *DAMAGED) as error:
        log.info("'%s' does not count: %r", path, error)
    return None


def full_name(target: str) -> str:
    """A Hub id as it is, and the whole path of a folder, which every program writes alike."""
    return str(Path(target).resolve()) if os.path.isdir(target) else target


def holders() -> list[ProgramEntry]:
    """The models that other programs have loaded."""
    return [entry for entry in other_programs() if entry.nbytes]


def held_bytes() -> int:
    return sum(entry.nbytes for entry in holders())


def server_of(model: str) -> str | None:
    """The address of a server without a key that has a model loaded, by its `full_name`."""
    entries = other_programs()
    having = {entry.pid for entry in entries if entry.model == model}
    return next((e.address for e in entries if e.address and e.pid in having), None)


def named(entries: Iterable[ProgramEntry]) -> str:
    return " and ".join(map(str, entries))


def ending(entries: Sequence[ProgramEntry]) -> str:
    pids = dict.fromkeys(entry.pid for entry in entries)
    which = "that program" if len(pids) == 1 else "them"
    return f"end {which} with `kill {' '.join(map(str, pids))}`"
