"""The frozen target's taps of training sequences: from disk, or by a pass of the target.

The taps are the outputs of the target layers that the drafter reads (`target_layer_ids`). The taps
of the next step are read from disk while the current step is computed.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import mlx.core as mx
import numpy as np

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import tensor_headers
from dflash_mlx.files.folder import matching
from dflash_mlx.models.target import Target

from . import data
from .events import TapsProgress
from .streams import Streams, Task

# The taps of training sequences on disk

SHARD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """The taps [rows, width] of one sequence in a shard, from byte `start` on."""

    file: Path
    start: int
    rows: int


class TapStore:
    """Taps by a key of the sequence's tokens.

    folder: for one target and one choice of layers. width: K * Ht. Shards that are damaged or have
    another width are ignored, and their taps computed again; `damaged` names them.
    """

    def __init__(self, folder: Path, width: int):
        self._folder = folder
        self._width = width
        self._places: dict[str, Place] = {}
        self._waiting: dict[str, mx.array] = {}
        self._bytes = 0
        self.damaged: list[Path] = []
        folder.mkdir(parents=True, exist_ok=True)
        files = matching(folder, "shard-*.safetensors")
        for file in files:
            try:
                self._places |= places(file, width)
            except DFlashError:
                self.damaged.append(file)
        self._next = 1 + max((int(file.stem[6:]) for file in files), default=-1)

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self._waiting

    def add(self, key: str, taps: mx.array) -> None:
        """Keep taps [S, K * Ht] in memory; write a shard once SHARD_BYTES are waiting."""
        assert (taps.shape[1], taps.dtype) == (self._width, mx.bfloat16)
        self._waiting[key] = taps
        self._bytes += taps.nbytes
        if self._bytes >= SHARD_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        name = f"shard-{self._next:06d}.safetensors"
        work = self._folder / f".{name}"
        try:
            mx.save_safetensors(str(work), self._waiting)
            os.replace(work, self._folder / name)
        except (OSError, RuntimeError) as error:
            raise DFlashError(
                f"taps cannot be written to '{self._folder}' ({error}).",
                hint="make room there, or give another folder with --taps-folder",
            ) from None
        self._places |= places(self._folder / name, self._width)
        self._waiting = {}
        self._bytes = 0
        self._next += 1

    def read(self, key: str) -> np.ndarray:
        """The taps [S, K * Ht] of a written key, their bfloat16 bits as uint16. Thread-safe."""
        place = self._places[key]
        count = place.rows * self._width
        bits = np.fromfile(place.file, dtype="<u2", count=count, offset=place.start)
        if bits.size < count:
            raise DFlashError(
                f"'{place.file}' was truncated.", hint="remove it; --resume makes it again"
            )
        return bits.reshape(place.rows, self._width)


def places(file: Path, width: int) -> dict[str, Place]:
    """The sequences of a shard; DFlashError if it is damaged or not of this width."""
    headers = tensor_headers(file)
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        tensors = json.loads(stream.read(length))
    by_key = {}
    for key, header in headers.items():
        shape = header.shape
        first, end = tensors[key]["data_offsets"]
        if len(shape) != 2 or shape[1] != width or end - first != 2 * shape[0] * width:
            raise DFlashError(f"'{file}' holds the taps of another run.", hint="remove it")
        by_key[key] = Place(file, 8 + length + first, shape[0])
    return by_key


def key_of(tokens: Sequence[int]) -> str:
    return hashlib.sha256(np.array(tokens, dtype="<i4").tobytes()).hexdigest()[:32]


MAX_PASS_TOKENS = 2048  # of all target passes that run at once


class Taps:
    """Taps by sequence number, bfloat16 as a 16-bit target gives them.

    store: the taps on disk; None computes them whenever they are needed. budget: bytes of taps that
    may stay in memory.
    """

    def __init__(
        self,
        target: Target,
        sequences: list[data.TrainingSequence],
        budget: int,
        streams: Streams,
        store: TapStore | None = None,
    ):
        self._target = target
        self._sequences = sequences
        self._streams = streams
        self._store = store
        self._keys = [key_of(s.tokens) for s in sequences]
        self._kept: dict[int, mx.array] = {}
        self._room = budget
        self._reader: ThreadPoolExecutor | None = None
        self._ahead: dict[int, Future[np.ndarray]] = {}

    @property
    def missing_bytes(self) -> int:
        width = self._target.tapped * self._target.hidden_size
        return 2 * width * self._tokens(self._missing())

    def _missing(self) -> list[int]:
        """The sequences that the store lacks, shortest first, equal ones once."""
        store = self._store
        missing = {k: n for n, k in enumerate(self._keys) if store is None or k not in store}
        return sorted(missing.values(), key=lambda n: len(self._sequences[n].tokens))

    def make(self, report: Callable[[TapsProgress], None]) -> None:
        """Compute and store the missing taps. If `report` raises, finished taps stay stored."""
        assert self._store is not None
        order = self._missing()
        total = self._tokens(order)
        done = 0
        began = perf_counter()
        try:
            for finished in self._streams.together(map(self._read, self._passes(order))):
                for by_number in finished:
                    for n, taps in by_number.items():
                        self._store.add(self._keys[n], taps)
                    done += self._tokens([*by_number])
                    report(TapsProgress(done, total, perf_counter() - began))
        finally:
            self._store.flush()

    def rows(self, numbers: list[int]) -> list[mx.array]:
        """The taps [S, K * Ht] of each sequence."""
        by_number = {n: self._kept[n] for n in numbers if n in self._kept}
        store = self._store
        fresh = dict[int, mx.array]()
        if store is not None:
            for n in set(numbers) - by_number.keys():
                if (ahead := self._ahead.pop(n, None)) is not None:
                    fresh[n] = as_taps(ahead.result())
                elif self._keys[n] in store:
                    fresh[n] = as_taps(store.read(self._keys[n]))
        missing = sorted(
            set(numbers) - by_number.keys() - fresh.keys(),
            key=lambda n: len(self._sequences[n].tokens),
        )
        for finished in self._streams.together(map(self._read, self._passes(missing))):
            for taps in finished:
                fresh |= taps
        mx.eval(list(fresh.values()))
        for n, taps in fresh.items():
            if taps.nbytes <= self._room:
                self._kept[n] = taps
                self._room -= taps.nbytes
        by_number |= fresh
        return [by_number[n] for n in numbers]

    def load_ahead(self, numbers: list[int]) -> None:
        """Start to read the taps of the sequences of the next call of `rows`."""
        if self._store is None:
            return
        self._reader = self._reader or ThreadPoolExecutor(1)
        wanted = {n for n in numbers if n not in self._kept and self._keys[n] in self._store}
        for n in self._ahead.keys() - wanted:
            self._ahead.pop(n).cancel()
        for n in wanted - self._ahead.keys():
            self._ahead[n] = self._reader.submit(self._store.read, self._keys[n])

    def close(self) -> None:
        """End the reader; a later `load_ahead` starts it again."""
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)
        self._reader = None
        self._ahead = {}

    def _tokens(self, numbers: list[int]) -> int:
        return sum(len(self._sequences[n].tokens) for n in numbers)

    def _passes(self, numbers: list[int]) -> list[list[int]]:
        """Group sequence numbers (sorted by length) into passes, the longest pass first."""
        passes = []
        numbers = list(numbers)
        while numbers:
            longest = len(self._sequences[numbers[-1]].tokens)
            size = max(1, MAX_PASS_TOKENS // longest // self._streams.count)
            passes.append(numbers[-size:])
            numbers = numbers[:-size]
        return passes

    def _read(self, numbers: list[int]) -> Task[dict[int, mx.array]]:
        """One padded target pass; the target is causal, so padding at the end changes nothing."""
        tokens = padded([self._sequences[n].tokens for n in numbers])
        taps = self._target.taps(mx.array(tokens)).astype(mx.bfloat16)
        lengths = [len(self._sequences[n].tokens) for n in numbers]
        # Copies: a view would keep the whole padded batch in memory.
        rows = [mx.contiguous(taps[line, :length] + 0) for line, length in enumerate(lengths)]
        yield rows
        return dict(zip(numbers, rows, strict=True))


def as_taps(bits: np.ndarray) -> mx.array:
    """Bits of a store as bfloat16."""
    return mx.array(bits).view(mx.bfloat16)


def padded(rows: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Token rows of different lengths as int32 [n, L], with zeros at the end."""
    grid = np.zeros((len(rows), max(map(len, rows))), dtype=np.int32)
    for line, row in enumerate(rows):
        grid[line, : len(row)] = row
    return grid


def stacked(taps: Sequence[mx.array], length: int) -> mx.array:
    """Arrays [S_i, D], cut or padded with zeros to one length -> [n, length, D]."""
    lines = []
    for rows in taps:
        rows = rows[:length]
        lines.append(mx.pad(rows, [(0, length - len(rows)), (0, 0)]))
    return mx.stack(lines)
