"""The frozen target's taps of training sequences: from disk, or by a pass of the target.

The taps are the outputs of the target layers that the drafter reads (`target_layer_ids`). The taps
of the next step are read from disk while the current step is computed.
"""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import tensor_headers
from dflash_mlx.files.folder import matching
from dflash_mlx.models.target import Target

from .data import TrainingSequence, groups, padded
from .events import TapsProgress
from .streams import Streams, Task

# The taps of training sequences on disk

SHARD_BYTES = 64 << 20


class Place(NamedTuple):
    """The taps [rows, width] of one sequence in a shard, from byte `start` on."""

    file: Path
    start: int
    rows: int


class TapStore:
    """Taps by a key of the sequence's tokens.

    folder: for one target and one choice of layers. width: K * Ht. Shards that are damaged or have
    another width are ignored, and their taps computed again.
    """

    def __init__(self, folder: Path, width: int):
        self._folder = folder
        self._width = width
        self._places: dict[str, Place] = {}
        self._waiting: dict[str, mx.array] = {}
        self._bytes = 0
        folder.mkdir(parents=True, exist_ok=True)
        files = matching(folder, "shard-*.safetensors")
        for file in files:
            with suppress(DFlashError):
                self._places |= places(file, width)
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

    store: where all of them are. At most `budget` bytes are kept in memory.
    """

    def __init__(
        self,
        target: Target,
        sequences: list[TrainingSequence],
        budget: int,
        streams: Streams,
        store: TapStore,
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
        return 2 * width * sum(len(s.tokens) for s in self._missing())

    def _missing(self) -> list[TrainingSequence]:
        """The sequences that the store lacks, equal ones once."""
        pairs = zip(self._keys, self._sequences, strict=True)
        return list({key: s for key, s in pairs if key not in self._store}.values())

    def make(self, report: Callable[[TapsProgress], None]) -> None:
        """Compute and store the missing taps. If `report` raises, finished taps stay stored."""
        missing = self._missing()
        total = sum(len(s.tokens) for s in missing)
        done = 0
        began = perf_counter()
        try:
            for finished in compute(self._target, missing, self._streams):
                for sequence, taps in finished:
                    self._store.add(key_of(sequence.tokens), taps)
                    done += len(sequence.tokens)
                report(TapsProgress(done, total, perf_counter() - began))
        finally:
            self._store.flush()

    def rows(self, numbers: list[int]) -> list[mx.array]:
        """The taps [S, K * Ht] of each sequence."""
        taps = {n: self._kept[n] for n in numbers if n in self._kept}
        for n in set(numbers) - taps.keys():
            ahead = self._ahead.pop(n, None)
            bits = self._store.read(self._keys[n]) if ahead is None else ahead.result()
            taps[n] = mx.array(bits).view(mx.bfloat16)
            mx.eval(taps[n])
            if taps[n].nbytes <= self._room:
                self._kept[n] = taps[n]
                self._room -= taps[n].nbytes
        return [taps[n] for n in numbers]

    def load_ahead(self, numbers: list[int]) -> None:
        """Start to read the taps of the sequences of the next call of `rows`."""
        self._reader = self._reader or ThreadPoolExecutor(1)
        wanted = set(numbers) - self._kept.keys()
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


Computed = tuple[TrainingSequence, mx.array]  # a sequence and its taps [S, K * Ht]


def compute(
    target: Target, sequences: list[TrainingSequence], streams: Streams
) -> Generator[list[Computed]]:
    """The taps of sequences by padded target passes, the longest sequences first.

    The target is causal, so padding at the end changes nothing.
    """

    def read(part: list[TrainingSequence]) -> Task[list[Computed]]:
        taps = target.taps(mx.array(padded([s.tokens for s in part]))).astype(mx.bfloat16)
        # Copies: a view would keep the whole padded batch in memory.
        rows = [mx.contiguous(taps[n, : len(s.tokens)] + 0) for n, s in enumerate(part)]
        yield rows
        return list(zip(part, rows, strict=True))

    passes = groups([len(s.tokens) for s in sequences], MAX_PASS_TOKENS // streams.count)
    parts = ([sequences[n] for n in numbers] for numbers in passes)
    for finished in streams.together(map(read, parts)):
        yield from finished


def stacked(taps: Sequence[mx.array], length: int) -> mx.array:
    """Arrays [S_i, D], cut or padded with zeros to one length -> [n, length, D]."""
    lines = []
    for rows in taps:
        rows = rows[:length]
        lines.append(mx.pad(rows, [(0, length - len(rows)), (0, 0)]))
    return mx.stack(lines)
