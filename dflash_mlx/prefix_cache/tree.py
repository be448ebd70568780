"""The tree of all segments that are held, in memory or on disk, and what is dropped of it.

What was not used for the longest time leaves memory first: where a file has it, it stays known;
else it is gone. Knows sizes and times; does not know sequences, or how files are read.
"""

from collections.abc import Callable

import numpy as np

from dflash_mlx.target.caches.target_cache import Snapshot

from .entry import ROOT, Entry, name_of
from .segment import NO_TOKENS, Layers, Segment, States, Stretch, count_bytes, walk


class Tree:
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
        segment.target, segment.draft = target, draft
        segment.size = count_bytes((target, draft))
        self.nbytes += segment.size

    def set_states(self, segment: Segment, length: int, snapshot: Snapshot) -> None:
        """Hold the states after `length` tokens, which end in a segment, in memory."""
        found = segment.states.setdefault(length, States(length, snapshot.nbytes, self._time))
        if found.snapshot is None:
            found.snapshot, found.size = snapshot, snapshot.nbytes
            self.nbytes += snapshot.nbytes

    def insert(self, entry: Entry) -> None:
        """Know of a file. Nothing happens where its parent is not known, or its place is taken."""
        known, parent = self.segments.get(entry.name), self.segments.get(entry.parent)
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
        known.saved, known.saved_draft = True, entry.drafted

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
