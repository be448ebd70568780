"""Tokens that were read in a row, and what both models' caches had of them.

Segments make a tree: each goes on from a token of its parent, the last or an earlier one. So texts
that begin alike hold their beginning once. Does not know sequences, or how long a segment is kept.
"""

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

from dflash_mlx.target.caches.rows import Rows
from dflash_mlx.target.caches.target_cache import Snapshot

Layers = tuple[Rows, ...]


@dataclass(slots=True, eq=False)
class Segment:
    """The tokens [n], int32, from the text's token `start` on.

    `target` are the rows of the target's layers that keep all, `draft` those of the drafter's (None
    where it has not read them). `snapshots` are what the target's other layers need to go on after
    so many tokens of the text. `used` is the time of the last use. `children` go on from here, by
    where they start and their first token.
    """

    start: int
    tokens: np.ndarray
    parent: "Segment | None" = None
    target: Layers = ()
    draft: Layers | None = None
    snapshots: dict[int, "Kept"] = field(default_factory=dict)
    children: dict[tuple[int, int], "Segment"] = field(default_factory=dict)
    used: int = 0

    @property
    def end(self) -> int:
        """The length of a text that ends with it."""
        return self.start + len(self.tokens)

    def cut(self, layers: Layers, start: int, end: int) -> Layers:
        """Of rows of this segment those of the text's tokens from `start` to before `end`."""
        if (start, end) == (self.start, self.end):
            return layers
        first, last = start - self.start, end - self.start
        return tree_map(lambda rows: rows[..., first:last, :], layers)

    @property
    def nbytes(self) -> int:
        """Bytes of its rows; snapshots count by themselves."""
        return count_bytes((self.target, self.draft)) + self.tokens.nbytes


@dataclass(slots=True, eq=False)
class Kept:
    """A snapshot, and the time of its last use."""

    snapshot: Snapshot
    used: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """The tokens of a segment that a prompt begins with: those before the prompt's token `end`."""

    segment: Segment
    end: int


def walk(root: Segment, prompt: np.ndarray) -> list[Stretch]:
    """The segments that a prompt [n] begins with, one after another."""
    path: list[Stretch] = []
    position, segment = 0, root
    while position < len(prompt):
        child = segment.children.get((position, int(prompt[position])))
        if child is None:
            break
        position = child.start + count_common(child.tokens, prompt[child.start :])
        path.append(Stretch(child, position))
        segment = child
    return path


def count_common(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two texts begin with that are the same."""
    length = min(len(a), len(b))
    other = np.flatnonzero(a[:length] != b[:length])
    return int(other[0]) if other.size else length


def count_bytes(arrays: object) -> int:
    """Bytes of all arrays of a tree of tuples."""
    return sum(a.nbytes for _, a in tree_flatten(arrays) if isinstance(a, mx.array))
