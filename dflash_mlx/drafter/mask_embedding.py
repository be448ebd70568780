"""A drafter's trained row for the mask token: the file `mask_embedding.pt` beside its weights.

The file is PyTorch's: a zip archive of a pickle and raw numbers. Only the few names that a tensor
of numbers needs are unpickled, so nothing in it can run. Does not know the drafter.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from dflash_mlx.errors import DFlashError

FILE = "mask_embedding.pt"
STORAGES = {"FloatStorage": mx.float32, "HalfStorage": mx.float16, "BFloat16Storage": mx.bfloat16}


def read_mask_embedding(folder: Path, mask_token_id: int) -> mx.array | None:
    """The row [H], or None where there is no file; DFlashError for one that is not understood."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        content = unpickled(path)
    except (zipfile.BadZipFile, pickle.UnpicklingError, KeyError, ValueError, EOFError) as error:
        raise DFlashError(
            f"'{path}' cannot be read ({error}).", hint="download the drafter again"
        ) from None
    row, meant = content, mask_token_id
    if isinstance(content, dict):
        row = content.get("embedding", content.get("mask_embedding"))
        meant = content.get("mask_token_id", mask_token_id)
    if not isinstance(row, mx.array):
        raise DFlashError(f"'{path}' holds no embedding.", hint="download the drafter again")
    if meant != mask_token_id:
        raise DFlashError(
            f"'{path}' is for the mask token {meant}, the drafter's is {mask_token_id}.",
            hint="download the drafter again",
        )
    return row.reshape(-1)


def unpickled(path: Path) -> Any:
    """The object in a file that torch.save wrote, with its tensors as MLX arrays."""
    with zipfile.ZipFile(path) as archive:
        names = {Path(name).name: name for name in archive.namelist()}
        top = names["data.pkl"].removesuffix("data.pkl")
        order = f"{top}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise ValueError("not little-endian")
        return TensorReader(archive, top).load()


class TensorReader(pickle.Unpickler):
    """Unpickles plain containers and tensors, and nothing else."""

    def __init__(self, archive: zipfile.ZipFile, top: str):
        super().__init__(io.BytesIO(archive.read(f"{top}data.pkl")))
        self.archive, self.top = archive, top

    def find_class(self, module: str, name: str) -> Any:
        """The names that tensors are made of; UnpicklingError for any other."""
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return rebuilt
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> mx.array:
        """The numbers of a storage: ("storage", type, key, device, count)."""
        _, kind, key, _, count = pid
        data = np.frombuffer(self.archive.read(f"{self.top}data/{key}"), dtype=np.uint8)
        if data.size % kind.size:
            raise ValueError("its numbers are cut off")
        data = mx.array(data).view(kind)
        if data.size != count:
            raise ValueError("its numbers are cut off")
        return data


def rebuilt(storage: mx.array, offset: int, shape: Any, strides: Any, *rest: Any) -> mx.array:
    """A tensor from a part of its storage."""
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if min(shape, default=0) < 1 or min(strides) < 0 or offset < 0 or last >= storage.size:
        raise ValueError("its shape does not fit its numbers")
    return mx.as_strided(storage, shape, strides, offset)
