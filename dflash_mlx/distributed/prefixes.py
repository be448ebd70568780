"""The prefix cache of a sharded target: each rank holds its own part of what rank 0 wants held.

Rank 0's is the prefix cache as it is, which says what it holds, gives to a sequence and drops; the
others know segments by their names. Knows no texts.
"""

from collections.abc import Mapping
from typing import Any
from weakref import finalize

import mlx.core as mx
from mlx.utils import tree_map

from dflash_mlx.prefix_cache.prefix_cache import PrefixCache
from dflash_mlx.prefix_cache.segment import Layers, Segment, Stretch
from dflash_mlx.prefix_cache.tree import Tree
from dflash_mlx.sequence import Sequence
from dflash_mlx.target.caches.target_cache import Snapshot, TargetCache
from dflash_mlx.thread import mlx_thread

from .orders import Orders


class LeaderTree(Tree):
    """Segments of rank 0's cache `number`: what is dropped here, the other ranks drop too."""

    def __init__(self, orders: Orders, number: int):
        super().__init__()
        self._orders, self._number = orders, number

    def forget_states(self, segment: Segment, length: int) -> None:
        """As any, on all ranks."""
        super().forget_states(segment, length)
        self._orders.add("drop_states", self._number, segment.name, length)

    def _unload(self, segment: Segment) -> None:
        if segment.target is not None:
            self._orders.add("drop", self._number, segment.name)
        super()._unload(segment)


class LeaderPrefixes(PrefixCache):
    """The prefix cache of rank 0; there is none on disk."""

    def __init__(self, orders: Orders):
        self._orders, self._number = orders, orders.number()
        super().__init__()
        finalize(self, orders.add, "drop_all", self._number).atexit = False

    def clear(self) -> None:
        """As any, on all ranks."""
        self.tree = LeaderTree(self._orders, self._number)
        self._orders.add("drop_all", self._number)

    def _hold(
        self, sequence: Sequence, stretch: Stretch, snapshots: Mapping[int, Snapshot]
    ) -> None:
        segment, number = stretch.segment, number_of(sequence.target_cache)
        rows, states, between = segment.target, set(segment.states), (segment.start, segment.end)
        with mlx_thread().uninterrupted():
            super()._hold(sequence, stretch, snapshots)
            if rows is None and segment.target is not None:
                self._orders.add("hold", self._number, segment.name, number, *between)
            for length in set(segment.states) - states:
                self._orders.add("hold_states", self._number, segment.name, number, length)

    def _take(self, sequence: Sequence, path: list[Stretch], start: int, end: int) -> None:
        used = [s for s in path if s.segment.start < end and s.end > start]
        parts = list[list[Any]]()
        for segment, last in ((one.segment, one.end) for one in used):
            between = max(start, segment.start), min(end, last)
            parts.append([segment.name, *(place - segment.start for place in between)])
        states = used[-1].segment.name if sequence.target_cache.needs_snapshots else None
        with mlx_thread().uninterrupted():
            super()._take(sequence, path, start, end)
            number = number_of(sequence.target_cache)
            self._orders.add("extend", self._number, number, parts, states, end)


def number_of(cache: Any) -> int:
    """The number by which the other ranks know rank 0's caches."""
    return cache.number


class HeldRows:
    """What a rank that is not rank 0 holds for one cache: rows by their segment's name, states."""

    def __init__(self) -> None:
        self._rows: dict[str, Layers] = {}
        self._states: dict[tuple[str, int], Snapshot] = {}

    def hold(self, name: str, cache: TargetCache, start: int, end: int) -> None:
        """Hold what a cache has of the tokens from `start` to before `end`."""
        self._rows[name] = cache.copy_rows(start, end)
        mx.eval(self._rows[name])

    def hold_states(self, name: str, cache: TargetCache, length: int) -> None:
        """Hold the states after `length` tokens, if this rank's layers have any."""
        if cache.needs_snapshots:
            self._states[name, length] = cache.snapshots_held[length]

    def drop(self, name: str) -> None:
        """Drop rows."""
        del self._rows[name]

    def drop_states(self, name: str, length: int) -> None:
        """Drop states."""
        self._states.pop((name, length), None)

    def extend(
        self, cache: TargetCache, parts: list[tuple[str, int, int]], states: str | None, end: int
    ) -> None:
        """Let a cache go on by rows of these segments, each from a place to before another."""
        rows = [cut(self._rows[name], first, last) for name, first, last in parts]
        if states is None or not cache.needs_snapshots:
            cache.extend(rows, None)
        else:
            cache.extend(rows, self._states[states, end])


def cut(layers: Layers, first: int, last: int) -> Layers:
    """Of rows some."""
    return tree_map(lambda rows: rows[..., first:last, :], layers)
