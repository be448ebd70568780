"""Files of arrays in the safetensors format, whose last array is a checksum of all before it.

Written whole or not at all, readable by the owner alone. Knows NumPy arrays; does not know MLX, or
what the arrays are.
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

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
    kind, shape = TYPES[entry["dtype"]], entry["shape"]
    return np.frombuffer(data, kind).reshape(shape) if len(data) else np.zeros(shape, kind)
