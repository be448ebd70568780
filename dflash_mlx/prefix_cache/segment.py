"""Tokens that were read in a row, and what both models' caches had of them.

Segments make a tree: each goes on from a token of its parent, the last or an earlier one. So texts
that begin alike hold their beginning once. What a segment holds may lie on disk only. Does not know
sequences, or how long anything is kept.
"""

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

from dflash_mlx.kv_rows import Rows
from dflash_mlx.target.caches.target_cache import Snapshot

from .entry import ROOT, Entry, name_of

Layers = tuple[Rows, ...]
NO_TOKENS = np.zeros(0, np.int32)


@dataclass(slots=True, eq=False)
class States:
    """What layers without rows need to go on after `length` tokens; None where it is on disk only.

    `used` is the time of the last use, `saved` whether a file has it.
    """

    length: int
    size: int
    used: int
    snapshot: Snapshot | None = None
    saved: bool = False


@dataclass(slots=True, eq=False)
class Segment:
    """The tokens [n], int32, from the text's token `start` on; `name` is that of its entry.

    `target` are the rows of the target's layers that keep all, None where they are on disk only;
    `draft` those of the drafter's layers, None too where it has not read these tokens. `saved`,
    `saved_draft`: whether a file has the one and the other. `children` go on from here, by where
    they start and their first token.
    """

    start: int
    tokens: np.ndarray
    parent: "Segment | None" = None
    name: str = ROOT
    size: int = 0
    target: Layers | None = None
    draft: Layers | None = None
    saved: bool = False
    saved_draft: bool = False
    states: dict[int, States] = field(default_factory=dict)
    children: dict[tuple[int, int], "Segment"] = field(default_factory=dict)
    used: int = 0

    @property
    def end(self) -> int:
        """The length of a text that ends with it."""
        return self.start + len(self.tokens)

    @property
    def drafted(self) -> bool:
        """Whether the drafter's rows are held."""
        return self.draft is not None or (self.target is None and self.saved_draft)

    @property
    def key(self) -> tuple[int, int]:
        """Its place among its parent's children."""
        return self.start, int(self.tokens[0])

    def entry(self) -> Entry:
        """What its file is of."""
        assert self.parent is not None
        return Entry(
            self.name, "rows", self.parent.name, self.start, self.tokens, self.drafted, self.size
        )

    def states_entry(self, length: int) -> Entry:
        """What the file of its states after `length` tokens is of."""
        name = name_of(self.name, length, NO_TOKENS)
        return Entry(name, "states", self.name, length, NO_TOKENS, drafted=False)

    def cut(self, layers: Layers, start: int, end: int) -> Layers:
        """Of rows of this segment those of the text's tokens from `start` to before `end`."""
        if (start, end) == (self.start, self.end):
            return layers
        first, last = start - self.start, end - self.start
        return tree_map(lambda rows: rows[..., first:last, :], layers)


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


def count_bytes(arrays: Any) -> int:
    """Bytes of all arrays of a tree of tuples and lists."""
    return sum(a.nbytes for _, a in tree_flatten(arrays) if isinstance(a, mx.array))
