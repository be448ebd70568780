"""Rows and states as the arrays of a file, and back.

Runs in the thread that owns MLX; the arrays may then be written by another. Does not know files.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.kv_rows import count_rows
from dflash_mlx.target.caches.target_cache import Snapshot

from .entry import Entry
from .segment import Layers, Segment
from .tensor_file import Tensor

NAMES = {
    mx.bool_: "BOOL",
    mx.uint8: "U8",
    mx.uint32: "U32",
    mx.int32: "I32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.float32: "F32",
}


def rows_tensors(segment: Segment) -> dict[str, Tensor]:
    """A segment's tokens and rows; they share the memory of its arrays."""
    return {
        "tokens": Tensor("I32", segment.tokens),
        **tensors(segment.target, "target"),
        **tensors(segment.draft, "draft"),
    }


def states_tensors(snapshot: Snapshot) -> dict[str, Tensor]:
    """The arrays of a snapshot; they share its memory."""
    none = np.zeros(0, np.int32)
    return {"tokens": Tensor("I32", none), **tensors(snapshot.parts, "states")}


def rows_of(entry: Entry, found: Mapping[str, Tensor]) -> tuple[Layers, Layers | None]:
    """The target's rows and the drafter's. ValueError where they are not of so many tokens."""
    target, draft = layers(found, "target"), layers(found, "draft")
    counts = {count_rows(rows) for rows in (*target, *draft)}
    if counts - {len(entry.tokens)} or bool(draft) != entry.drafted:
        raise ValueError("the rows are not those of the tokens")
    return target, draft or None


def states_of(entry: Entry, found: Mapping[str, Tensor]) -> Snapshot:
    """The snapshot. ValueError where there is none."""
    parts = layers(found, "states")
    if not parts:
        raise ValueError("there are no states")
    return Snapshot(entry.start, tuple(tuple(part) for part in parts))


def tensors(tree: Any, name: str) -> dict[str, Tensor]:
    """All arrays of a tree, by their places in it."""
    flat: Any = tree_flatten(tree, prefix=f".{name}") if tree else []
    return {place: tensor_of(array) for place, array in flat}


def layers(found: Mapping[str, Tensor], name: str) -> tuple[Any, ...]:
    """The tree of those arrays, one part a layer."""
    flat: Any = [
        (place.removeprefix(f"{name}."), array_of(tensor))
        for place, tensor in found.items()
        if place.startswith(f"{name}.")
    ]
    return tuple(tree_unflatten(flat)) if flat else ()


def tensor_of(array: mx.array) -> Tensor:
    """An array as NumPy sees it."""
    bits: Any = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return Tensor(NAMES[array.dtype], np.asarray(memoryview(bits)))


def array_of(tensor: Tensor) -> mx.array:
    """A copy of it as MLX's array."""
    found = mx.array(tensor.data)
    return found.view(mx.bfloat16) if tensor.type == "BF16" else found
