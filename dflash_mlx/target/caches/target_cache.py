"""The target's caches, which can go back to an earlier token exactly.

Rows of keys and values are cut. Recurrent state and full windows go back a pass; further only to a
snapshot, which the caller asks for where a turn ends. Of a pass over a tree one path is picked.
Each of these succeeds exactly or raises. Knows cache classes, not models.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from dflash_mlx.errors import DFlashError, RewindError
from dflash_mlx.hub.registry import SNAPSHOT_BYTES, SNAPSHOTS
from dflash_mlx.speculation.tree import Tree
from dflash_mlx.target.recurrent import RecurrentCache, pick_all, rewind_all
from dflash_mlx.target.tree_pass import Branch, tree_mask

from .layer_cache import KINDS, ROWS, can_cut, can_pick, cut, load, members, pick, save


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
        """`members` are the caches of `layers`, those in mlx-lm's lists one by one."""
        self.layers = layers
        self.members = list(members(layers))
        self._snapshots: list[Snapshot] = []
        self._grown: tuple[int, Tree] | None = None
        self.branch: Branch | None = None
        for cache in self.members:
            if type(cache) not in KINDS:
                raise DFlashError(
                    f"caches of the kind '{type(cache).__name__}' cannot be rewound.",
                    hint="use this model without a drafter: --no-draft",
                )
        self._recurrent = [c for c in self.members if isinstance(c, RecurrentCache)]
        self._rows = [c for c in self.members if not isinstance(c, RecurrentCache)]
        self._stateful = [cache for cache in self.members if type(cache) not in ROWS]

    @property
    def offset(self) -> int:
        """Number of tokens read; after a pass that was broken off, by the layer that read most."""
        return max(cache.offset for cache in self.members)

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
        assert self._grown is None
        for cache in self._recurrent:
            cache.taping = on

    def snapshot(self) -> None:
        """Make the tokens read so far a place to go back to; the oldest such places are given up.

        Does nothing where every layer can go back anywhere.
        """
        assert self._grown is None
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

    @contextmanager
    def reading(self, tree: Tree) -> Iterator[None]:
        """The one pass in this context reads a tree: every row sees its own path.

        `branch` is set meanwhile. Follow it with `pick`, or with a rewind to before the pass.
        """
        assert self._grown is None
        self._grown, self.branch = (self.offset, tree), Branch(tree)
        try:
            for cache in self._recurrent:
                cache.branch = self.branch
            for cache in self._rows:  # this object's function, not its class's
                cache.make_mask = tree_mask(cache, self.branch)
            yield
        finally:
            self.branch = None
            for cache in self._recurrent:
                cache.branch = None
            for cache in self._rows:
                vars(cache).pop("make_mask", None)

    def pick(self, rows: tuple[int, ...]) -> None:
        """Keep one path of the tree that was just read: row 0, the anchor's, and on from there.

        RewindError, with nothing changed, if that cannot be.
        """
        start, tree = self._grown or (self.offset, None)
        if not (
            tree
            and tree.is_path(rows)
            and all(c.offset == start + tree.rows and can_pick(c) for c in self.members)
        ):
            raise RewindError(
                "the cache has read no tree with such a path.", hint="start a new conversation"
            )
        pick_all(self._recurrent, rows)
        for cache in self._rows:
            pick(cache, rows, tree.rows)
        self._grown = None

    def can_rewind(self, length: int) -> bool:
        """Whether `rewind(length)` would succeed."""
        if self._grown and length > self._grown[0]:
            return False
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
            rewind_all(self._recurrent, length)
            for cache in self._rows:
                cut(cache, length)
        else:
            taken = next(s for s in self._snapshots if s.length == length)
            for cache in self.members:
                if type(cache) in ROWS:
                    cut(cache, length)
            for cache, part in zip(self._stateful, taken.parts, strict=True):
                load(cache, part, length)
        self._snapshots = [s for s in self._snapshots if s.length <= length]
        self._grown = None

    def _can_cut(self, length: int) -> bool:
        return all(length <= cache.offset and can_cut(cache, length) for cache in self.members)
