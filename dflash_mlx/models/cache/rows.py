"""Caches that keep the keys and values of all tokens, plain or quantised."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import QuantizedKVCache

from .tree_pass import TreePass, tree_mask


class Adapter:
    """The operations that speculation needs and mlx-lm's caches lack, for one class of caches.

    An adapter has no state of its own; the caches are arguments. This one calls methods of a cache
    that has them. goes_anywhere: whether a cache can rewind to any token; otherwise it needs
    snapshots. saves: whether it can take them.
    """

    goes_anywhere = False
    saves = True

    def takes_back(self, cache: Any) -> bool:
        """Whether a cache can rewind to any row of its last pass."""
        return True

    def begin(self, cache: Any, count: int) -> None:
        """Begin a pass of `count` rows."""

    def can_rewind(self, cache: Any, length: int) -> bool:
        """Whether a cache can rewind to `length` tokens, at most its offset, without a snapshot."""
        return cache.can_rewind(length)

    def rewind(self, caches: Sequence[Any], length: int) -> None:
        raise NotImplementedError

    def keep_path(self, caches: Sequence[Any], rows: tuple[int, ...], count: int) -> None:
        """Of the newest `count` rows, a tree, keep `rows`: a path from the anchor's row 0."""
        raise NotImplementedError

    def save(self, cache: Any) -> tuple[mx.array, ...]:
        """Copies of the arrays that a non-empty cache needs to continue from here."""
        return cache.save()

    def load(self, cache: Any, part: tuple[mx.array, ...], length: int) -> None:
        """Restore a cache to the arrays that `save` returned after `length` tokens."""
        cache.load(part, length)

    def begin_tree(self, cache: Any, tree: TreePass) -> None:
        raise NotImplementedError

    def end_tree(self, cache: Any) -> None:
        vars(cache).pop("make_mask", None)


class OtherAdapter(Adapter):
    """A class of caches that is not known: it goes back to before its last pass, no further.

    The state before it stays in an attribute of the cache.
    """

    saves = False

    def takes_back(self, cache: Any) -> bool:
        return False

    def begin(self, cache: Any, count: int) -> None:
        held = {name: value for name, value in vars(cache).items() if name != "before"}
        cache.before = cache.offset, tree_map(again, held)

    def can_rewind(self, cache: Any, length: int) -> bool:
        return length in (cache.offset, getattr(cache, "before", (0,))[0])

    def rewind(self, caches: Sequence[Any], length: int) -> None:
        for cache in caches:
            if length != cache.offset:
                vars(cache).update(tree_map(again, cache.before[1]))


def again(value: Any) -> Any:
    """An array as a new object, so that writes to one do not change the other."""
    return value[...] if isinstance(value, mx.array) else value


class RowsAdapter(Adapter):
    """`KVCache`, `MaskedCache` and `QuantizedKVCache`: rewinds to any token by cutting rows."""

    goes_anywhere = True

    def can_rewind(self, cache: Any, length: int) -> bool:
        return True

    def rewind(self, caches: Sequence[Any], length: int) -> None:
        """Move the offset; the rows behind it are overwritten later."""
        for cache in caches:
            cache.trim(cache.offset - length)

    def keep_path(self, caches: Sequence[Any], rows: tuple[int, ...], count: int) -> None:
        for cache in caches:
            if rows != tuple(range(len(rows))):
                compact(cache, rows, self.first_row(cache, count))
            cache.trim(count - len(rows))

    def first_row(self, cache: Any, count: int) -> int:
        """The index of the first of the newest `count` rows in the arrays."""
        return cache.offset - count

    def held(self, cache: Any, window: int | None) -> tuple[int, int | None]:
        """The rows that the next pass sees, and the window that applies to a layer's `window`."""
        return self.first_row(cache, 0), window

    def save(self, cache: Any) -> tuple[mx.array, ...]:
        """Return nothing: the rows are still there after a rewind."""
        return ()

    def load(self, cache: Any, part: tuple[mx.array, ...], length: int) -> None:
        cache.trim(cache.offset - length)

    def begin_tree(self, cache: Any, tree: TreePass) -> None:
        cache.make_mask = tree_mask(tree, partial(self.held, cache))


def compact(cache: Any, rows: tuple[int, ...], first: int) -> None:
    """Move rows, counted from the index `first` of the arrays, to that index."""
    places = mx.array([first + row for row in rows])

    def move(part: mx.array) -> mx.array:
        part[..., first : first + len(rows), :] = mx.take(part, places, axis=-2)
        return part

    cache.keys, cache.values = tree_map(move, arrays_of(cache))


def quantised_caches(layers: list[Any], groups: Sequence[int], bits: int) -> list[Any]:
    """mlx-lm's empty caches of one model, quantised where the layer has a group size."""
    pairs = zip(layers, groups, strict=True)
    return [QuantizedKVCache(group, bits) if group else layer for layer, group in pairs]


# Copying rows from one cache of a layer to another

Rows = tuple[Any, Any]  # keys and values of some tokens of a layer, as its cache holds them
STEP = 256  # rows by which a cache grows, as mlx-lm's do


def copy_rows(cache: Any, start: int, end: int) -> Rows:
    """Keys and values of the tokens from `start` to before `end`, in arrays of their own."""
    places = mx.arange(start, end)
    return tree_map(lambda part: mx.take(part, places, axis=-2), arrays_of(cache))


def append_rows(cache: Any, parts: Sequence[Rows]) -> None:
    """Append rows of successive tokens to a cache. The rows themselves stay as they are."""
    arrays = arrays_of(cache)
    offset = cache.offset
    held = [] if cache.keys is None else [tree_map(lambda part: part[..., :offset, :], arrays)]
    length = cache.offset + sum(count_rows(part) for part in parts)
    free = STEP - length % STEP

    def join(*arrays: mx.array) -> mx.array:
        shape = arrays[0].shape
        room = mx.zeros((*shape[:-2], free, shape[-1]), arrays[0].dtype)
        return mx.concatenate([*arrays, room], axis=-2)

    cache.keys, cache.values = tree_map(join, *held, *parts)
    cache.offset = length


def arrays_of(cache: Any) -> Rows:
    return cache.keys, cache.values


def count_rows(rows: Rows) -> int:
    arrays: Any = tree_flatten(rows)
    return arrays[0][1].shape[-2]


def share_rows(ours: Any, theirs: Any) -> None:
    """Let an empty cache continue from another cache's rows; later writes are separate."""
    if ours.keys is not None:
        theirs.keys, theirs.values = tree_map(lambda part: part[...], arrays_of(ours))
        theirs.offset = ours.offset


# `ChunkedKVCache`


class ChunkedAdapter(RowsAdapter):
    """Rewinds while the rows that the next token needs are still there."""

    goes_anywhere = False

    def can_rewind(self, cache: Any, length: int) -> bool:
        """Whether no row that is needed at `length` was cut from the front."""
        return length == cache.offset or cache.start_position <= max(0, length - cache.chunk_size)

    def first_row(self, cache: Any, count: int) -> int:
        """The index in the arrays, whose front rows may have been cut."""
        return cache.offset - count - cache.start_position

    def save(self, cache: Any) -> tuple[mx.array, ...]:
        keys, values = cache.keys_and_values()
        rows = mx.arange(keys.shape[2])
        return mx.take(keys, rows, axis=2), mx.take(values, rows, axis=2)

    def load(self, cache: Any, part: tuple[mx.array, ...], length: int) -> None:
        cache.keys, cache.values = part
        cache.offset = length
        cache.start_position = length - part[0].shape[2]
