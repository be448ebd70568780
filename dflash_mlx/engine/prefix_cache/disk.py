"""The prefix cache of one pair on disk; a thread of its own writes the files.

A damaged file or a full disk gives a warning. The prompt is then processed again.
"""

import hashlib
import io
import json
import logging
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Condition, Thread
from typing import IO, Any, Literal

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import cache_file, replace_json
from dflash_mlx.files.folder import matching
from dflash_mlx.models.target import Target

# Files in the safetensors format, with a checksum of all before it at their end

PART = ".part"  # files that are being written, with the writer's process id behind it
CHECKSUM_BYTES = 32


class Damaged(Exception):
    """The content of a file is not what was written."""


class HashingWriter(io.BufferedWriter):
    """A file to write, with the SHA-256 digest of its content."""

    def __init__(self, raw: io.FileIO):
        super().__init__(raw)
        self.digest = hashlib.sha256()

    def write(self, data: Any, /) -> int:
        self.digest.update(data)
        return super().write(data)


def write_arrays(path: Path, notes: Mapping[str, str], arrays: Mapping[str, mx.array]) -> None:
    """Write a file in place of an older one. Raises OSError if that fails.

    The arrays must be computed and contiguous, because this runs beside the thread that owns MLX.
    """
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}{PART}{os.getpid()}-")
    try:
        with HashingWriter(io.FileIO(handle, "wb")) as stream:
            mx.save_safetensors(stream, dict(arrays), dict(notes))
            stream.write(stream.digest.digest())
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises Damaged if its checksum is wrong, OSError if it is gone."""
    data = path.read_bytes()
    content = memoryview(data)[:-CHECKSUM_BYTES]
    if hashlib.sha256(content).digest() != data[-CHECKSUM_BYTES:]:
        raise Damaged
    return data


def parse_arrays(data: bytes) -> tuple[dict[str, str], dict[str, mx.array]]:
    """Notes and arrays of such a file, for the thread that owns MLX."""
    arrays, notes = load_arrays(io.BytesIO(data))
    return notes, arrays


def read_header(path: Path) -> tuple[dict[str, str], np.ndarray]:
    """Notes and tokens; the checksum is not checked. Raises Damaged, OSError if unreadable."""
    with path.open("rb") as stream:
        arrays, notes = load_arrays(stream)
        if "tokens" not in arrays:
            raise Damaged
        return notes, np.array(arrays["tokens"], np.int32)


def load_arrays(stream: IO[bytes]) -> tuple[dict[str, mx.array], dict[str, str]]:
    """MLX's reader, which reads an array only when it is used. Raises Damaged."""
    try:
        return mx.load(stream, format="safetensors", return_metadata=True)  # type: ignore[return-value]
    except (RuntimeError, ValueError) as error:  # of a header that MLX cannot read
        raise Damaged from error


# The content of a file

FORMAT = "1"
ROOT = "0" * 32  # the parent of records that start at the first token
Kind = Literal["rows", "states"]


@dataclass(frozen=True, slots=True)
class Record:
    """One file: rows of KV caches, or recurrent states.

    kind: "rows" holds the rows of `tokens` [n], int32, which follow `parent` and start at the
    text's token `start`. "states" holds the recurrent states after `start` tokens, which end in
    `parent`, and has no tokens. drafted: the drafter's rows are included. nbytes: of the file.
    """

    name: str
    kind: Kind
    parent: str
    start: int
    tokens: np.ndarray
    drafted: bool
    nbytes: int = 0

    @property
    def file_name(self) -> str:
        return f"{self.name}.{self.kind}.safetensors"

    @property
    def notes(self) -> dict[str, str]:
        return {
            "format": FORMAT,
            "kind": self.kind,
            "name": self.name,
            "parent": self.parent,
            "start": str(self.start),
            "drafted": "yes" if self.drafted else "no",
        }


def record_name(parent: str, start: int, tokens: np.ndarray) -> str:
    """A name that follows from the parent and the tokens; states have no tokens."""
    digest = hashlib.sha256(f"{parent} {start} ".encode())
    digest.update(np.ascontiguousarray(tokens, dtype="<i4").data)
    return digest.hexdigest()[:32]


def read_record(path: Path) -> Record:
    """The record of a file. Raises Damaged if its name does not belong to its tokens."""
    notes, tokens = read_header(path)
    try:
        record = Record(
            notes["name"],
            "states" if notes["kind"] == "states" else "rows",
            notes["parent"],
            int(notes["start"]),
            tokens,
            notes["drafted"] == "yes",
            path.stat().st_size,
        )
    except (KeyError, ValueError) as error:
        raise Damaged from error
    expected = record_name(record.parent, record.start, record.tokens)
    if record.name != expected or record.file_name != path.name or notes.get("format") != FORMAT:
        raise Damaged
    return record


# The folders of the cache on disk

LABELS = "pair.json"
SUFFIX = ".safetensors"
SETTLED = 10**9  # nanoseconds in which a second change may leave the same time of change


def cache_root() -> Path:
    """The folder with the folders of all pairs; it may be missing."""
    return cache_file("prefixes")


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can open. Raises DFlashError if that fails."""
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
    """The models of a pair, by the names that users see."""

    target: str
    draft: str | None


class PairFolder:
    """The files of one pair; see `pair_key` for `key`."""

    def __init__(self, key: str, root: Path):
        self.path = root / key
        self._seen: set[str] = set()
        self._changed = 0

    def make(self, labels: Labels) -> None:
        """Make the folder; remove unfinished files of killed processes. Raises DFlashError."""
        make_private(self.path.parent)
        make_private(self.path)
        replace_json(self.path / LABELS, {"target": labels.target, "draft": labels.draft})
        for part in matching(self.path, f"*{PART}*"):
            if not is_alive(part.name.rpartition(PART)[2].partition("-")[0]):
                part.unlink(missing_ok=True)

    @property
    def labels(self) -> Labels:
        """Raises OSError, ValueError, KeyError or TypeError for another program's folder."""
        labels = json.loads((self.path / LABELS).read_text(encoding="utf-8"))
        return Labels(str(labels["target"]), labels["draft"])

    def new_records(self) -> Iterator[Record | Path]:
        """Records written since the last call, by any process; of damaged ones the path."""
        with suppress(FileNotFoundError):
            changed = self.path.stat().st_mtime_ns
            if changed == self._changed:
                return
            if time.time_ns() - changed > SETTLED:
                self._changed = changed
            names = {path.name for path in matching(self.path, f"*{SUFFIX}")}
            for name in sorted(names - self._seen):
                with suppress(FileNotFoundError):
                    yield self._record(self.path / name)
            self._seen = names

    def forget_seen(self) -> None:
        """Make `new_records` return all records again."""
        self._seen = set()
        self._changed = 0

    def _record(self, file: Path) -> Record | Path:
        try:
            return read_record(file)
        except Damaged:
            return file

    def touch(self, names: Iterable[str]) -> None:
        """Set the time of the last use of these files to now, in order."""
        for name in names:
            with suppress(FileNotFoundError):
                os.utime(self.path / name)


@dataclass(frozen=True, slots=True)
class CacheFile:
    path: Path
    nbytes: int
    used_ns: int


def cache_files(root: Path) -> list[CacheFile]:
    """The files of all pairs, the least recently used first."""
    files = []
    for path in matching(root, f"*/*{SUFFIX}"):
        with suppress(FileNotFoundError):
            status = path.stat()
            files.append(CacheFile(path, status.st_size, status.st_mtime_ns))
    return sorted(files, key=lambda file: file.used_ns)


def evict_files(root: Path, limit: int) -> None:
    """Remove the least recently used files until all files together have at most `limit` bytes."""
    files = cache_files(root)
    total = sum(file.nbytes for file in files)
    for file in files:
        if total <= limit:
            return
        file.path.unlink(missing_ok=True)
        total -= file.nbytes


def is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


log = logging.getLogger(__name__)


class DiskCache:
    """The records of one pair. All pairs together have at most `limit` bytes."""

    def __init__(self, key: str, labels: Labels, limit: int, root: Path):
        """Raises DFlashError if the folder cannot be used."""
        self.limit = limit
        self.root = root
        self.folder = PairFolder(key, root)
        self.folder.make(labels)
        self.failed = False
        self._jobs: deque[Callable[[], None]] = deque()
        self._pending_bytes = 0
        self._changed = Condition()
        self._thread: Thread | None = None

    def new_records(self) -> list[Record]:
        """The records written since the last call. Damaged files are removed."""
        records = []
        for record in self.folder.new_records():
            if isinstance(record, Record):
                records.append(record)
            else:
                self._drop(record)
        return records

    def read(self, record: Record) -> bytes | None:
        """The content; None if the file is gone or damaged. For any thread: it uses no MLX."""
        try:
            return read_bytes(self.folder.path / record.file_name)
        except FileNotFoundError:
            return None
        except (Damaged, OSError):
            self.drop(record)
            return None

    def drop(self, record: Record) -> None:
        self._drop(self.folder.path / record.file_name)

    def _drop(self, file: Path) -> None:
        log.warning("the prefix cache's file '%s' was damaged: it is removed", file)
        file.unlink(missing_ok=True)

    def save(
        self, record: Record, arrays: Mapping[str, mx.array], *, max_pending_bytes: int
    ) -> bool:
        """Write a record soon. Returns False if there is no room for it.

        arrays: computed and contiguous. A record may exceed `max_pending_bytes` only if no other
        one is waiting.
        """
        nbytes = sum(array.nbytes for array in arrays.values())
        full = self._pending_bytes and self._pending_bytes + nbytes > max_pending_bytes
        if self.failed or nbytes > self.limit or full:
            return False

        def write_record() -> None:
            try:
                if not self.failed:
                    write_arrays(self.folder.path / record.file_name, record.notes, arrays)
                    evict_files(self.root, self.limit)
            except OSError as error:
                self.failed = True
                log.warning(
                    "the prefix cache in '%s' cannot be written (%s): nothing more is kept on disk",
                    self.folder.path,
                    error.strerror,
                )
            finally:
                with self._changed:
                    self._pending_bytes -= nbytes

        with self._changed:
            self._pending_bytes += nbytes
        self._submit(write_record)
        return True

    def touch(self, file_names: Iterable[str]) -> None:
        """Mark files as used now, the last one as the most recent."""
        names = [*file_names]
        self._submit(lambda: self.folder.touch(names))

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)

    def _submit(self, job: Callable[[], None]) -> None:
        """Run a job in the writer's thread. The program ends only after all jobs have run."""
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


# The texts on disk, for `dflash cache`


@dataclass(frozen=True, slots=True)
class CachedText:
    """A text on disk, up to its last cached token.

    files: the files that no other text needs, the end of the text first. nbytes: of these files.
    used: time of the last use, in seconds since 1970.
    """

    name: str
    labels: Labels
    tokens: int
    nbytes: int
    used: float
    files: tuple[Path, ...]

    def remove(self) -> int:
        """Remove the files that no other text needs, and return the freed bytes."""
        for file in self.files:
            file.unlink(missing_ok=True)
        return self.nbytes


def cached_texts(root: Path) -> list[CachedText]:
    """The texts of all pairs, the most recently used first, without damaged files."""
    texts = [text for folder in pair_folders(root) for text in texts_of_pair(folder)]
    return sorted(texts, key=lambda text: -text.used)


def pair_folders(root: Path) -> list[PairFolder]:
    return [PairFolder(path.parent.name, root) for path in matching(root, f"*/{LABELS}")]


def unread_files(root: Path) -> list[Path]:
    """The files of all pairs that are damaged, or in a form that this version does not read."""
    records = (record for folder in pair_folders(root) for record in folder.new_records())
    return [record for record in records if isinstance(record, Path)]


def clear(root: Path) -> int:
    """Remove all files, also damaged ones, and return the freed bytes."""
    freed = 0
    for folder in pair_folders(root):
        for file in [*folder.path.iterdir()]:
            with suppress(FileNotFoundError):  # a sidecar, which goes with its file
                freed += file.stat().st_size
                file.unlink()
        folder.path.rmdir()
    return freed


def texts_of_pair(folder: PairFolder) -> Iterator[CachedText]:
    try:
        labels = folder.labels
    except (OSError, ValueError, KeyError, TypeError):
        return
    records = [record for record in folder.new_records() if isinstance(record, Record)]
    rows = {record.name: record for record in records if record.kind == "rows"}
    states = [record for record in records if record.kind == "states"]
    children: dict[str, list[Record]] = {name: [] for name in rows}
    for record in rows.values():
        children.setdefault(record.parent, []).append(record)
    for record in rows.values():
        end = record.start + len(record.tokens)
        if any(child.start == end for child in children[record.name]):
            continue
        unshared_rows = [*unshared_records(record, rows, children)]
        names = {unshared.name for unshared in unshared_rows}
        unshared_states = [state for state in states if state.parent in names]
        files = [*unshared_states, *unshared_rows]
        yield CachedText(
            record.name,
            labels,
            end,
            sum(file.nbytes for file in files),
            (folder.path / record.file_name).stat().st_mtime,
            tuple(folder.path / file.file_name for file in files),
        )


def unshared_records(
    last: Record, rows: dict[str, Record], children: dict[str, list[Record]]
) -> Iterator[Record]:
    """The records of a text, from its last one back to the first that another text needs."""
    record: Record | None = last
    own_children = 0
    while record is not None and len(children[record.name]) == own_children:
        yield record
        record = rows.get(record.parent)
        own_children = 1


# The key of a pair's folder

SAMPLES = 32  # per file
SAMPLE = 1 << 14  # bytes


def pair_key(target: Target, folder: Path | None, draft: nn.Module | None) -> str:
    """A key that changes with everything the cached arrays depend on.

    folder, draft: the drafter's files and model; None without a drafter.
    """
    kernels = target.kernels
    parameters: Any = [] if draft is None else tree_flatten(draft.parameters())
    own = (
        sorted(kernels.on or ()) if kernels.exact else ()
    )  # other modes may differ in the last bits
    parts = [
        FORMAT,
        *fingerprint(target.path),
        *([] if folder is None else fingerprint(folder)),
        repr([(name, v.shape, v.dtype) for name, v in parameters]),
        repr((mx.default_device(), target.head_type, kernels.exact, own)),
        *([repr((target.kv_bits, target.kv_groups))] if target.kv_bits else []),
        *([] if target.adapter is None else [f"adapter {target.adapter.digest}"]),
        *map(version, ("mlx", "mlx-lm", "dflash-chat")),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def fingerprint(folder: Path) -> list[str]:
    """One line per file of a model: its weights and its config."""
    weights = [file for file in matching(folder, "*.safetensors") if file.exists()]
    return [f"{file.name} {digest(file)}" for file in (*weights, folder / "config.json")]


def digest(file: Path) -> str:
    """Size, time of change, and a hash of samples of the whole file."""
    status = file.stat()
    hashed = hashlib.sha256()
    with file.open("rb") as stream:
        step = max(SAMPLE, (status.st_size - SAMPLE) // (SAMPLES - 1))
        for place in (*range(0, status.st_size - SAMPLE, step), max(0, status.st_size - SAMPLE)):
            stream.seek(place)
            hashed.update(stream.read(SAMPLE))
    return f"{status.st_size} {status.st_mtime_ns} {hashed.hexdigest()}"
