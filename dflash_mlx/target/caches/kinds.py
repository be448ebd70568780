"""The classes of caches that this engine knows, each with its adapter; a new class is one line."""

from collections.abc import Iterator
from typing import Any

from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
)

from dflash_mlx.cpu.modules import MaskedCache
from dflash_mlx.errors import DFlashError

from .adapter import Adapter
from .chunked import ChunkedRows
from .recurrent import RecurrentCache, States
from .rows import AllRows
from .sliding import SlidingCache, Window

KINDS: dict[type, Adapter] = {
    KVCache: AllRows(),
    MaskedCache: AllRows(),
    QuantizedKVCache: AllRows(),
    ChunkedKVCache: ChunkedRows(),
    SlidingCache: Window(),
    RecurrentCache: States(),
}


def members(layers: list[Any]) -> Iterator[Any]:
    """The caches of all layers, those in mlx-lm's lists one by one."""
    for layer in layers:
        if type(layer) is CacheList:
            yield from members(list(layer.caches))
        else:
            yield layer


def adapter_of(cache: Any) -> Adapter:
    """The adapter of a cache's class; DFlashError for a class that is not known."""
    found = KINDS.get(type(cache))
    if found is None:
        raise DFlashError(
            f"caches of the kind '{type(cache).__name__}' cannot be rewound.",
            hint="use this model without a drafter: --no-draft",
        )
    return found
