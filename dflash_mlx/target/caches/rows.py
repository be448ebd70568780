"""Caches that keep the keys and values of all tokens, plain or quantised."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from dflash_mlx.target.tree_pass import TreePass, tree_mask


class AllRows:
    """`KVCache`, `MaskedCache` and `QuantizedKVCache`: rows are cut, at any token."""

    goes_anywhere = True

    def can_rewind(self, cache: Any, length: int) -> bool:
        """Always."""
        return True

    def rewind(self, caches: Sequence[Any], length: int) -> None:
        """Move the offset; the rows behind it are overwritten later."""
        for cache in caches:
            cache.trim(cache.offset - length)

    def can_keep_path(self, cache: Any) -> bool:
        """Always."""
        return True

    def keep_path(self, caches: Sequence[Any], rows: tuple[int, ...], count: int) -> None:
        """Move the path's rows together, and cut behind them."""
        for cache in caches:
            self._keep_rows(cache, rows, count)

    def _keep_rows(self, cache: Any, rows: tuple[int, ...], count: int) -> None:
        first = self.first_row(cache, count)
        if rows != tuple(range(len(rows))):
            places = mx.array([first + row for row in rows])

            def compact(part: mx.array) -> mx.array:
                kept = mx.take(part, places, axis=-2)
                part[..., first : first + len(rows), :] = kept
                return part

            cache.keys, cache.values = tree_map(compact, (cache.keys, cache.values))
        cache.trim(count - len(rows))

    def first_row(self, cache: Any, count: int) -> int:
        """Where in the arrays the newest `count` rows begin."""
        return cache.offset - count

    def save(self, cache: Any) -> tuple[mx.array, ...]:
        """Not needed: the rows are there after a rewind."""
        return ()

    def load(self, cache: Any, part: tuple[mx.array, ...], length: int) -> None:
        """Go back to `length` tokens."""
        cache.trim(cache.offset - length)

    def fill(self, cache: Any, depth: int) -> None:
        """`depth` rows of zeros."""
        cache.keys, cache.values = zero_rows(cache, depth)
        cache.offset = depth

    def begin_tree(self, cache: Any, tree: TreePass) -> None:
        """This cache, not its class, makes the tree's mask."""
        cache.make_mask = tree_mask(tree, lambda window: (cache.offset, window))

    def end_tree(self, cache: Any) -> None:
        """The class makes the masks again."""
        vars(cache).pop("make_mask", None)


def zero_rows(cache: Any, count: int) -> tuple[Any, Any]:
    """Evaluated keys and values of zeros, `count` rows in the shapes and types of a cache's."""

    def rows(array: mx.array) -> mx.array:
        return mx.zeros((*array.shape[:2], count, array.shape[3]), dtype=array.dtype)

    found = tree_map(rows, cache.keys), tree_map(rows, cache.values)
    mx.eval(found)
    return found
