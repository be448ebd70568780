"""The target's caches of one sequence, which can rewind to an earlier token exactly.

Keys and values of all tokens rewind to any token. Recurrent states and full windows rewind into the
last pass, and further back only to a snapshot; the caller takes one at the end of a turn. After a
pass over a tree, one path is kept. Each operation succeeds exactly or raises.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import compress
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from dflash_mlx.cpu.modules import MaskedCache
from dflash_mlx.errors import RewindError
from dflash_mlx.models.parts import flat
from dflash_mlx.speculation.tree import Tree
from dflash_mlx.types import SNAPSHOT_LIMITS, SnapshotLimits

from .recurrent import RecurrentAdapter, RecurrentCache
from .rows import (
    Adapter,
    ChunkedAdapter,
    OtherAdapter,
    Rows,
    RowsAdapter,
    again,
    append_rows,
    copy_rows,
)
from .sliding import SlidingAdapter, SlidingCache
from .tree_pass import TreePass

# The known classes of caches, each with its adapter

KINDS: dict[type, Adapter] = {
    **dict.fromkeys((KVCache, MaskedCache, QuantizedKVCache), RowsAdapter()),
    ChunkedKVCache: ChunkedAdapter(),
    SlidingCache: SlidingAdapter(),
    RecurrentCache: RecurrentAdapter(),
}
OTHER = OtherAdapter()


def own_caches(layers: Iterable[Any], taped: Iterable[bool]) -> list[Any]:
    """Empty caches of one model, with this package's classes for windows and recurrent states.

    layers: mlx-lm's. taped: for each of them, with each `CacheList` flattened, whether the layer's
    module remembers a tape. Rotating caches that always keep their first tokens stay as they are.
    """
    tapes = iter(taped)

    def own(cache: Any) -> Any:
        if type(cache) is CacheList:
            return CacheList(*(own(inner) for inner in cache.caches))
        has_tape = next(tapes)
        if type(cache) is ArraysCache:
            return RecurrentCache(len(cache.cache), taped=has_tape)
        if type(cache) is RotatingKVCache and not cache.keep:
            return SlidingCache(cache.max_size)
        return KVCache() if type(cache) is ConcatenateKVCache else cache

    return [own(layer) for layer in layers]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """parts: after `length` tokens, the states of each cache that cannot rewind to any token."""

    length: int
    parts: tuple[tuple[mx.array, ...], ...]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for part in self.parts for array in part)


class TargetCache:
    """The caches of all layers, which change together.

    `layers` are mlx-lm's; `members` are the same, with each `CacheList` flattened, but for those
    whose `used` is False: some layers have a cache and no attention. `tree` is the tree that the
    current pass reads, if any. `held` has the snapshots by their length, which `limits` bounds.
    """

    def __init__(
        self,
        layers: list[Any],
        limits: SnapshotLimits = SNAPSHOT_LIMITS,
        used: Sequence[bool] | None = None,
    ):
        self.layers = layers
        self.limits = limits
        self._used = used
        every = list(flat(layers))
        self.members = every if used is None else list(compress(every, used))
        self.held: dict[int, Snapshot] = {}
        # Offset before the last tree pass, and its tree; None after `keep_path` or a rewind.
        self._tree_read: tuple[int, Tree] | None = None
        self.tree: TreePass | None = None
        self._pairs = [(KINDS.get(type(cache), OTHER), cache) for cache in self.members]
        groups: dict[Adapter, list[Any]] = {}
        for adapter, cache in self._pairs:
            groups.setdefault(adapter, []).append(cache)
        self._groups = groups.items()
        self._recurrent = [cache for cache in self.members if isinstance(cache, RecurrentCache)]
        self._stateful = [pair for pair in self._pairs if not pair[0].goes_anywhere]
        self._begun = [pair for pair in self._pairs if not pair[0].takes_back(pair[1])]
        self._rows = [cache for adapter, cache in self._pairs if adapter.goes_anywhere]

    @property
    def offset(self) -> int:
        """Number of tokens read; after an interrupted pass, that of the layer that read most."""
        return max(cache.offset for cache in self.members)

    @property
    def state(self) -> list[Any]:
        """The arrays to evaluate after a forward pass."""
        return [layer.state for layer in self.layers if not layer.empty()]

    @property
    def takes_back(self) -> list[bool]:
        """Whether each of the `members` can go back to any row of the last pass, as drafts need."""
        return [adapter.takes_back(cache) for adapter, cache in self._pairs]

    @property
    def needs_snapshots(self) -> bool:
        """Whether some layer cannot rewind to any token."""
        return bool(self._stateful)

    @property
    def snapshots(self) -> int:
        return len(self.held)

    @property
    def snapshot_bytes(self) -> int:
        return sum(snapshot.nbytes for snapshot in self.held.values())

    def fork(self) -> "TargetCache":
        """An independent copy. It shares snapshots, and rows until either copy is written."""
        assert self._tree_read is None

        def twin(layer: Any) -> Any:
            other = copy(layer)
            if hasattr(layer, "caches"):
                other.caches = tuple(twin(cache) for cache in layer.caches)
                return other
            for name, value in vars(layer).items():
                setattr(other, name, tree_map(again, value) if is_arrays(value) else value)
            return other

        fork = TargetCache([twin(layer) for layer in self.layers], self.limits, self._used)
        fork.held = dict(self.held)
        return fork

    def begin(self, count: int) -> None:
        for adapter, cache in self._begun:
            adapter.begin(cache, count)

    def tape(self, on: bool) -> None:
        """Set whether the next passes can be rewound row by row, or only as a whole.

        In recurrent layers a tape takes memory for each row, so prompts are read without one.
        """
        assert self._tree_read is None
        for cache in self._recurrent:
            cache.taping = on

    def snapshot(self) -> None:
        """Snapshot now unless all layers rewind to any token; drop the oldest over the limits."""
        assert self._tree_read is None
        length = self.offset
        if not length or not self._stateful or length in self.held:
            return
        if not all(adapter.saves for adapter, _ in self._stateful):
            return
        taken = Snapshot(length, tuple(adapter.save(cache) for adapter, cache in self._stateful))
        mx.eval(taken.parts)
        self._add(taken)

    def _add(self, taken: Snapshot) -> None:
        self.held[taken.length] = taken
        while len(self.held) > 1 and (
            len(self.held) > self.limits.count or self.snapshot_bytes > self.limits.nbytes
        ):
            del self.held[next(iter(self.held))]

    def copy_rows(self, start: int, end: int) -> tuple[Rows, ...]:
        """The rows of tokens `start` to `end` (exclusive) in the layers that keep all rows."""
        return tuple(copy_rows(cache, start, end) for cache in self._rows)

    def extend(self, parts: Sequence[tuple[Rows, ...]], snapshot: Snapshot | None) -> None:
        """Append rows of `copy_rows`. snapshot: the one after them, if `needs_snapshots`."""
        for cache, *rows in zip(self._rows, *parts, strict=True):
            append_rows(cache, rows)
        if snapshot is not None:
            for (adapter, cache), part in zip(self._stateful, snapshot.parts, strict=True):
                adapter.load(cache, part, snapshot.length)
            self._add(snapshot)

    @contextmanager
    def reading(self, tree: Tree) -> Iterator[TreePass]:
        """Every row sees its own path. Afterwards keep a path, or rewind to before the pass."""
        assert self._tree_read is None
        self.tree = TreePass(tree)
        self._tree_read = self.offset, tree
        try:
            for adapter, cache in self._pairs:
                adapter.begin_tree(cache, self.tree)
            yield self.tree
        finally:
            self.tree = None
            for adapter, cache in self._pairs:
                adapter.end_tree(cache)

    def keep_path(self, rows: tuple[int, ...]) -> None:
        """Keep the path, from row 0 (the anchor) on. Raises RewindError, with nothing changed."""
        start, tree = self._tree_read or (self.offset, None)
        if not (
            tree
            and tree.is_path(rows)
            and all(cache.offset == start + tree.rows for cache in self.members)
        ):
            raise RewindError(
                "the cache has read no tree with such a path.", hint="start a new conversation"
            )
        for adapter, caches in self._groups:
            adapter.keep_path(caches, rows, tree.rows)
        self._tree_read = None

    def can_rewind(self, length: int) -> bool:
        if self._tree_read and length > self._tree_read[0]:
            return False
        return 0 <= length <= self.offset and (self._can_cut(length) or length in self.held)

    def reachable(self, length: int) -> int:
        """The largest length, up to `length`, that `rewind` accepts; 0 if there is none."""
        if self.can_rewind(length):
            return length
        return max((n for n in self.held if n <= length), default=0)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens, or raise RewindError with nothing changed."""
        if not self.can_rewind(length):
            raise RewindError(
                f"the cache of {self.offset} tokens cannot go back to {length}.",
                hint="start a new conversation",
            )
        if self._can_cut(length):
            for adapter, caches in self._groups:
                adapter.rewind(caches, length)
        else:
            parts = iter(self.held[length].parts)
            for adapter, cache in self._pairs:
                adapter.load(cache, () if adapter.goes_anywhere else next(parts), length)
        self.held = {n: one for n, one in self.held.items() if n <= length}
        self._tree_read = None

    def _can_cut(self, length: int) -> bool:
        return all(
            length <= cache.offset and adapter.can_rewind(cache, length)
            for adapter, cache in self._pairs
        )


def is_arrays(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(part is None or is_arrays(part) for part in value)
    return isinstance(value, mx.array)
