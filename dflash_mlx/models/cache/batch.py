"""The caches of many sequences in arrays that they share, for passes of one token of each.

A packed pass attends sequence by sequence, which many short ones spend most of their time on; here
one product serves all. Rows are only added: who rewinds or drafts has caches of its own.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from dflash_mlx.cpu.modules import MaskedCache

from .rows import STEP
from .target_cache import TargetCache


def fits_batch(cache: TargetCache) -> bool:
    """Whether every layer of a target keeps plain rows of all tokens."""
    return all(type(layer) in (KVCache, MaskedCache) for layer in cache.layers)


class Batch:
    """The caches of N sequences. `layers` is what mlx-lm's model takes.

    `lengths`: how many tokens each holds; where none is, what is read at place 0 is for nobody.
    """

    def __init__(self, count: int, layers: int):
        self.lengths = [0] * count
        self.slots = mx.arange(count)
        self.layers = [BatchRows(self) for _ in range(layers)]
        self.begin()

    @property
    def state(self) -> list[mx.array]:
        """All keys and values."""
        return [array for rows in self.layers for array in rows.held]

    def put(self, slot: int, cache: TargetCache) -> None:
        """A sequence that goes on here, from what its own cache holds."""
        for rows, layer in zip(self.layers, cache.layers, strict=True):
            rows.put(slot, layer.keys[0, :, : layer.offset], layer.values[0, :, : layer.offset])
        self.lengths[slot] = cache.offset

    def drop(self, slot: int) -> None:
        """Forget a sequence."""
        self.lengths[slot] = 0

    def keep(self, slots: list[int]) -> None:
        """Keep these sequences only, in this order."""
        for rows in self.layers:
            rows.keep(mx.array(slots))
        self.lengths = [self.lengths[slot] for slot in slots]
        self.slots = mx.arange(len(slots))

    def begin(self) -> None:
        """Begin a pass: each sequence reads its next token."""
        self.width = max(self.lengths) + 1
        self.positions = mx.array(self.lengths)
        self._masks: dict[int | None, mx.array] = {}

    def end(self) -> None:
        """End a pass: each sequence holds one token more."""
        self.lengths = [length + (length > 0) for length in self.lengths]

    def mask(self, window: int | None) -> mx.array:
        """Who sees which rows, bool [N, 1, 1, S]."""
        if window not in self._masks:
            columns, last = mx.arange(self.width), self.positions[:, None, None, None]
            seen = columns <= last
            self._masks[window] = seen if window is None else seen & (columns > last - window)
        return self._masks[window]


class BatchRows:
    """One layer's keys and values of all sequences of a batch."""

    def __init__(self, batch: Batch):
        self._batch = batch
        self._held: tuple[mx.array, mx.array] | None = None

    @property
    def held(self) -> tuple[mx.array, ...]:
        """Keys and values [N, Hkv, S, D], if there are any."""
        return self._held or ()

    @property
    def offset(self) -> mx.array:
        """The position [N] of each sequence's next token."""
        return self._batch.positions

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        """See `Batch.mask`."""
        assert N == 1
        return self._batch.mask(window_size)

    def put(self, slot: int, keys: mx.array, values: mx.array) -> None:
        """The rows [Hkv, S, D] of one sequence."""
        count = keys.shape[1]
        for array, new in zip(self._room(count, keys, values), (keys, values), strict=True):
            array[slot, :, :count] = new

    def keep(self, slots: mx.array) -> None:
        """Keep these sequences only."""
        if self._held is not None:
            keys, values = (mx.take(held, slots, axis=0) for held in self._held)
            self._held = keys, values

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add a row [N, Hkv, 1, D] to each: views of all rows [N, Hkv, S, D], some of nobody."""
        batch = self._batch
        held = self._room(batch.width, keys[0], values[0])
        for array, new in zip(held, (keys, values), strict=True):
            array[batch.slots, :, batch.positions] = new.squeeze(2)
        return held[0][:, :, : batch.width], held[1][:, :, : batch.width]

    def _room(self, rows: int, *like: mx.array) -> tuple[mx.array, mx.array]:
        """Keys and values with room for so many rows, of the shapes and types of [Hkv, _, D]."""
        there = 0 if self._held is None else self._held[0].shape[2]
        if there < rows:
            more = -(-rows // STEP) * STEP - there

            def free(part: mx.array) -> mx.array:
                shape = (len(self._batch.lengths), part.shape[0], more, part.shape[2])
                return mx.zeros(shape, part.dtype)

            rooms = [free(part) for part in like]
            if self._held is not None:
                each = zip(self._held, rooms, strict=True)
                rooms = [mx.concatenate([*both], axis=2) for both in each]
            self._held = rooms[0], rooms[1]
        assert self._held is not None
        return self._held


def reads_batch(cache: Any) -> bool:
    """Whether a layer's cache is one of a batch's."""
    return isinstance(cache, BatchRows)
