"""`ChunkedKVCache`: keys and values whose front is cut to `chunk_size` rows before a pass."""

from typing import Any

import mlx.core as mx

from dflash_mlx.target.tree_pass import TreePass, tree_mask

from .rows import AllRows, zero_rows


class ChunkedRows(AllRows):
    """Goes back as far as the rows that the next token needs are still there."""

    goes_anywhere = False

    def can_rewind(self, cache: Any, length: int) -> bool:
        """Whether no row that is needed at `length` was cut from the front."""
        return length == cache.offset or cache.start_position <= max(0, length - cache.chunk_size)

    def first_row(self, cache: Any, count: int) -> int:
        """Counted from the first row that is still there."""
        return cache.offset - count - cache.start_position

    def save(self, cache: Any) -> tuple[mx.array, ...]:
        """All its rows."""
        keys, values = cache.keys_and_values()
        rows = mx.arange(keys.shape[2])
        return mx.take(keys, rows, axis=2), mx.take(values, rows, axis=2)

    def load(self, cache: Any, part: tuple[mx.array, ...], length: int) -> None:
        """Hold these rows as those before token `length`."""
        cache.keys, cache.values = part
        cache.offset, cache.start_position = length, length - part[0].shape[2]

    def fill(self, cache: Any, depth: int) -> None:
        """At most `chunk_size` rows of zeros."""
        self.load(cache, zero_rows(cache, min(depth, cache.chunk_size)), depth)

    def begin_tree(self, cache: Any, tree: TreePass) -> None:
        """As for all rows, less those that were cut from the front."""

        def held(window: int | None) -> tuple[int, int | None]:
            return cache.offset - cache.start_position, window

        cache.make_mask = tree_mask(tree, held)
