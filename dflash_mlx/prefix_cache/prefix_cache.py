"""The prefix cache of one engine: what was read of all prompts, as far as memory goes.

A sequence that begins a prompt takes the longest beginning that is held; one that has read
something gives it. Both copy, so nobody writes to what is held. What was not used for the longest
time is dropped first. Runs in the thread that owns MLX; does not know text, or what is computed.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from dflash_mlx.sequence import Sequence
from dflash_mlx.target.caches.target_cache import Snapshot

from .segment import Kept, Layers, Segment, Stretch, count_bytes, walk

BRANCH = 32  # tokens that a snapshot has to save to be taken where two prompts part


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a sequence was given of its prompt: `taken` tokens more than it had read itself.

    `branch`: how many of the prompt's tokens another one has too, where that is more and no layer
    state is kept there; a snapshot after so many will serve the next such prompt. Else 0.
    """

    taken: int = 0
    branch: int = 0


class PrefixCache:
    """Holds at most `limit` bytes; 0 switches it off."""

    def __init__(self, limit: int = 0):
        self.limit = limit
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self.root = Segment(0, np.zeros(0, np.int32))
        self.segments: set[Segment] = set()
        self.nbytes = 0
        self._time = 0

    def extend(self, sequence: Sequence, prompt: Many[int], *, drafting: bool) -> Reuse:
        """Let a sequence go on with what is held of its prompt, behind what it has of it itself.

        At least the prompt's last token is left to read. With `drafting` nothing is taken that the
        drafter has not read.
        """
        if not self.limit or not sequence.shares:
            return Reuse()
        path = walk(self.root, np.array(prompt, np.int32))
        self._touch(path)
        shared, start = path[-1].end if path else 0, len(sequence.tokens)
        if drafting and sequence.draft_cache is not None:
            path = drafted(path)
        most = min(len(prompt) - 1, path[-1].end if path else 0)
        end, kept = sequence.align(most), None
        if sequence.target_cache.needs_snapshots:
            end, kept = self._last_snapshot(path, end)
        if end > start:
            take(sequence, path, start, end, None if kept is None else kept.snapshot)
        reached = len(sequence.tokens)
        return Reuse(reached - start, shared if shared - reached >= BRANCH else 0)

    def keep(self, sequence: Sequence, *, ended: bool = False) -> None:
        """Hold what a sequence has read; where it `ended`, the state after its last token too."""
        if not self.limit or not sequence.shares or not sequence.tokens:
            return
        cache, length = sequence.target_cache, sequence.reusable
        snapshots = dict[int, Snapshot]()
        if cache.needs_snapshots:
            if ended and length == cache.offset:
                cache.snapshot()
            snapshots = {n: one for n, one in cache.snapshots_held.items() if n <= length}
            length = max(snapshots, default=0)
        if not length:
            return
        tokens = np.array(sequence.tokens[:length], np.int32)
        path = walk(self.root, tokens)
        covered = path[-1].end if path else 0
        if covered < length:
            parent = path[-1].segment if path else self.root
            path.append(Stretch(self._add(sequence, parent, covered, tokens[covered:]), length))
        self._touch(path)
        for stretch in path:
            self._keep_drafted(sequence, stretch)
            self._keep_snapshots(stretch, snapshots)
        self._evict()

    def _add(self, sequence: Sequence, parent: Segment, start: int, tokens: np.ndarray) -> Segment:
        end = start + len(tokens)
        found = Segment(start, tokens, parent, sequence.target_cache.copy_rows(start, end))
        mx.eval(found.target)
        parent.children[start, int(tokens[0])] = found
        self.segments.add(found)
        self.nbytes += found.nbytes
        return found

    def _keep_drafted(self, sequence: Sequence, stretch: Stretch) -> None:
        """Add the drafter's rows to a segment that was read without it."""
        segment, cache = stretch.segment, sequence.draft_cache
        whole = stretch.end == segment.end
        if segment.draft is not None or cache is None or not whole or cache.offset < segment.end:
            return
        segment.draft = cache.copy_rows(segment.start, segment.end)
        mx.eval(segment.draft)
        self.nbytes += count_bytes(segment.draft)

    def _keep_snapshots(self, stretch: Stretch, snapshots: dict[int, Snapshot]) -> None:
        segment = stretch.segment
        for length, snapshot in snapshots.items():
            if segment.start < length <= stretch.end and length not in segment.snapshots:
                segment.snapshots[length] = Kept(snapshot, self._time)
                self.nbytes += snapshot.nbytes

    def _last_snapshot(self, path: list[Stretch], most: int) -> tuple[int, Kept | None]:
        """The last place in a path, up to `most` tokens, with a snapshot; it is used now."""
        for stretch in reversed(path):
            lengths = [n for n in stretch.segment.snapshots if n <= min(stretch.end, most)]
            if lengths:
                kept = stretch.segment.snapshots[max(lengths)]
                kept.used = self._time
                return max(lengths), kept
        return 0, None

    def _touch(self, path: list[Stretch]) -> None:
        self._time += 1
        for stretch in path:
            stretch.segment.used = self._time

    def _evict(self) -> None:
        """Drop snapshots, and segments from which none goes on, until the rest fits."""
        while self.nbytes > self.limit:
            leaf = min((s for s in self.segments if not s.children), key=lambda s: s.used)
            kept = [(one.used, n, s) for s in self.segments for n, one in s.snapshots.items()]
            used, length, segment = min(kept, key=lambda k: k[0], default=(leaf.used + 1, 0, leaf))
            if used <= leaf.used:
                self.nbytes -= segment.snapshots.pop(length).snapshot.nbytes
                self._drop_useless(segment)
            else:
                self._drop(leaf)

    def _drop_useless(self, segment: Segment) -> None:
        """Drop a segment that lost its last snapshot, unless others go on from it."""
        if not segment.snapshots and not segment.children:
            self._drop(segment)

    def _drop(self, segment: Segment) -> None:
        assert segment.parent is not None
        assert not segment.children
        del segment.parent.children[segment.start, int(segment.tokens[0])]
        self.segments.remove(segment)
        self.nbytes -= segment.nbytes + sum(k.snapshot.nbytes for k in segment.snapshots.values())


def drafted(path: list[Stretch]) -> list[Stretch]:
    """The stretches up to the first that the drafter has not read."""
    missing = (number for number, one in enumerate(path) if one.segment.draft is None)
    return path[: next(missing, len(path))]


def take(
    sequence: Sequence, path: list[Stretch], start: int, end: int, snapshot: Snapshot | None
) -> None:
    """Give a sequence that has read `start` tokens those from there to before `end`."""
    used = [s for s in path if s.segment.start < end and s.end > start]
    target, draft, tokens = list[Layers](), list[Layers](), list[int]()
    for segment, last in ((one.segment, one.end) for one in used):
        between = max(start, segment.start), min(end, last)
        target.append(segment.cut(segment.target, *between))
        if segment.draft is not None:
            draft.append(segment.cut(segment.draft, *between))
        first, last = (place - segment.start for place in between)
        tokens += segment.tokens[first:last].tolist()
    sequence.extend(tokens, target, draft if len(draft) == len(used) else None, snapshot)
