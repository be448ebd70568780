"""MLX arrays as the bytes a kernel sees, and back."""

from typing import Any

import mlx.core as mx
import numpy as np

from .source import Buffer, Refused
from .worker import Block

POISON = 0x7FD1  # NaN as float, half and bfloat: what unset outputs hold


def _bits(dtype: mx.Dtype) -> Any:
    """The integer type numpy can hold a dtype's bits in."""
    return {1: (mx.uint8, np.uint8), 2: (mx.uint16, np.uint16), 4: (mx.uint32, np.uint32)}.get(
        dtype.size, (mx.uint64, np.uint64)
    )


def to_host(array: mx.array, contiguous: bool) -> np.ndarray:
    """An array's bits as unsigned integers (bool as bool), with its own strides if it may be
    strided and without a copy where possible."""
    if not array.size:
        raise Refused("an empty input")
    view = array if array.dtype == mx.bool_ else array.view(_bits(array.dtype)[0])
    host = np.asarray(view)
    return np.ascontiguousarray(host).reshape(host.shape) if contiguous else host


def empty_output(shape: tuple[int, ...], dtype: mx.Dtype) -> np.ndarray:
    """What an output holds before the launch: NaN and its like."""
    raw = np.full(-(-int(np.prod(shape)) * dtype.size // 2), POISON, np.uint16)
    kind = np.uint8 if dtype == mx.bool_ else _bits(dtype)[1]
    return raw.view(np.uint8)[: int(np.prod(shape)) * dtype.size].view(kind).reshape(shape)


def to_mlx(host: np.ndarray, dtype: mx.Dtype) -> mx.array:
    if dtype == mx.bool_:
        return mx.array(host).astype(mx.bool_)
    return mx.array(host).view(dtype)


def block(
    buffer: Buffer,
    host: list[np.ndarray],
    outputs: list[np.ndarray],
    shift: int = 0,
) -> Block:
    """The memory of one buffer of the kernel's signature; inputs shifted by so many elements."""
    if buffer.role == "output":
        array = outputs[buffer.of]
        return Block(buffer.name, array, 0, array.nbytes, True, written=False)
    array = host[buffer.of]
    shift = shift * array.itemsize if buffer.role == "input" else 0
    if buffer.role == "shape":
        array = np.array(array.shape, np.int32)
    elif buffer.role == "strides":
        array = np.array([s // array.itemsize for s in array.strides], np.int64)
    elif buffer.role == "ndim":
        array = np.array(array.ndim, np.int32)
    spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    low, high = sum(s for s in spans if s < 0), sum(s for s in spans if s > 0)
    end = high + array.itemsize if array.size else 0
    return Block(buffer.name, array, low, end, shift=shift)
