"""The target's caches, which can go back to an earlier token exactly.

Rows of keys and values are cut. Recurrent state and full windows go back a pass; further only to a
snapshot, which the caller asks for where a turn ends. A rewind here succeeds exactly or raises.
Knows cache classes, not models.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from . import rotating
from .cpu import MaskedCache
from .errors import DFlashError, RewindError
from .recurrent import RecurrentCache
from .registry import SNAPSHOT_BYTES, SNAPSHOTS

ROWS = (KVCache, MaskedCache, QuantizedKVCache)  # go back to anywhere
KINDS = (*ROWS, ChunkedKVCache, RotatingKVCache, RecurrentCache)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What cutting rows cannot give back, as it was after `length` tokens.

    One part for each cache that is not of `ROWS`.
    """

    length: int
    parts: tuple[tuple[mx.array, ...], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for part in self.parts for array in part)


class TargetCache:
    """The caches of all layers, moved together."""

    def __init__(self, layers: list[Any]):
        self.layers = layers
        self._members = list(members(layers))
        self._snapshots: list[Snapshot] = []
        for cache in self._members:
            if type(cache) not in KINDS:
                raise DFlashError(
                    f"caches of the kind '{type(cache).__name__}' cannot be rewound.",
                    hint="use this model without a drafter: --no-draft",
                )
        self._stateful = [cache for cache in self._members if type(cache) not in ROWS]

    @property
    def offset(self) -> int:
        """Number of tokens read; after a pass that was broken off, by the layer that read most."""
        return max(cache.offset for cache in self._members)

    @property
    def state(self) -> list[Any]:
        """The arrays to evaluate after a forward pass."""
        return [layer.state for layer in self.layers if not layer.empty()]

    @property
    def needs_snapshots(self) -> bool:
        """Whether some layer cannot go back to just any token."""
        return bool(self._stateful)

    @property
    def snapshots(self) -> int:
        """Number of places to go back to."""
        return len(self._snapshots)

    @property
    def snapshot_bytes(self) -> int:
        """Memory that the snapshots take."""
        return sum(snapshot.nbytes for snapshot in self._snapshots)

    def tape(self, on: bool) -> None:
        """Whether the next passes can be taken back token by token, or only as a whole.

        Costs memory for each token of a pass where layers are recurrent: not for a prefill.
        """
        for cache in self._stateful:
            if isinstance(cache, RecurrentCache):
                cache.taping = on

    def snapshot(self) -> None:
        """Make the tokens read so far a place to go back to; the oldest such places are given up.

        Does nothing where every layer can go back anywhere.
        """
        length = self.offset
        if not length or not self._stateful or any(s.length == length for s in self._snapshots):
            return
        if any(isinstance(cache, RotatingKVCache) and cache.keep for cache in self._stateful):
            return
        taken = Snapshot(length, tuple(save(cache) for cache in self._stateful))
        mx.eval(taken.parts)
        self._snapshots.append(taken)
        while len(self._snapshots) > 1 and (
            len(self._snapshots) > SNAPSHOTS or self.snapshot_bytes > SNAPSHOT_BYTES
        ):
            del self._snapshots[0]

    def can_rewind(self, length: int) -> bool:
        """Whether `rewind(length)` would succeed."""
        return 0 <= length <= self.offset and (
            self._can_cut(length) or any(s.length == length for s in self._snapshots)
        )

    def reachable(self, length: int) -> int:
        """The most tokens, up to `length`, to which `rewind` can go back; 0 is to start anew."""
        if self.can_rewind(length):
            return length
        return max((s.length for s in self._snapshots if s.length <= length), default=0)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; RewindError, with nothing changed, if that cannot be."""
        if not self.can_rewind(length):
            raise RewindError(
                f"the cache of {self.offset} tokens cannot go back to {length}.",
                hint="start a new conversation",
            )
        if self._can_cut(length):
            for cache in self._members:
                cut(cache, length)
        else:
            taken = next(s for s in self._snapshots if s.length == length)
            for cache in self._members:
                if type(cache) in ROWS:
                    cut(cache, length)
            for cache, part in zip(self._stateful, taken.parts, strict=True):
                load(cache, part, length)
        self._snapshots = [s for s in self._snapshots if s.length <= length]

    def _can_cut(self, length: int) -> bool:
        return all(length <= cache.offset and can_cut(cache, length) for cache in self._members)


def members(layers: list[Any]) -> Iterator[Any]:
    """The caches of all layers, those in mlx-lm's lists one by one."""
    for layer in layers:
        if type(layer) is CacheList:
            yield from members(list(layer.caches))
        else:
            yield layer


def can_cut(cache: Any, length: int) -> bool:
    """Whether one cache can go back to `length` tokens by itself."""
    if isinstance(cache, RotatingKVCache):
        return rotating.can_rewind(cache, length)
    if isinstance(cache, RecurrentCache):
        return cache.can_rewind(length)
    if isinstance(cache, ChunkedKVCache):  # its front is cut to `chunk_size` rows before a pass
        return length == cache.offset or cache.start_position <= max(0, length - cache.chunk_size)
    return True


def cut(cache: Any, length: int) -> None:
    """Let one cache go back to `length` tokens, which `can_cut` has allowed."""
    if isinstance(cache, RotatingKVCache):
        rotating.rewind(cache, length)
    elif isinstance(cache, RecurrentCache):
        cache.rewind(length)
    else:
        cache.trim(cache.offset - length)


def save(cache: Any) -> tuple[mx.array, ...]:
    """Copies of what one cache that has read something needs to go on from here."""
    if isinstance(cache, RotatingKVCache):
        return rotating.save(cache)
    if isinstance(cache, RecurrentCache):
        return cache.save()
    keys, values = cache.keys_and_values()
    rows = mx.arange(keys.shape[2])
    return mx.take(keys, rows, axis=2), mx.take(values, rows, axis=2)


def load(cache: Any, part: tuple[mx.array, ...], length: int) -> None:
    """Put one cache back to what `save` gave after `length` tokens."""
    if isinstance(cache, RotatingKVCache):
        rotating.load(cache, (part[0], part[1]), length)
    elif isinstance(cache, RecurrentCache):
        cache.load(part, length)
    else:
        cache.keys, cache.values, cache.offset = part[0], part[1], length
        cache.start_position = length - part[0].shape[2]
