"""The prefix cache of one pair on disk: written by a thread of its own, read by whoever asks.

A file that is damaged, or a disk that is full, is said as a warning and does no harm: what is not
there is read anew. Knows entries and their arrays as NumPy's; does not know MLX.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Condition, Thread

from . import tensor_file
from .entry import Entry
from .folder import Folder, Labels, shrink
from .tensor_file import Damaged, Tensor

log = logging.getLogger(__name__)


class Disk:
    """Holds at most `limit` bytes, together with those of all other pairs."""

    def __init__(self, key: str, labels: Labels, limit: int, root: Path):
        """DFlashError where the folder cannot be used."""
        self.limit, self.root = limit, root
        self.folder = Folder(key, root)
        self.folder.make(labels)
        self.failed = False
        self._jobs: deque[Callable[[], None]] = deque()
        self._waiting = 0
        self._changed = Condition()
        self._thread: Thread | None = None

    @property
    def waiting(self) -> int:
        """Bytes that are not written yet."""
        return self._waiting

    def new_entries(self) -> list[Entry]:
        """The entries that came since the last call; what is damaged is removed."""
        found = []
        for one in self.folder.new_entries():
            if isinstance(one, Entry):
                found.append(one)
            else:
                self._drop(one)
        return found

    def read(self, entry: Entry) -> dict[str, Tensor] | None:
        """The arrays of an entry; None where it is gone, or damaged and removed by this."""
        try:
            return tensor_file.read(self.folder.path / entry.file_name)[1]
        except FileNotFoundError:
            return None
        except (Damaged, OSError):
            self.drop(entry)
            return None

    def drop(self, entry: Entry) -> None:
        """Remove a damaged entry, and say so."""
        self._drop(self.folder.path / entry.file_name)

    def _drop(self, file: Path) -> None:
        log.warning("the prefix cache's file '%s' was damaged: it is removed", file)
        file.unlink(missing_ok=True)

    def save(self, entry: Entry, arrays: Mapping[str, Tensor], *, most_waiting: int) -> bool:
        """Have an entry written soon; False where there is no room.

        More than `most_waiting` bytes wait only where they are one entry's.
        """
        nbytes = sum(tensor.data.nbytes for tensor in arrays.values())
        full = self._waiting and self._waiting + nbytes > most_waiting
        if self.failed or nbytes > self.limit or full:
            return False

        def write() -> None:
            try:
                if not self.failed:
                    tensor_file.write(self.folder.path / entry.file_name, entry.notes, arrays)
                    shrink(self.root, self.limit)
            except OSError as error:
                self.failed = True
                log.warning(
                    "the prefix cache in '%s' cannot be written (%s): nothing more is kept on disk",
                    self.folder.path,
                    error.strerror,
                )
            finally:
                with self._changed:
                    self._waiting -= nbytes

        with self._changed:
            self._waiting += nbytes
        self._do(write)
        return True

    def touch(self, file_names: Iterable[str]) -> None:
        """Say that files are used now, the last of them most of all."""
        names = [*file_names]
        self._do(lambda: self.folder.touch(names))

    def wait(self) -> None:
        """Return when everything is written."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)

    def _do(self, job: Callable[[], None]) -> None:
        """Have the thread do it; a program that ends waits for what is begun."""
        with self._changed:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="dflash-prefix-cache")
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._thread = None
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
            job()
