"""One pass over a draft tree: what each row sees, its position, and the row it follows.

In such a pass every row follows its parent instead of the row before it.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import mlx.core as mx

from dflash_mlx.speculation.tree import Tree


class TreePass:
    """A tree in the form that the layers of one pass need; R rows, the anchor's included."""

    def __init__(self, tree: Tree):
        self.tree = tree
        self.parents: tuple[int, ...] = (
            -1,
            *tree.parents,
        )  # row numbers; -1: the anchor follows the tokens in the cache
        self.depths = mx.array([0, *tree.depths])  # [R]
        self.ancestors = mx.array(tree.ancestors())  # [R, R]
        self.masks: dict[tuple[int, int | None], mx.array] = {}
        self._windows: dict[int, mx.array] = {}

    def mask(self, held: int, window: int | None) -> mx.array:
        """Which of `held` earlier tokens and of the R rows each row sees: bool [R, held + R].

        With a window, only those less than `window` tokens before it, counted along its path.
        """
        if (held, window) not in self.masks:
            before = mx.ones((self.tree.rows, held), dtype=mx.bool_)
            inside = self.ancestors
            if window is not None:
                depths = self.depths[:, None]
                before = depths + mx.arange(held, 0, -1) < window
                inside = inside & (depths - self.depths < window)
            self.masks[held, window] = mx.concatenate([before, inside], axis=1)
        return self.masks[held, window]

    @cached_property
    def levels(self) -> list[tuple[int, mx.array]]:
        """For each depth the number of rows, and their parents' places in the depth above."""
        levels = []
        places = {0: 0}
        for rows in self.tree.levels():
            parents = [places[self.tree.parents[row - 1] if row else 0] for row in rows]
            levels.append((len(rows), mx.array(parents)))
            places = {row: place for place, row in enumerate(rows)}
        return levels

    @cached_property
    def by_level(self) -> mx.array:
        """The rows [R], depth by depth."""
        return mx.array([row for rows in self.tree.levels() for row in rows])

    @cached_property
    def by_row(self) -> mx.array:
        """The inverse permutation of `by_level`."""
        return mx.argsort(self.by_level)

    def split(self, x: mx.array) -> list[mx.array]:
        """Rows x [R, ...] depth by depth."""
        ends = [0]
        for count, _ in self.levels:
            ends.append(ends[-1] + count)
        return list(mx.split(x[self.by_level], ends[1:-1]))

    def join(self, parts: Sequence[mx.array]) -> mx.array:
        return mx.concatenate(list(parts))[self.by_row]

    def windows(self, size: int) -> mx.array:
        """The places [R, size] of each row's last inputs along its path, itself included.

        Places count the `size` - 1 inputs before the pass, then the rows of the pass.
        """
        if size not in self._windows:
            places = [list(range(size))]
            for row, parent in enumerate(self.tree.parents, 1):
                places.append([*places[parent][1:], size - 1 + row])
            self._windows[size] = mx.array(places)
        return self._windows[size]


def tree_mask(tree: TreePass, held: Callable[[int | None], tuple[int, int | None]]) -> Any:
    """A replacement for the `make_mask` of one cache while it reads a tree.

    `held(window)` gives the earlier rows that the cache holds, and the window that applies.
    """

    def make_mask(N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        assert tree.tree.rows == N
        return tree.mask(*held(window_size))

    return make_mask
