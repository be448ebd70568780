"""The frozen target's taps of training sequences: from disk, or by a pass of the target.

The taps are the outputs of the target layers that the drafter reads (`target_layer_ids`).
"""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import mlx.core as mx

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import tensor_headers
from dflash_mlx.files.folder import matching
from dflash_mlx.models.target import Target

from .data import TrainingSequence, groups, padded
from .events import TapsProgress
from .streams import Streams, Task

SHARD_BYTES = 64 << 20
MAX_PASS_TOKENS = 2048  # of all target passes that run at once


class TapStore:
    """Taps [S, K * Ht] of a target, bfloat16 as a 16-bit one gives them, by `TrainingSequence.key`.

    folder: for this target and its choice of layers. Shards that are damaged or have another width
    are ignored, and their taps computed again. At most `budget` bytes are kept in memory.
    """

    def __init__(self, folder: Path, target: Target, budget: int):
        self._folder = folder
        self._target = target
        self._width = target.tapped * target.hidden_size
        self._shards: dict[str, Path] = {}
        self._waiting: dict[str, mx.array] = {}
        self._kept: dict[str, mx.array] = {}
        self._room = budget
        folder.mkdir(parents=True, exist_ok=True)
        files = matching(folder, "shard-*.safetensors")
        for file in files:
            with suppress(DFlashError):
                self._add_shard(file)
        self._next = 1 + max((int(file.stem[6:]) for file in files), default=-1)

    def _add_shard(self, file: Path) -> None:
        headers = tensor_headers(file)
        if all(len(h.shape) == 2 and h.shape[1] == self._width for h in headers.values()):
            self._shards |= dict.fromkeys(headers, file)

    def __contains__(self, key: str) -> bool:
        return key in self._shards or key in self._waiting

    def add(self, key: str, taps: mx.array) -> None:
        """Hold taps until SHARD_BYTES wait; then write a shard."""
        assert (taps.shape[1], taps.dtype) == (self._width, mx.bfloat16)
        self._waiting[key] = taps
        if sum(rows.nbytes for rows in self._waiting.values()) >= SHARD_BYTES:
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
        self._shards |= dict.fromkeys(self._waiting, self._folder / name)
        self._waiting = {}
        self._next += 1

    def missing(self, sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
        """The sequences without taps, equal ones once."""
        return list({s.key: s for s in sequences if s.key not in self}.values())

    def missing_bytes(self, sequences: Sequence[TrainingSequence]) -> int:
        return 2 * self._width * sum(len(s.tokens) for s in self.missing(sequences))

    def make(
        self,
        sequences: Sequence[TrainingSequence],
        streams: Streams,
        report: Callable[[TapsProgress], None],
    ) -> None:
        """Compute and store the missing taps. If `report` raises, finished taps stay stored."""
        missing = self.missing(sequences)
        total = sum(len(s.tokens) for s in missing)
        done = 0
        began = perf_counter()
        try:
            for finished in compute(self._target, missing, streams):
                for sequence, taps in finished:
                    self.add(sequence.key, taps)
                    done += len(sequence.tokens)
                report(TapsProgress(done, total, perf_counter() - began))
        finally:
            self.flush()

    def rows(self, sequences: Sequence[TrainingSequence]) -> list[mx.array]:
        found = []
        for key in (s.key for s in sequences):
            taps = self._kept.get(key)
            if taps is None:
                taps = mx.load(str(self._shards[key]))[key]  # type: ignore[call-overload]
                mx.eval(taps)  # the other tensors of the shard are not read
                if taps.nbytes <= self._room:
                    self._kept[key] = taps
                    self._room -= taps.nbytes
            found.append(taps)
        return found


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
