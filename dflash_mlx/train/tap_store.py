"""The taps of training sequences on disk: safetensors shards of a folder, bfloat16.

Each shard is written under another name and then renamed, so that what is found was written whole.
Only shards are read into memory that are being written. Does not know the target.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import header

SHARD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where the taps of one sequence lie: bytes from `start` on of a shard, [rows, width]."""

    file: Path
    start: int
    rows: int


class TapStore:
    """Taps by a key of the sequence's tokens.

    folder: of one target and one choice of layers; `width` is K * Ht. Damaged shards, and those of
    another width, are left out; `damaged` names them, and they are made again.
    """

    def __init__(self, folder: Path, width: int):
        self._folder, self._width = folder, width
        self._places: dict[str, Place] = {}
        self._waiting: dict[str, mx.array] = {}
        self._bytes = 0
        self.damaged: list[Path] = []
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(folder.glob("shard-*.safetensors"))
        for file in files:
            try:
                self._places |= places(file, width)
            except DFlashError:
                self.damaged.append(file)
        self._next = 1 + max((int(file.stem[6:]) for file in files), default=-1)

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self._waiting

    def add(self, key: str, taps: mx.array) -> None:
        """Keep taps [S, K * Ht]; a full shard is written."""
        assert (taps.shape[1], taps.dtype) == (self._width, mx.bfloat16)
        self._waiting[key] = taps
        self._bytes += taps.nbytes
        if self._bytes >= SHARD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is kept in memory as a shard."""
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
        self._waiting, self._bytes, self._next = {}, 0, self._next + 1

    def read(self, key: str) -> np.ndarray:
        """The taps [S, K * Ht] of a key that is written, their bfloat16 bits as uint16.

        Any thread may call it.
        """
        place = self._places[key]
        count = place.rows * self._width
        found = np.fromfile(place.file, dtype="<u2", count=count, offset=place.start)
        if found.size < count:
            raise DFlashError(
                f"'{place.file}' has become shorter.", hint="remove it; --resume makes it again"
            )
        return found.reshape(place.rows, self._width)


def places(file: Path, width: int) -> dict[str, Place]:
    """The sequences of a shard; DFlashError if it is damaged or not of this width."""
    shapes = header(file)
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        tensors = json.loads(stream.read(length))
    found = {}
    for key, shape in shapes.items():
        first, end = tensors[key]["data_offsets"]
        if len(shape) != 2 or shape[1] != width or end - first != 2 * shape[0] * width:
            raise DFlashError(f"'{file}' holds other taps.", hint="remove it")
        found[key] = Place(file, 8 + length + first, shape[0])
    return found


def key_of(tokens: Sequence[int]) -> str:
    """The key of a sequence."""
    return hashlib.sha256(np.array(tokens, dtype="<i4").tobytes()).hexdigest()[:32]
