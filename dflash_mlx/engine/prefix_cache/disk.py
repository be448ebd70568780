"""The prefix cache of one pair on disk; a thread of its own writes the files.

A text is cached in pieces, each written after the one before it. Each part of a piece is a file in
the safetensors format with a checksum at its end, and is written once. A damaged file or a full
disk gives a warning. The prompt is then processed again.
"""

import hashlib
import json
import logging
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, Self

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import cache_file, replace_json
from dflash_mlx.files.folder import matching
from dflash_mlx.files.measurements import fingerprint
from dflash_mlx.models.target import Target

FORMAT = 2
ROOT = "0" * 32  # the parent of pieces that start at the first token
SUFFIX = ".safetensors"
NAME = re.compile(r"(\w+)\.(\w+)\.(\d+)\.(\d+)\.(target|draft|states)\.safetensors")  # a `Record`'s
UNFINISHED = ".part"  # in the names of files that are being written, before the process id
LABELS = "pair.json"
CHECKSUM_BYTES = 32
TOKENS = "tokens"
Layers = tuple[Any, ...]  # the rows or states of each layer
log = logging.getLogger(__name__)


class Damaged(Exception):
    """The content of a file is not what was written."""


class Record(NamedTuple):
    """One file: a part of the piece `name`, which follows the piece `parent`.

    part: "target" or "draft", the rows of that model's KV caches for the text's tokens [start,
    end), or "states", the recurrent ones after `end` tokens. nbytes, used: of the file; used in
    seconds since 1970.
    """

    parent: str
    name: str
    start: int
    end: int
    part: str
    nbytes: int = 0
    used: float = 0.0

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """None for a name of another version. Raises FileNotFoundError if the file is gone."""
        if (found := NAME.fullmatch(path.name)) is None:
            return None
        parent, name, start, end, part = found.groups()
        status = path.stat()
        return cls(parent, name, int(start), int(end), part, status.st_size, status.st_mtime)

    @property
    def file_name(self) -> str:
        return f"{self.parent}.{self.name}.{self.start}.{self.end}.{self.part}{SUFFIX}"


def piece_name(parent: str, start: int, tokens: np.ndarray) -> str:
    digest = hashlib.sha256(f"{parent} {start} ".encode())
    digest.update(np.ascontiguousarray(tokens, dtype="<i4").data)
    return digest.hexdigest()[:32]


def write_arrays(path: Path, arrays: Mapping[str, mx.array]) -> None:
    """Write a file in one step. Raises OSError if that fails."""
    prefix = f"{path.name}{UNFINISHED}{os.getpid()}-"
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    try:
        with os.fdopen(handle, "w+b") as stream:
            mx.save_safetensors(stream, dict(arrays), {"file": path.name})
            stream.seek(0)
            stream.write(hashlib.file_digest(stream, "sha256").digest())  # it reads to the end
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def parse_arrays(source: Any, file_name: str) -> dict[str, mx.array]:
    """The arrays of a path or stream, each read when it is used. Raises Damaged."""
    try:
        loaded: Any = mx.load(source, format="safetensors", return_metadata=True)
    except (RuntimeError, ValueError) as error:  # of a header that MLX cannot read
        raise Damaged from error
    arrays, notes = loaded
    if notes.get("file") != file_name:
        raise Damaged
    return arrays


def parse_layers(content: bytes, file_name: str) -> Layers:
    """What `DiskCache.save` was given. Raises Damaged."""
    arrays = parse_arrays(BytesIO(content), file_name)
    mx.eval(arrays)
    flat: Any = [(name, array) for name, array in arrays.items() if name != TOKENS]
    return tuple(tree_unflatten(flat)) if flat else ()


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

    @property
    def piece(self) -> Path:
        return self.path.parent / self.path.name.split(".")[1]


def cache_files(root: Path) -> list[CacheFile]:
    """The files of all pairs, the least recently used first."""
    files = []
    for path in matching(root, f"*/*{SUFFIX}"):
        with suppress(FileNotFoundError):
            status = path.stat()
            files.append(CacheFile(status.st_mtime_ns, status.st_size, path))
    return sorted(files)


def evict(root: Path, limit: int) -> None:
    """Remove pieces of all pairs until the rest has at most `limit` bytes: the oldest leaf first.

    A leaf is a piece that no other one follows.
    """
    files = cache_files(root)
    total = sum(file.nbytes for file in files)
    while total > limit:
        followed = {file.path.parent / file.path.name.split(".")[0] for file in files}
        leaf = next(file.piece for file in files if file.piece not in followed)
        for file in files:
            if file.piece == leaf:
                file.path.unlink(missing_ok=True)
                total -= file.nbytes
        files = [file for file in files if file.piece != leaf]


def is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


class DiskCache:
    """The files of one pair. All pairs together have at most `limit` bytes."""

    def __init__(self, key: str, target: str, draft: str | None, limit: int, root: Path):
        """Make the folder; remove unfinished files of killed processes.

        key: see `pair_key`. target, draft: the models' names, as users see them. Raises DFlashError
        if the folder cannot be used.
        """
        self.limit = limit
        self.root = root
        self.path = root / key
        self.failed = False
        self.seen: set[str] = set()  # the files that `new_records` has looked at
        self._writer = ThreadPoolExecutor(1, "dflash-prefix-cache")
        self._pending: list[tuple[Future[None], int]] = []  # with their bytes
        make_private(root)
        make_private(self.path)
        pair = {"format": FORMAT, "target": target, "draft": draft}
        replace_json(self.path / LABELS, pair)
        for part in matching(self.path, f"*{UNFINISHED}*"):
            if not is_alive(part.name.rpartition(UNFINISHED)[2].partition("-")[0]):
                part.unlink(missing_ok=True)

    def new_records(self) -> list[tuple[Record, np.ndarray | None]]:
        """The files written since the last call, by any process: parents before children.

        A piece's tokens [n], int32, come with the target's rows. Removes damaged files.
        """
        # There are none if `dflash cache rm --all` has removed the folder.
        names = {file.name for file in matching(self.path, f"*{SUFFIX}")}
        records = []
        for name in names - self.seen:
            with suppress(FileNotFoundError):
                try:
                    if (record := Record.of(self.path / name)) is None:
                        raise Damaged
                    tokens = self._tokens(record) if record.part == "target" else None
                    records.append((record, tokens))
                except Damaged:
                    self.drop(name)
        self.seen = names
        return sorted(records, key=lambda found: (found[1] is None, found[0].start))

    def _tokens(self, record: Record) -> np.ndarray:
        """Raises Damaged unless the piece's name belongs to its tokens."""
        arrays = parse_arrays(str(self.path / record.file_name), record.file_name)
        try:
            tokens = np.array(arrays[TOKENS], np.int32)
        except (KeyError, ValueError, RuntimeError) as error:
            raise Damaged from error
        if record.name != piece_name(record.parent, record.start, tokens):
            raise Damaged
        return tokens

    def read(self, record: Record) -> bytes | None:
        """The content; None if the file is gone or damaged. For any thread: it uses no MLX."""
        try:
            data = (self.path / record.file_name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError:
            data = b""
        content = memoryview(data)[:-CHECKSUM_BYTES]
        if hashlib.sha256(content).digest() == data[-CHECKSUM_BYTES:]:
            return data
        self.drop(record.file_name)
        return None

    def drop(self, file_name: str) -> None:
        file = self.path / file_name
        log.warning("the prefix cache's file '%s' was damaged: it is removed", file)
        file.unlink(missing_ok=True)

    def save(
        self, record: Record, layers: Layers, tokens: np.ndarray, *, max_pending_bytes: int
    ) -> bool:
        """Write a part of a piece soon, unless it is there. Returns False if there is no room.

        It may exceed `max_pending_bytes` only if no other one is waiting.
        """
        if (self.path / record.file_name).exists():  # of another process
            return True
        flat: Any = tree_flatten(layers)
        arrays = {name: mx.contiguous(array) for name, array in flat}
        if record.part == "target":
            arrays[TOKENS] = mx.array(tokens)
        nbytes = sum(array.nbytes for array in arrays.values())
        self._pending = [(job, size) for job, size in self._pending if not job.done()]
        waiting = sum(size for _, size in self._pending)
        if self.failed or nbytes > self.limit or (waiting and waiting + nbytes > max_pending_bytes):
            return False
        mx.eval(arrays)  # only MLX's thread may compute
        self._pending.append((self._writer.submit(self._write, record, arrays), nbytes))
        return True

    def _write(self, record: Record, arrays: Mapping[str, mx.array]) -> None:
        if self.failed:
            return
        try:
            write_arrays(self.path / record.file_name, arrays)
            evict(self.root, self.limit)
        except OSError as error:
            self.failed = True
            log.warning(
                "the prefix cache in '%s' cannot be written (%s): nothing more is kept on disk",
                self.path,
                error.strerror,
            )

    def touch(self, record: Record) -> None:
        with suppress(OSError):  # it is gone, not ours, or on a disk that nobody may write
            os.utime(self.path / record.file_name)

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
    target: str
    draft: str | None
    tokens: int
    nbytes: int
    used: float
    files: tuple[Path, ...]


def cached_texts(root: Path) -> tuple[list[CachedText], list[Path]]:
    """The texts of all pairs, the most recently used first; and the files of other versions."""
    texts: list[CachedText] = []
    unread: list[Path] = []
    for file in matching(root, f"*/{LABELS}"):
        folder = file.parent
        with suppress(OSError, ValueError, KeyError, TypeError):  # another program's folder
            pair = json.loads(file.read_text(encoding="utf-8"))
            records: list[Record] = []
            for path in matching(folder, f"*{SUFFIX}"):
                with suppress(FileNotFoundError):
                    record = Record.of(path) if pair.get("format") == FORMAT else None
                    if record is None:
                        unread.append(path)
                    else:
                        records.append(record)
            texts += texts_of(folder, str(pair["target"]), pair["draft"], records)
    return sorted(texts, key=lambda text: -text.used), unread


def texts_of(
    folder: Path, target: str, draft: str | None, records: list[Record]
) -> Iterator[CachedText]:
    """The texts of one pair: each ends in a piece that no other one continues."""
    pieces = {record.name: record for record in records if record.part == "target"}
    continued = {(piece.parent, piece.start) for piece in pieces.values()}
    chains: dict[str, list[str]] = {}  # the pieces of each text, by the name of its last one
    for last in pieces.values():
        if (last.name, last.end) not in continued:
            chains[last.name] = chain = [last.name]
            while (parent := pieces[chain[-1]].parent) in pieces:
                chain.append(parent)
    uses = Counter(name for chain in chains.values() for name in chain)
    for name, chain in chains.items():
        last = pieces[name]
        own = [one for one in records if one.name in chain and uses[one.name] == 1]
        nbytes = sum(file.nbytes for file in own)
        files = tuple(folder / file.file_name for file in own)
        yield CachedText(name, target, draft, last.end, nbytes, last.used, files)


def clear(root: Path) -> None:
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
        str(FORMAT),
        *file_lines(target.path),
        *([] if folder is None else file_lines(folder)),
        repr([(name, v.shape, v.dtype) for name, v in parameters]),
        repr((mx.default_device(), target.head_type, kernels.exact, own)),
        *([repr((target.kv_bits, target.kv_groups))] if target.kv_bits else []),
        *([] if target.adapter is None else [f"adapter {target.adapter.digest}"]),
        *map(version, ("mlx", "mlx-lm", "dflash-chat")),
    ]
    return fingerprint(parts)


def file_lines(folder: Path) -> list[str]:
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
