"""The tree of all segments that are held, in memory or on disk, and what is dropped of it.

What was not used for the longest time leaves memory first: where a file has it, it stays known;
else it is gone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

from dflash_mlx.models.cache.rows import Rows
from dflash_mlx.models.cache.target_cache import Snapshot

from .disk import ROOT, Entry, name_of

# Tokens that were read in a row, and what both models' caches had of them.

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
        first = start - self.start
        last = end - self.start
        return tree_map(lambda rows: rows[..., first:last, :], layers)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The tokens of a segment that a prompt begins with: those before the prompt's token `end`."""

    segment: Segment
    end: int


def walk(root: Segment, prompt: np.ndarray) -> list[Stretch]:
    """The segments that a prompt [n] begins with, one after another."""
    path: list[Stretch] = []
    position = 0
    segment = root
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


class RadixTree:
    """Segments by name; `nbytes` are those in memory."""

    def __init__(self) -> None:
        self.root = Segment(0, NO_TOKENS)
        self.segments: dict[str, Segment] = {ROOT: self.root}
        self.nbytes = 0
        self._time = 0

    def walk(self, tokens: np.ndarray) -> list[Stretch]:
        """The segments that a text begins with; they are used now."""
        path = walk(self.root, tokens)
        self._time += 1
        for stretch in path:
            stretch.segment.used = self._time
        return path

    def add(self, parent: Segment, start: int, tokens: np.ndarray) -> Segment:
        """A new segment that goes on from a token of another; it has nothing yet."""
        found = Segment(start, tokens, parent, name_of(parent.name, start, tokens))
        self._put(found)
        return found

    def set_rows(self, segment: Segment, target: Layers, draft: Layers | None) -> None:
        """Hold a segment's rows in memory."""
        self.nbytes -= count_bytes((segment.target, segment.draft))
        segment.target = target
        segment.draft = draft
        segment.size = count_bytes((target, draft))
        self.nbytes += segment.size

    def set_states(self, segment: Segment, length: int, snapshot: Snapshot) -> None:
        """Hold the states after `length` tokens, which end in a segment, in memory."""
        found = segment.states.setdefault(length, States(length, snapshot.nbytes, self._time))
        if found.snapshot is None:
            found.snapshot = snapshot
            found.size = snapshot.nbytes
            self.nbytes += snapshot.nbytes

    def insert(self, entry: Entry) -> None:
        """Know of a file. Nothing happens where its parent is not known, or its place is taken."""
        known = self.segments.get(entry.name)
        parent = self.segments.get(entry.parent)
        if parent is None:
            return
        if entry.kind == "states":
            if parent.start < entry.start <= parent.end:
                found = States(entry.start, entry.nbytes, 0)
                parent.states.setdefault(entry.start, found).saved = True
            return
        if known is None:
            inside = parent.start < entry.start <= parent.end or parent.end == entry.start
            if not inside or not len(entry.tokens):
                return
            known = Segment(entry.start, entry.tokens, parent, entry.name, entry.nbytes)
            if known.key in parent.children:
                return
            self._put(known)
        known.saved = True
        known.saved_draft = entry.drafted

    def forget(self, segment: Segment) -> None:
        """Drop a segment and all that go on from it."""
        assert segment.parent is not None
        del segment.parent.children[segment.key]
        left = [segment]
        while left:
            one = left.pop()
            left += one.children.values()
            del self.segments[one.name]
            self._unload(one)
            for length in list(one.states):
                self.forget_states(one, length)

    def lose(self, segment: Segment, entry: Entry) -> None:
        """The file of an entry is not there any more: what was only there is dropped."""
        states = segment.states.get(entry.start)
        if entry.kind == "rows":
            segment.saved = segment.saved_draft = False
            if segment.target is None:
                self.forget(segment)
        elif states is not None:
            states.saved = False
            if states.snapshot is None:
                self.forget_states(segment, entry.start)

    def forget_states(self, segment: Segment, length: int) -> None:
        """Drop states."""
        found = segment.states.pop(length)
        self.nbytes -= found.size if found.snapshot else 0

    def evict(self, limit: int) -> None:
        """Let what was not used for the longest time leave memory, until the rest fits."""
        while self.nbytes > limit:
            leaves: list[tuple[tuple[int, int, int], Callable[[], None]]] = []
            for one in self.segments.values():
                if one.target is not None and (one.saved or not one.children):
                    leaves.append(((one.used, 1, -one.start), lambda s=one: self._drop(s)))
                for n, states in one.states.items():
                    if states.snapshot is not None:
                        leave = (states.used, 0, n)
                        leaves.append((leave, lambda s=one, n=n: self._drop_states(s, n)))
            if not leaves:
                return
            min(leaves, key=lambda leaf: leaf[0])[1]()

    def _put(self, segment: Segment) -> None:
        assert segment.parent is not None
        segment.parent.children[segment.key] = segment
        self.segments[segment.name] = segment
        segment.used = self._time

    def _unload(self, segment: Segment) -> None:
        self.nbytes -= count_bytes((segment.target, segment.draft))
        segment.target = segment.draft = None

    def _drop(self, segment: Segment) -> None:
        if segment.saved:
            self._unload(segment)
        else:
            self.forget(segment)

    def _drop_states(self, segment: Segment, length: int) -> None:
        states = segment.states[length]
        if states.saved:
            self.nbytes -= states.size
            states.snapshot = None
            return
        self.forget_states(segment, length)
        if not segment.states and not segment.children:  # nothing can go on from it
            self._drop(segment)
