"""What the caches of a model take, by the shapes that a token leaves in them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, KVCache

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.registry import max_snapshot_bytes
from dflash_mlx.models.attention import covered
from dflash_mlx.models.parts import Parts, flat

from .sliding import ROOM

KV_GROUPS = (64, 32)  # numbers with one scale: mlx-lm's default, then MLX's next smaller size
SHORT = (mx.float16, mx.bfloat16)
NO_LAYER = "no layer of full attention has a cache to itself"


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What one cache takes: `width` numbers for each of at most `window` tokens (0: of all).

    A state of constant size has `state` numbers, and `fixed` bytes of numbers whose type does not
    depend on the model's. group: the size of the groups in which it can be quantised; 0 if it
    cannot, for the reason `whole`.
    """

    width: int = 0
    window: int = 0
    state: int = 0
    fixed: int = 0
    group: int = 0
    whole: str = ""

    def nbytes(self, tokens: int, item_bytes: int, kv_bits: int | None = None) -> int:
        """The bytes after `tokens` tokens, without free rows."""
        rows = min(self.window or tokens, tokens)
        number: float = item_bytes
        if kv_bits and self.group:
            number = kv_number_bytes(kv_bits, self.group, item_bytes)
        return round(rows * self.width * number) + self.state * item_bytes + self.fixed


def cache_sizes(parts: Parts) -> tuple[CacheSize, ...]:
    pairs = zip(flat(parts.caches), parts.readers, strict=True)
    sizes = [size_of(cache, readers) for cache, readers in pairs]
    grouped = [number for number, size in enumerate(sizes) if size.group]
    if len(sizes) > len(parts.caches):  # mlx-lm quantises no cache inside another one
        return tuple(replace(size, group=0, whole=size.whole or NO_LAYER) for size in sizes)
    if grouped and len(parts.caches) < len(parts.layers):
        # Later layers read the rows of this one, too, and do not know quantised ones.
        sizes[grouped[-1]] = replace(sizes[grouped[-1]], group=0, whole=NO_LAYER)
    return tuple(sizes)


def size_of(cache: Any, readers: Sequence[Any]) -> CacheSize:
    if getattr(cache, "keys", None) is not None:
        shapes = [cache.keys.shape, cache.values.shape]
        window = getattr(cache, "max_size", 0) or getattr(cache, "chunk_size", 0)
        whole = why_not_quantised(cache, readers)
        group = 0 if whole else group_of(shapes)
        width = sum(shape[1] * shape[3] for shape in shapes)
        return CacheSize(width, window, group=group, whole=whole)
    held: Any = [] if cache.empty() else tree_flatten(cache.state)
    arrays = [value for _, value in held if isinstance(value, mx.array)]
    if type(cache) is not ArraysCache:  # it may grow
        return CacheSize(sum(array.size for array in arrays), whole=NO_LAYER)
    state = sum(array.size for array in arrays if array.dtype in SHORT)
    fixed = sum(array.nbytes for array in arrays if array.dtype not in SHORT)
    return CacheSize(state=state, fixed=fixed, whole=NO_LAYER)


def group_of(shapes: Sequence[Sequence[int]]) -> int:
    """The size of the groups in which these keys and values can be quantised; 0 if in none."""
    return next((g for g in KV_GROUPS if all(shape[3] % g == 0 for shape in shapes)), 0)


def why_not_quantised(cache: Any, readers: Sequence[Any]) -> str:
    """Why mlx-lm cannot quantise a layer's cache, in a few words; empty if it can."""
    if type(cache) is not KVCache or cache.keys is None or cache.values is None:
        return NO_LAYER
    if any(hasattr(reader, "kv_lora_rank") for reader in readers):
        return "it caches latents (MLA) instead of keys and values"
    if any("sinks" in reader for reader in readers):
        return "its attention has sinks"
    if not all(covered(reader) for reader in readers):
        return "its attention does not read quantised rows"
    shapes = cache.keys.shape, cache.values.shape
    if not group_of(shapes):
        return f"its heads have {shapes[0][3]} numbers, which is no multiple of {KV_GROUPS[-1]}"
    return ""


def check_quantisable(sizes: Sequence[CacheSize], name: str) -> None:
    """Raise DFlashError for a target without a layer whose KV cache can be quantised."""
    if any(size.group for size in sizes):
        return
    reasons = [size.whole for size in sizes if size.whole != NO_LAYER] or [NO_LAYER]
    raise DFlashError(
        f"the KV cache of '{name}' cannot be quantised: {reasons[0]}.",
        hint="leave --kv-bits out",
    )


def kv_number_bytes(bits: int, group: int, item_bytes: int) -> float:
    """Bytes of a number of a quantised KV cache, with its share of the group's scale and bias."""
    return bits / 8 + 2 * item_bytes / group


def cache_bytes(
    sizes: Sequence[CacheSize], tokens: int, item_bytes: int = 2, kv_bits: int | None = None
) -> int:
    """The bytes of all caches of a model after `tokens` tokens, without `free_bytes`."""
    return sum(size.nbytes(tokens, item_bytes, kv_bits) for size in sizes)


def free_bytes(sizes: Sequence[CacheSize], item_bytes: int = 2) -> int:
    """The bytes of the free rows behind the windows of a model's caches, at most."""
    return sum(ROOM * size.width * item_bytes for size in sizes if size.window)


def snapshot_bytes(sizes: Sequence[CacheSize], item_bytes: int = 2) -> int:
    """The most bytes of a conversation's cache snapshots: recurrent states and windows."""
    held = [size for size in sizes if size.window or size.state or size.fixed]
    return max_snapshot_bytes(sum(size.nbytes(size.window, item_bytes) for size in held))
