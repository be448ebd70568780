"""Reads files of torch.save without PyTorch, and without running code in them."""

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

# The exceptions of a file that cannot be read.
UNREADABLE = (zipfile.BadZipFile, pickle.UnpicklingError, KeyError, ValueError, EOFError)
STORAGES = {
    "FloatStorage": mx.float32,
    "HalfStorage": mx.float16,
    "BFloat16Storage": mx.bfloat16,
    "LongStorage": mx.int64,
    "IntStorage": mx.int32,
    "BoolStorage": mx.bool_,
}


def read_torch_file(path: Path, *, shapes: bool = False) -> Any:
    """The object in a file, with tensors as MLX arrays, or with `shapes` as their shapes.

    Raises one of UNREADABLE.
    """
    with zipfile.ZipFile(path) as archive:
        names = {Path(name).name: name for name in archive.namelist()}
        top = names["data.pkl"].removesuffix("data.pkl")
        order = f"{top}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise ValueError("not little-endian")
        reader = ShapeReader if shapes else TensorReader
        return reader(archive, top).load()


def rebuild_tensor(
    storage: mx.array, offset: int, shape: Any, strides: Any, *rest: Any
) -> mx.array:
    """A strided view of a storage (torch._utils._rebuild_tensor_v2)."""
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if min(shape, default=0) < 1 or min(strides) < 0 or offset < 0 or last >= storage.size:
        raise ValueError("its shape does not fit its numbers")
    return mx.as_strided(storage, shape, strides, offset)


def rebuild_parameter(tensor: Any, *rest: Any) -> Any:
    """The tensor of a parameter (torch._utils._rebuild_parameter)."""
    return tensor


class TensorReader(pickle.Unpickler):
    """Unpickles plain containers and tensors, and nothing else."""

    rebuild: Any = staticmethod(rebuild_tensor)

    def __init__(self, archive: zipfile.ZipFile, top: str):
        super().__init__(io.BytesIO(archive.read(f"{top}data.pkl")))
        self.archive = archive
        self.top = top

    def find_class(self, module: str, name: str) -> Any:
        """The function or class of a name. Raises UnpicklingError for one that is not allowed."""
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        known = {
            ("torch._utils", "_rebuild_tensor_v2"): self.rebuild,
            ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """The values of a storage [count]. pid: ("storage", dtype, key, device, count)."""
        _, dtype, key, _, count = pid
        data = np.frombuffer(self.archive.read(f"{self.top}data/{key}"), dtype=np.uint8)
        if data.size % dtype.size:
            raise ValueError("its numbers are cut off")
        data = mx.array(data).view(dtype)
        if data.size != count:
            raise ValueError("its numbers are cut off")
        return data


def tensor_shape(storage: Any, offset: int, shape: Any, *rest: Any) -> list[int]:
    """The shape of a tensor; `ShapeReader` calls it instead of `rebuild_tensor`."""
    return [*shape]


class ShapeReader(TensorReader):
    """Reads the shapes of tensors instead of their values."""

    rebuild = staticmethod(tensor_shape)

    def persistent_load(self, pid: Any) -> None:
        return None
