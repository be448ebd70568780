"""The prefix cache of one pair on disk: written by a thread of its own, read by whoever asks.

A file that is damaged, or a disk that is full, is said as a warning and does no harm: what is not
there is read anew.
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
from dflash_mlx.models.target import Target

# Files of arrays in the safetensors format, whose last array is a checksum of all before it.

PART = ".part"  # files that are being written, with the writer's process id behind it
SUM_BYTES = 32
MAX_HEADER = 1 << 26
TYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),  # NumPy has no such type: its bits
    "F32": np.dtype(np.float32),
}


class Damaged(Exception):
    """A file whose content is not what was written."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array, and the name of its type in the format; of BF16 the array has the bits."""

    type: str
    data: np.ndarray


@dataclass(frozen=True, slots=True)
class Head:
    """What a file says of itself, its first array, and where the others lie in it."""

    notes: dict[str, str]
    first: np.ndarray
    arrays: dict[str, dict[str, Any]]
    data_at: int


def write(path: Path, notes: Mapping[str, str], arrays: Mapping[str, Tensor]) -> int:
    """Write a file in place of what was there; its size. OSError where it cannot be written."""
    entries: dict[str, Any] = {"__metadata__": dict(notes)}
    at = 0
    for name, tensor in arrays.items():
        ends = [at, at + tensor.data.nbytes]
        entries[name] = {"dtype": tensor.type, "shape": tensor.data.shape, "data_offsets": ends}
        at += tensor.data.nbytes
    ends = [at, at + SUM_BYTES]
    entries["checksum"] = {"dtype": "U8", "shape": [SUM_BYTES], "data_offsets": ends}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}{PART}{os.getpid()}-")
    try:
        with os.fdopen(handle, "wb") as stream:
            digest = hashlib.sha256()
            for piece in (len(header).to_bytes(8, "little"), header, *arrays.values()):
                data = bytes_of(piece) if isinstance(piece, Tensor) else piece
                digest.update(data)
                stream.write(data)
            stream.write(digest.digest())
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
    return 8 + len(header) + at + SUM_BYTES


def read_head(path: Path) -> Head:
    """The beginning of a file; its checksum is not looked at.

    Raises Damaged for what is no such file, OSError for what cannot be read.
    """
    with path.open("rb") as stream:
        return head_of(stream)


def head_of(stream: IO[bytes]) -> Head:
    """The same of an open file."""
    try:
        length = int.from_bytes(stream.read(8), "little")
        if length > MAX_HEADER:
            raise Damaged
        arrays = json.loads(stream.read(length))
        notes = arrays.pop("__metadata__")
        name = next(iter(arrays))
        start, end = arrays[name]["data_offsets"]
        if start != 0 or end > MAX_HEADER:
            raise Damaged
        first = as_array(stream.read(end), arrays[name])
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise Damaged from error
    if not all(isinstance(value, str) for value in notes.values()):
        raise Damaged
    return Head(notes, first, arrays, 8 + length)


def read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Notes and arrays. Raises Damaged unless the checksum is right, OSError as above."""
    data = path.read_bytes()
    if hashlib.sha256(memoryview(data)[:-SUM_BYTES]).digest() != data[-SUM_BYTES:]:
        raise Damaged
    head = head_of(io.BytesIO(data))
    arrays = {}
    for name, entry in head.arrays.items():
        start, end = (head.data_at + offset for offset in entry["data_offsets"])
        arrays[name] = Tensor(entry["dtype"], as_array(memoryview(data)[start:end], entry))
    del arrays["checksum"]
    return head.notes, arrays


def bytes_of(tensor: Tensor) -> memoryview:
    """Its bytes, in order."""
    return np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8).data


def as_array(data: Any, entry: dict[str, Any]) -> np.ndarray:
    """The array of some bytes, as its entry in the header says."""
    kind = TYPES[entry["dtype"]]
    shape = entry["shape"]
    return np.frombuffer(data, kind).reshape(shape) if len(data) else np.zeros(shape, kind)


# What a file of the cache is of

FORMAT = "1"
ROOT = "0" * 32  # the name of nothing, from which all texts go on
Kind = Literal["rows", "states"]


@dataclass(frozen=True, slots=True)
class Entry:
    """`tokens` [n], int32, of a text from its token `start` on, behind the entry `parent`.

    Of the kind "states" it has no tokens: these are the states after `start` tokens, in `parent`.
    `drafted`: the drafter's rows are in it too. `nbytes` are those of its file.
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
        """The name of its file."""
        return f"{self.name}.{self.kind}.safetensors"

    @property
    def notes(self) -> dict[str, str]:
        """What its file says of it."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "name": self.name,
            "parent": self.parent,
            "start": str(self.start),
            "drafted": "yes" if self.drafted else "no",
        }


def name_of(parent: str, start: int, tokens: np.ndarray) -> str:
    """The name of the entry of these tokens; with none, of the states after `start` tokens."""
    digest = hashlib.sha256(f"{parent} {start} ".encode())
    digest.update(np.ascontiguousarray(tokens, dtype="<i4").data)
    return digest.hexdigest()[:32]


def entry_of(head: Head, file_name: str, nbytes: int) -> Entry:
    """The entry of a file. Raises Damaged where its name is not that of its tokens."""
    notes = head.notes
    try:
        found = Entry(
            notes["name"],
            "states" if notes["kind"] == "states" else "rows",
            notes["parent"],
            int(notes["start"]),
            head.first.astype(np.int32),
            notes["drafted"] == "yes",
            nbytes,
        )
    except (KeyError, ValueError) as error:
        raise Damaged from error
    honest = found.name == name_of(found.parent, found.start, found.tokens)
    if not honest or found.file_name != file_name or notes.get("format") != FORMAT:
        raise Damaged
    return found


# The folders of the cache on disk

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
        self._seen = set()
        self._changed = 0

    def _entry(self, file: Path) -> Entry | Path:
        try:
            return entry_of(read_head(file), file.name, file.stat().st_size)
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


log = logging.getLogger(__name__)


class Disk:
    """Holds at most `limit` bytes, together with those of all other pairs."""

    def __init__(self, key: str, labels: Labels, limit: int, root: Path):
        """DFlashError where the folder cannot be used."""
        self.limit = limit
        self.root = root
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
            return read(self.folder.path / entry.file_name)[1]
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

        def write_entry() -> None:
            try:
                if not self.failed:
                    write(self.folder.path / entry.file_name, entry.notes, arrays)
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
        self._do(write_entry)
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


# What lies on disk, as texts


@dataclass(frozen=True, slots=True)
class Text:
    """A text up to its last token that is held, in the folder of a pair.

    `files` are those that no other text needs, its end first; `nbytes` are theirs. `used` is the
    time of the last use, in seconds since 1970.
    """

    name: str
    labels: Labels
    tokens: int
    nbytes: int
    used: float
    files: tuple[Path, ...]

    def remove(self) -> int:
        """Remove what no other text needs: the bytes that were freed."""
        for file in self.files:
            file.unlink(missing_ok=True)
        return self.nbytes


def texts(root: Path) -> list[Text]:
    """All texts of all pairs, the one used last first; damaged files are left out."""
    found = [text for folder in folders(root) for text in texts_of(folder)]
    return sorted(found, key=lambda text: -text.used)


def folders(root: Path) -> list[Folder]:
    """The folders of all pairs."""
    return [Folder(path.parent.name, root) for path in sorted(root.glob(f"*/{LABELS}"))]


def clear(root: Path) -> int:
    """Remove all files, damaged ones too: the bytes that were freed."""
    freed = 0
    for folder in folders(root):
        for file in [*folder.path.iterdir()]:
            freed += file.stat().st_size
            file.unlink(missing_ok=True)
        folder.path.rmdir()
    return freed


def texts_of(folder: Folder) -> Iterator[Text]:
    """The texts of one pair."""
    try:
        labels = folder.labels
    except (OSError, ValueError, KeyError, TypeError):
        return
    entries = [one for one in folder.new_entries() if isinstance(one, Entry)]
    rows = {entry.name: entry for entry in entries if entry.kind == "rows"}
    states = [entry for entry in entries if entry.kind == "states"]
    followers: dict[str, list[Entry]] = {name: [] for name in rows}
    for entry in rows.values():
        followers.setdefault(entry.parent, []).append(entry)
    for entry in rows.values():
        end = entry.start + len(entry.tokens)
        if any(follower.start == end for follower in followers[entry.name]):
            continue
        own = [*alone(entry, rows, followers)]
        names = {one.name for one in own}
        parts = [*(one for one in states if one.parent in names), *own]
        yield Text(
            entry.name,
            labels,
            end,
            sum(one.nbytes for one in parts),
            (folder.path / entry.file_name).stat().st_mtime,
            tuple(folder.path / one.file_name for one in parts),
        )


def alone(
    entry: Entry, rows: dict[str, Entry], followers: dict[str, list[Entry]]
) -> Iterator[Entry]:
    """An entry and those before it, as far as nothing else goes on from them."""
    one: Entry | None = entry
    below = 0
    while one is not None and len(followers[one.name]) == below:
        yield one
        one = rows.get(one.parent)
        below = 1


# The key of a pair's folder

SAMPLES = 32  # per file
SAMPLE = 1 << 14  # bytes


def pair_key(target: Target, folder: Path | None, draft: nn.Module | None) -> str:
    """The key of a loaded target and of a drafter from a folder, None where there is none."""
    kernels = target.kernels
    parameters: Any = [] if draft is None else tree_flatten(draft.parameters())
    own = sorted(kernels.on or ()) if kernels.exact else ()  # elsewhere the last bits are free
    parts = [
        FORMAT,
        *fingerprint(target.path),
        *([] if folder is None else fingerprint(folder)),
        repr([(name, v.shape, v.dtype) for name, v in parameters]),
        repr((mx.default_device(), target.head_type, kernels.exact, own)),
        *map(version, ("mlx", "mlx-lm", "dflash-chat")),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def fingerprint(folder: Path) -> list[str]:
    """A line for each file of a model that its numbers come from."""
    files = [*sorted(folder.glob("*.safetensors")), folder / "config.json"]
    return [f"{file.name} {digest(file)}" for file in files]


def digest(file: Path) -> str:
    """Size, time of change, and a hash of samples from beginning to end."""
    about = file.stat()
    hashed = hashlib.sha256()
    with file.open("rb") as stream:
        step = max(SAMPLE, (about.st_size - SAMPLE) // (SAMPLES - 1))
        for place in (*range(0, about.st_size - SAMPLE, step), max(0, about.st_size - SAMPLE)):
            stream.seek(place)
            hashed.update(stream.read(SAMPLE))
    return f"{about.st_size} {about.st_mtime_ns} {hashed.hexdigest()}"
