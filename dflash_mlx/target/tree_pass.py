"""One pass over a tree: what each row sees, where it stands, and which row it goes on from.

Every row of such a pass follows its parent instead of the row before it. Knows the tree, and what
a cache or a layer may ask of it; does not know models, or what becomes of the rows.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import ChunkedKVCache, RotatingKVCache
from mlx_lm.models.rope_utils import Llama3RoPE, ProportionalRoPE, SuScaledRoPE, YarnRoPE

from dflash_mlx.cpu.modules import SharedRope
from dflash_mlx.speculation.tree import Tree

# They take an offset for each element of a batch; others read their offset as a number.
BATCHED = (nn.RoPE, Llama3RoPE, ProportionalRoPE, SharedRope, SuScaledRoPE, YarnRoPE)


class Branch:
    """A tree as the layers of one pass need it, R rows with the anchor; made once a pass."""

    def __init__(self, tree: Tree):
        self.tree = tree
        self.parents: tuple[int, ...] = (
            -1,
            *tree.parents,
        )  # rows; the anchor follows what was read before
        self.depths = mx.array([0, *tree.depths])  # [R]
        self.ancestors = mx.array(tree.ancestors())  # [R, R]
        self._masks: dict[tuple[int, int | None], mx.array] = {}
        self._windows: dict[int, mx.array] = {}

    def mask(self, held: int, window: int | None) -> mx.array:
        """What each row sees of `held` earlier tokens and of the rows; bool [R, held + R].

        With a window only what is less than `window` tokens before it, counted along its path.
        """
        if (held, window) not in self._masks:
            before, inside = mx.ones((self.tree.rows, held), dtype=mx.bool_), self.ancestors
            if window is not None:
                depths = self.depths[:, None]
                before = depths + mx.arange(held, 0, -1) < window
                inside = inside & (depths - self.depths < window)
            self._masks[held, window] = mx.concatenate([before, inside], axis=1)
        return self._masks[held, window]

    @cached_property
    def levels(self) -> list[tuple[int, mx.array]]:
        """For each depth the number of rows, and their parents' places among those one up."""
        found, places = [], {0: 0}
        for rows in self.tree.levels():
            parents = [places[self.tree.parents[row - 1] if row else 0] for row in rows]
            found.append((len(rows), mx.array(parents)))
            places = {row: place for place, row in enumerate(rows)}
        return found

    @cached_property
    def by_level(self) -> mx.array:
        """The rows [R], depth by depth."""
        return mx.array([row for rows in self.tree.levels() for row in rows])

    @cached_property
    def by_row(self) -> mx.array:
        """The way back from `by_level`."""
        return mx.argsort(self.by_level)

    def split(self, x: mx.array) -> list[mx.array]:
        """Rows x [R, ...] depth by depth."""
        ends = [0]
        for count, _ in self.levels:
            ends.append(ends[-1] + count)
        return list(mx.split(x[self.by_level], ends[1:-1]))

    def join(self, parts: Sequence[mx.array]) -> mx.array:
        """Undo `split`."""
        return mx.concatenate(list(parts))[self.by_row]

    def windows(self, size: int) -> mx.array:
        """The places [R, size] of each row's last inputs along its path, itself included.

        They are places among `size` - 1 inputs before the pass and then its rows.
        """
        if size not in self._windows:
            found = [list(range(size))]
            for row, parent in enumerate(self.tree.parents, 1):
                found.append([*found[parent][1:], size - 1 + row])
            self._windows[size] = mx.array(found)
        return self._windows[size]


def tree_mask(cache: Any, branch: Branch) -> Any:
    """What stands in for the `make_mask` of one cache while it reads a tree."""

    def make_mask(N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        assert branch.tree.rows == N
        held, window = cache.offset, window_size
        if isinstance(cache, RotatingKVCache):
            held, window = min(held, cache.max_size - 1), window_size or cache.max_size
        elif isinstance(cache, ChunkedKVCache):
            held -= cache.start_position
        return branch.mask(held, window)

    return make_mask


class TreeRope(nn.Module):
    """A rotary embedding of our instance that turns the rows of a tree by their depth.

    `reading` gives the branch that is read at the moment, or None: then nothing is different.
    """

    def __init__(self, rope: nn.Module, reading: Any):
        super().__init__()
        self.rope = rope
        self._reading = reading

    def __call__(self, x: mx.array, offset: Any = 0, **options: Any) -> mx.array:
        """Rotate x [1, heads, R, d] whose row of depth 0 stands at position `offset`."""
        rope, branch = self.rope, self._reading()
        if branch is None:
            return rope(x, offset=offset, **options)
        assert x.shape[0] == 1
        assert x.shape[2] == branch.tree.rows
        if isinstance(rope, SharedRope) and rope.shares(x, offset):
            return rope(x, offset=offset, depths=branch.depths)
        rows = x.transpose(2, 1, 0, 3)  # [R, heads, 1, d]: a row an element of a batch
        if isinstance(rope, BATCHED):
            rows = rope(rows, offset=offset + branch.depths, **options)
        else:
            parts = enumerate(branch.split(rows))
            rows = branch.join([rope(part, offset=offset + n, **options) for n, part in parts])
        return rows.transpose(2, 1, 0, 3)


def plant(model: nn.Module, reading: Any) -> None:
    """Put a `TreeRope` around every rotary embedding of one model instance."""
    wrapped: dict[int, TreeRope] = {}
    for module in model.modules():
        if isinstance(module, (TreeRope, SharedRope)):
            continue
        for name, child in module.children().items():
            if isinstance(child, (*BATCHED, nn.Module) if name == "rope" else BATCHED):
                module[name] = wrapped.setdefault(id(child), TreeRope(child, reading))
