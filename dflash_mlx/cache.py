"""The target's caches, which can drop their newest rows exactly.

mlx-lm's own `trim` will not do: a rotating cache refuses once its window is full, and after a trim
a one-token step reads rows that were dropped. A rewind here succeeds exactly or raises. Knows cache
classes, not models.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from .cpu import MaskedCache
from .errors import DFlashError, RewindError

KINDS = (KVCache, MaskedCache, QuantizedKVCache, RotatingKVCache)


class TargetCache:
    """The caches of all layers, moved together."""

    def __init__(self, layers: list[Any]):
        for layer in layers:
            if type(layer) not in KINDS:
                raise DFlashError(
                    f"caches of the kind '{type(layer).__name__}' cannot be rewound.",
                    hint="use this model without a drafter: --no-draft",
                )
        self.layers = layers

    @property
    def offset(self) -> int:
        """Number of tokens read."""
        return self.layers[0].offset

    @property
    def state(self) -> list[Any]:
        """The arrays to evaluate after a forward pass."""
        return [layer.state for layer in self.layers if not layer.empty()]

    def can_rewind(self, length: int) -> bool:
        """Whether `rewind(length)` would succeed."""
        return all(
            not isinstance(layer, RotatingKVCache) or rotating_can_rewind(layer, length)
            for layer in self.layers
        )

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; RewindError, with nothing changed, if rows are gone."""
        if not 0 <= length <= self.offset or not self.can_rewind(length):
            raise RewindError(
                f"the cache of {self.offset} tokens cannot go back to {length}.",
                hint="start a new conversation",
            )
        for layer in self.layers:
            if isinstance(layer, RotatingKVCache):
                rewind_rotating(layer, length)
            else:
                layer.trim(layer.offset - length)


def rotating_rows(cache: RotatingKVCache) -> int:
    """How many tokens' rows a rotating cache holds, the newest ones; not a filler's."""
    if cache.keys is None:
        return 0
    return min(cache.keys.shape[2], cache.offset) - (cache._idx == 0)


def rotating_can_rewind(cache: RotatingKVCache, length: int) -> bool:
    """Whether the rows before token `length` that its window needs are all still there.

    A token sees `max_size` tokens, itself included, so the next one needs `max_size` - 1 of them.
    """
    oldest = cache.offset - rotating_rows(cache)
    if length == cache.offset or oldest == 0:
        return True
    return cache.keep == 0 and length - oldest >= min(length, cache.max_size - 1)


def rewind_rotating(cache: RotatingKVCache, length: int) -> None:
    """Drop the newest rows of a rotating cache for good: temporal order first, then cut."""
    drop = cache.offset - length
    if drop == 0:
        return
    if length == 0:
        cache.keys = cache.values = None
        cache.offset = cache._idx = 0
        return
    keys, values = cache._temporal_order(cache.keys), cache._temporal_order(cache.values)
    keys, values = keys[..., :-drop, :], values[..., :-drop, :]
    cache.offset = length
    cache._idx = keys.shape[2]
    if keys.shape[2] < min(length, cache.max_size):
        # A ring one row short would be grown instead of turned: fill the row that goes next. Only
        # with a filler is that row 0; mlx-lm leaves `_idx` behind the row it wrote.
        keys = mx.concatenate([keys[..., :1, :], keys], axis=2)
        values = mx.concatenate([values[..., :1, :], values], axis=2)
        cache._idx = 0
    cache.keys, cache.values = keys, values
