"""A drafter's trained embedding of the mask token: the file `mask_embedding.pt`.

The file is written by torch.save: a zip archive of a pickle and raw storages. The unpickler accepts
only the names that a tensor needs, so the file cannot run code.
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
    """The embedding [H], or None without the file. Raises DFlashError for an unknown content."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        content = unpickled(path)
    except (zipfile.BadZipFile, pickle.UnpicklingError, KeyError, ValueError, EOFError) as error:
        raise DFlashError(
            f"'{path}' cannot be read ({error}).", hint="download the drafter again"
        ) from None
    row, file_token_id = content, mask_token_id
    if isinstance(content, dict):
        row = content.get("embedding", content.get("mask_embedding"))
        file_token_id = content.get("mask_token_id", mask_token_id)
    if not isinstance(row, mx.array):
        raise DFlashError(f"'{path}' holds no embedding.", hint="download the drafter again")
    if file_token_id != mask_token_id:
        raise DFlashError(
            f"'{path}' is for the mask token {file_token_id}, the drafter's is {mask_token_id}.",
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
        """The function or class of a name that tensors need; UnpicklingError for other names."""
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> mx.array:
        """The numbers of a storage; `pid` is ("storage", type, key, device, count)."""
        _, kind, key, _, count = pid
        data = np.frombuffer(self.archive.read(f"{self.top}data/{key}"), dtype=np.uint8)
        if data.size % kind.size:
            raise ValueError("its numbers are cut off")
        data = mx.array(data).view(kind)
        if data.size != count:
            raise ValueError("its numbers are cut off")
        return data


def rebuild_tensor(
    storage: mx.array, offset: int, shape: Any, strides: Any, *rest: Any
) -> mx.array:
    """A strided view of a storage (torch._utils._rebuild_tensor_v2)."""
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if min(shape, default=0) < 1 or min(strides) < 0 or offset < 0 or last >= storage.size:
        raise ValueError("its shape does not fit its numbers")
    return mx.as_strided(storage, shape, strides, offset)
