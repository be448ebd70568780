"""The prefix cache of one pair on disk; a thread of its own writes the files.

A text is cached in pieces, each a file after that of the piece before it. A damaged file or a full
disk gives a warning. The prompt is then processed again.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import cache_file, replace_json
from dflash_mlx.files.folder import is_sidecar, matching
from dflash_mlx.models.target import Target

FORMAT = "1"
ROOT = "0" * 32  # the parent of records that start at the first token
SUFFIX = ".safetensors"
PART = ".part"  # in the names of files that are being written, before the writer's process id
LABELS = "pair.json"
CHECKSUM_BYTES = 32
Kind = Literal["rows", "states"]
log = logging.getLogger(__name__)

# Files in the safetensors format, with a checksum of all before it at their end


class Damaged(Exception):
    """The content of a file is not what was written."""


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
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def file_name(self) -> str:
        return f"{self.name}.{self.kind}{SUFFIX}"

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


def write_arrays(path: Path, notes: Mapping[str, str], arrays: Mapping[str, mx.array]) -> None:
    """Write a file in place of an older one. Raises OSError if that fails.

    The arrays must be computed and contiguous, because this runs beside the thread that owns MLX.
    """
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}{PART}{os.getpid()}-")
    try:
        with os.fdopen(handle, "w+b") as stream:
            mx.save_safetensors(stream, dict(arrays), dict(notes))
            stream.seek(0)
            stream.write(hashlib.file_digest(stream, "sha256").digest())  # it reads to the end
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


def parse_arrays(stream: BinaryIO) -> tuple[dict[str, str], dict[str, mx.array]]:
    """Notes and arrays of a file; an array is read when it is used. Raises Damaged."""
    try:
        loaded: Any = mx.load(stream, format="safetensors", return_metadata=True)
    except (RuntimeError, ValueError) as error:  # of a header that MLX cannot read
        raise Damaged from error
    arrays, notes = loaded
    return notes, arrays


def read_record(path: Path) -> Record:
    """The record of a file, without a look at its checksum. Raises OSError if it is gone.

    Raises Damaged if its name does not belong to its tokens, or if it has another format.
    """
    with path.open("rb") as stream:
        notes, arrays = parse_arrays(stream)
        try:
            record = Record(
                notes["name"],
                "states" if notes["kind"] == "states" else "rows",
                notes["parent"],
                int(notes["start"]),
                np.array(arrays["tokens"], np.int32),
                notes["drafted"] == "yes",
                path.stat().st_size,
            )
        except (KeyError, ValueError) as error:
            raise Damaged from error
    expected = record_name(record.parent, record.start, record.tokens)
    if record.name != expected or record.file_name != path.name or notes.get("format") != FORMAT:
        raise Damaged
    return record


def read_records(folder: Path, names: Iterable[str]) -> Iterator[Record | Path]:
    """The records of files in a folder; of damaged ones the path."""
    for name in sorted(names):
        try:
            yield read_record(folder / name)
        except Damaged:
            yield folder / name
        except FileNotFoundError:
            continue


def file_names(folder: Path) -> set[str]:
    """The names of a pair's files."""
    with suppress(FileNotFoundError):
        names = os.listdir(folder)
        return {name for name in names if name.endswith(SUFFIX) and not is_sidecar(name)}
    return set()


# The folders of the cache on disk


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


class CacheFile(NamedTuple):
    used_ns: int
    nbytes: int
    path: Path


def cache_files(root: Path) -> list[CacheFile]:
    """The files of all pairs, the least recently used first."""
    files = []
    for path in matching(root, f"*/*{SUFFIX}"):
        with suppress(FileNotFoundError):
            status = path.stat()
            files.append(CacheFile(status.st_mtime_ns, status.st_size, path))
    return sorted(files)


def is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


@dataclass(frozen=True, slots=True)
class Labels:
    """The models of a pair, by the names that users see."""

    target: str
    draft: str | None


class DiskCache:
    """The records of one pair. All pairs together have at most `limit` bytes."""

    def __init__(self, key: str, labels: Labels, limit: int, root: Path):
        """Make the folder; remove unfinished files of killed processes.

        key: see `pair_key`. Raises DFlashError if the folder cannot be used.
        """
        self.limit = limit
        self.root = root
        self.path = root / key
        self.failed = False
        self._seen: set[str] = set()
        self._writer = ThreadPoolExecutor(1, "dflash-prefix-cache")
        self._pending: list[tuple[Future[None], int]] = []  # with their bytes
        make_private(root)
        make_private(self.path)
        replace_json(self.path / LABELS, {"target": labels.target, "draft": labels.draft})
        for part in matching(self.path, f"*{PART}*"):
            if not is_alive(part.name.rpartition(PART)[2].partition("-")[0]):
                part.unlink(missing_ok=True)

    def new_records(self) -> list[Record]:
        """The records written since the last call, by any process. Removes damaged files."""
        names = file_names(self.path)
        records = []
        for record in read_records(self.path, names - self._seen):
            if isinstance(record, Record):
                records.append(record)
            else:
                self.drop(record.name)
        self._seen = names
        return records

    def forget_seen(self) -> None:
        """Make `new_records` return all records again."""
        self._seen = set()

    def read(self, record: Record) -> bytes | None:
        """The content; None if the file is gone or damaged. For any thread: it uses no MLX."""
        try:
            return read_bytes(self.path / record.file_name)
        except FileNotFoundError:
            return None
        except (Damaged, OSError):
            self.drop(record.file_name)
            return None

    def drop(self, file_name: str) -> None:
        file = self.path / file_name
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
        self._pending = [(job, size) for job, size in self._pending if not job.done()]
        waiting = sum(size for _, size in self._pending)
        if self.failed or nbytes > self.limit or (waiting and waiting + nbytes > max_pending_bytes):
            return False
        self._pending.append((self._writer.submit(self._write, record, arrays), nbytes))
        return True

    def _write(self, record: Record, arrays: Mapping[str, mx.array]) -> None:
        """Write a record, then remove the least recently used ones of all pairs over the limit."""
        if self.failed:
            return
        try:
            write_arrays(self.path / record.file_name, record.notes, arrays)
            files = cache_files(self.root)
            total = sum(file.nbytes for file in files)
            for file in files:
                if total <= self.limit:
                    return
                file.path.unlink(missing_ok=True)
                total -= file.nbytes
        except OSError as error:
            self.failed = True
            log.warning(
                "the prefix cache in '%s' cannot be written (%s): nothing more is kept on disk",
                self.path,
                error.strerror,
            )

    def touch(self, names: Iterable[str]) -> None:
        """Mark files as used now, the last one as the most recent."""
        files = [self.path / name for name in names]

        def set_times() -> None:
            for file in files:
                with suppress(FileNotFoundError):
                    os.utime(file)

        self._writer.submit(set_times)

    def wait(self) -> None:
        """Wait until all is written. The program's end waits, too."""
        self._writer.submit(lambda: None).result()


# The texts on disk, for `dflash cache`


@dataclass(frozen=True, slots=True)
class CachedText:
    """A text on disk, up to its last cached token.

    files: the files that no other text needs. nbytes: of these files. used: time of the last use,
    in seconds since 1970.
    """

    name: str
    labels: Labels
    tokens: int
    nbytes: int
    used: float
    files: tuple[Path, ...]


def cached_texts(root: Path) -> tuple[list[CachedText], list[Path]]:
    """The texts of all pairs, the most recently used first; and the files that cannot be read.

    These are damaged, or in a form that this version does not read.
    """
    texts: list[CachedText] = []
    unread: list[Path] = []
    for file in matching(root, f"*/{LABELS}"):
        records = list(read_records(file.parent, file_names(file.parent)))
        unread += [record for record in records if isinstance(record, Path)]
        with suppress(OSError, ValueError, KeyError, TypeError):  # another program's folder
            names = json.loads(file.read_text(encoding="utf-8"))
            labels = Labels(str(names["target"]), names["draft"])
            known = [record for record in records if isinstance(record, Record)]
            texts += texts_of(file.parent, labels, known)
    return sorted(texts, key=lambda text: -text.used), unread


def texts_of(folder: Path, labels: Labels, records: list[Record]) -> Iterator[CachedText]:
    """The texts of one pair: each ends in rows that no other rows continue."""
    rows = {record.name: record for record in records if record.kind == "rows"}
    continued = {(record.parent, record.start) for record in rows.values()}
    chains: dict[str, list[str]] = {}  # the records of each text, by the name of its last one
    for last in rows.values():
        if (last.name, last.end) not in continued:
            chains[last.name] = chain = list[str]()
            record: Record | None = last
            while record is not None:
                chain.append(record.name)
                record = rows.get(record.parent)
    uses = Counter(name for chain in chains.values() for name in chain)
    for name, chain in chains.items():
        own = {record for record in chain if uses[record] == 1}
        states = [one for one in records if one.kind == "states" and one.parent in own]
        files = [*states, *(rows[record] for record in chain if record in own)]
        with suppress(FileNotFoundError):
            yield CachedText(
                name,
                labels,
                rows[name].end,
                sum(file.nbytes for file in files),
                (folder / rows[name].file_name).stat().st_mtime,
                tuple(folder / file.file_name for file in files),
            )


def clear(root: Path) -> None:
    """Remove the folders of all pairs, also with damaged files."""
    for labels in matching(root, f"*/{LABELS}"):
        for file in [*labels.parent.iterdir()]:
            file.unlink(missing_ok=True)  # a sidecar goes with its file
        labels.parent.rmdir()


# The key of a pair's folder

SAMPLES = 32  # per file
SAMPLE = 1 << 14  # bytes


def pair_key(target: Target, folder: Path | None, draft: nn.Module | None) -> str:
    """A key that changes with everything the cached arrays depend on.

    folder, draft: the drafter's files and model; None without a drafter.
    """
    kernels = target.kernels
    parameters: Any = [] if draft is None else tree_flatten(draft.parameters())
    own = sorted(kernels.on or ()) if kernels.exact else ()  # otherwise the last bits may differ
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
    """One line per file of a model, its weights and its config: name, size, time, sampled hash."""
    weights = [file for file in matching(folder, "*.safetensors") if file.exists()]
    lines = []
    for file in (*weights, folder / "config.json"):
        status = file.stat()
        hashed = hashlib.sha256()
        with file.open("rb") as stream:
            last = status.st_size - SAMPLE
            for place in (*range(0, last, max(SAMPLE, last // (SAMPLES - 1))), max(0, last)):
                stream.seek(place)
                hashed.update(stream.read(SAMPLE))
        lines.append(f"{file.name} {status.st_size} {status.st_mtime_ns} {hashed.hexdigest()}")
    return lines
