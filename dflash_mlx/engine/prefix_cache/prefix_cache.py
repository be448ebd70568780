"""The prefix cache of one engine: what was read of all prompts, as far as memory and disk go.

A sequence that begins a prompt takes the longest beginning that is held; one that has read
something gives it. Both copy, so nobody writes to what is held. Runs in the thread that owns MLX;
does not know text, or what is computed.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.models.cache.rows import count_rows
from dflash_mlx.models.cache.target_cache import Snapshot
from dflash_mlx.models.memory import working_set

from .disk import Disk, Entry, Tensor
from .tree import Layers, RadixTree, Segment, Stretch, count_common

# Rows and states as the arrays of a file, and back.

NAMES = {
    mx.bool_: "BOOL",
    mx.uint8: "U8",
    mx.uint32: "U32",
    mx.int32: "I32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.float32: "F32",
}


def rows_tensors(segment: Segment) -> dict[str, Tensor]:
    """A segment's tokens and rows; they share the memory of its arrays."""
    return {
        "tokens": Tensor("I32", segment.tokens),
        **tensors(segment.target, "target"),
        **tensors(segment.draft, "draft"),
    }


def states_tensors(snapshot: Snapshot) -> dict[str, Tensor]:
    """The arrays of a snapshot; they share its memory."""
    none = np.zeros(0, np.int32)
    return {"tokens": Tensor("I32", none), **tensors(snapshot.parts, "states")}


def rows_of(entry: Entry, found: Mapping[str, Tensor]) -> tuple[Layers, Layers | None]:
    """The target's rows and the drafter's. ValueError where they are not of so many tokens."""
    target = layers(found, "target")
    draft = layers(found, "draft")
    counts = {count_rows(rows) for rows in (*target, *draft)}
    if counts - {len(entry.tokens)} or bool(draft) != entry.drafted:
        raise ValueError("the rows are not those of the tokens")
    return target, draft or None


def states_of(entry: Entry, found: Mapping[str, Tensor]) -> Snapshot:
    """The snapshot. ValueError where there is none."""
    parts = layers(found, "states")
    if not parts:
        raise ValueError("there are no states")
    return Snapshot(entry.start, tuple(tuple(part) for part in parts))


def tensors(tree: Any, name: str) -> dict[str, Tensor]:
    """All arrays of a tree, by their places in it."""
    flat: Any = tree_flatten(tree, prefix=f".{name}") if tree else []
    return {place: tensor_of(array) for place, array in flat}


def layers(found: Mapping[str, Tensor], name: str) -> tuple[Any, ...]:
    """The tree of those arrays, one part a layer."""
    flat: Any = [
        (place.removeprefix(f"{name}."), array_of(tensor))
        for place, tensor in found.items()
        if place.startswith(f"{name}.")
    ]
    return tuple(tree_unflatten(flat)) if flat else ()


def tensor_of(array: mx.array) -> Tensor:
    """An array as NumPy sees it."""
    bits: Any = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return Tensor(NAMES[array.dtype], np.asarray(memoryview(bits)))


def array_of(tensor: Tensor) -> mx.array:
    """A copy of it as MLX's array."""
    found = mx.array(tensor.data)
    return found.view(mx.bfloat16) if tensor.type == "BF16" else found


BRANCH = 32  # tokens that a snapshot has to save to be taken where two prompts part
LONGEST = 2048  # tokens of a segment, which is dropped, written and read as a whole


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a sequence was given of its prompt: `taken` tokens more than it had read itself.

    `branch`: how many of the prompt's tokens another one has too, where that is more and no layer
    state is kept there; a snapshot after so many will serve the next such prompt. Else 0.
    """

    taken: int = 0
    branch: int = 0


class PrefixCache:
    """Holds at most `limit` bytes in memory, and on `disk` what that has room for; 0 is off."""

    def __init__(self, limit: int = 0, disk: Disk | None = None):
        self.limit = limit
        self.disk = disk
        self.clear()

    def clear(self) -> None:
        """Drop everything from memory."""
        self.tree = RadixTree()
        if self.disk is not None:
            self.disk.folder.look_again()

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.tree.nbytes

    def extend(self, sequence: Sequence, prompt: Many[int], *, drafting: bool) -> Reuse:
        """Let a sequence go on with what is held of its prompt, behind what it has of it itself.

        At least the prompt's last token is left to read. With `drafting` nothing is taken that the
        drafter has not read. What lies on disk is read now, unless `put` has been given it.
        """
        if not self.limit or not sequence.shares:
            return Reuse()
        start = len(sequence.tokens)
        tokens = np.array(prompt, np.int32)
        path, end = self._find(sequence, tokens, start, drafting)
        while missing := self._missing(path, start, end):
            for entry in missing:
                assert self.disk is not None
                self.put(entry, self.disk.read(entry))
            path, end = self._find(sequence, tokens, start, drafting)
        if end > start:
            self._take(sequence, path, start, end)
            self._touch(path, end)
        self.tree.evict(self.limit)
        shared = path[-1].end if path else 0
        reached = len(sequence.tokens)
        return Reuse(reached - start, shared if shared - reached >= BRANCH else 0)

    def unread(self, sequence: Sequence, prompt: Many[int], *, drafting: bool) -> list[Entry]:
        """What `extend` would read from disk; another thread may read it, for `put`."""
        if self.disk is None or not sequence.shares:
            return []
        tokens = np.array(prompt, np.int32)
        start = count_common(np.array(sequence.tokens, np.int32), tokens)
        path, end = self._find(sequence, tokens, start, drafting)
        return self._missing(path, start, end)

    def put(self, entry: Entry, arrays: Mapping[str, Tensor] | None) -> None:
        """Take what was read of an entry's file; None where it is not there any more."""
        name = entry.name if entry.kind == "rows" else entry.parent
        segment = self.tree.segments.get(name)
        if segment is None:
            return
        try:
            if arrays is None:
                raise ValueError
            if entry.kind == "rows":
                self.tree.set_rows(segment, *rows_of(entry, arrays))
            else:
                self.tree.set_states(segment, entry.start, states_of(entry, arrays))
        except ValueError:
            if arrays is not None and self.disk is not None:
                self.disk.drop(entry)  # its arrays are not those of its tokens
            self.tree.lose(segment, entry)

    def keep(self, sequence: Sequence, *, ended: bool = False) -> None:
        """Hold what a sequence has read; where it `ended`, the state after its last token too."""
        if not self.limit or not sequence.shares or not sequence.tokens:
            return
        cache = sequence.target_cache
        length = sequence.reusable
        snapshots = dict[int, Snapshot]()
        if cache.needs_snapshots:
            if ended and length == cache.offset:
                cache.snapshot()
            snapshots = {n: one for n, one in cache.snapshots_held.items() if n <= length}
            length = max(snapshots, default=0)
        if not length:
            return
        tokens = np.array(sequence.tokens[:length], np.int32)
        path = self.tree.walk(tokens)
        for stretch in path:
            self._hold(sequence, stretch, snapshots)
        while (start := path[-1].end if path else 0) < length:
            end = min(length, start + LONGEST)
            parent = path[-1].segment if path else self.tree.root
            segment = self.tree.add(parent, start, tokens[start:end])
            path.append(Stretch(segment, end))
            try:
                self._hold(sequence, path[-1], snapshots)
            except BaseException:
                self.tree.forget(segment)  # it has no rows
                raise
            self._save([segment])
            self.tree.evict(self.limit)
            if segment.name not in self.tree.segments:  # there is no room for more of this text
                return
        self._save([stretch.segment for stretch in path])
        self._touch(path, length)
        self.tree.evict(self.limit)

    def _hold(
        self, sequence: Sequence, stretch: Stretch, snapshots: Mapping[int, Snapshot]
    ) -> None:
        """Have in a segment all that a sequence with tokens of it can give."""
        segment = stretch.segment
        cache = sequence.draft_cache
        between = segment.start, segment.end
        drafts = cache is not None and cache.offset >= segment.end and not segment.drafted
        missing = segment.target is None and not segment.saved
        if stretch.end == segment.end and (drafts or missing):
            target = segment.target or sequence.target_cache.copy_rows(*between)
            draft = cache.copy_rows(*between) if drafts and cache is not None else None
            mx.eval(target, draft)
            self.tree.set_rows(segment, target, draft)
        for length, snapshot in snapshots.items():
            if segment.start < length <= stretch.end:
                self.tree.set_states(segment, length, snapshot)

    def _find(
        self, sequence: Sequence, prompt: np.ndarray, start: int, drafting: bool
    ) -> tuple[list[Stretch], int]:
        """The path of a prompt, and how many of its tokens a sequence may go on from.

        The sequence has `start` of them; what has no room in memory is left out.
        """
        if self.disk is not None:
            entries = self.disk.new_entries()
            for entry in sorted(entries, key=lambda one: (one.kind, one.start)):
                self.tree.insert(entry)
        path = self.tree.walk(prompt)
        drafting = drafting and sequence.draft_cache is not None
        size = 0
        most = 0
        for stretch in path:
            segment = stretch.segment
            size += segment.size if stretch.end > start else 0
            if size > self.limit or (
                drafting and sequence.draft_cache is not None and not segment.drafted
            ):
                break
            most = stretch.end
        end = sequence.align(min(most, len(prompt) - 1))
        if sequence.target_cache.needs_snapshots:
            each = [(n, s.end) for s in path for n in s.segment.states]
            end = max((n for n, last in each if n <= min(last, end)), default=0)
        return path, end

    def _missing(self, path: list[Stretch], start: int, end: int) -> list[Entry]:
        """What of the prompt's tokens from `start` to before `end` is on disk only."""
        found: list[Entry] = []
        if end <= start:
            return found
        for segment in (s.segment for s in path if s.segment.start < end and s.end > start):
            if segment.target is None:
                found.append(segment.entry())
            states = segment.states.get(end)
            if states is not None and states.snapshot is None:
                found.append(segment.states_entry(end))
        return found

    def _take(self, sequence: Sequence, path: list[Stretch], start: int, end: int) -> None:
        """Give a sequence that has read `start` tokens those from there to before `end`."""
        used = [s for s in path if s.segment.start < end and s.end > start]
        target = list[Layers]()
        draft = list[Layers]()
        tokens = list[int]()
        for segment, last in ((one.segment, one.end) for one in used):
            between = max(start, segment.start), min(end, last)
            assert segment.target is not None
            target.append(segment.cut(segment.target, *between))
            if segment.draft is not None:
                draft.append(segment.cut(segment.draft, *between))
            first, last = (place - segment.start for place in between)
            tokens += segment.tokens[first:last].tolist()
        snapshot = None
        if sequence.target_cache.needs_snapshots:
            states = used[-1].segment.states[end]
            states.used, snapshot = used[-1].segment.used, states.snapshot
        sequence.extend(tokens, target, draft if len(draft) == len(used) else None, snapshot)

    def _save(self, segments: Many[Segment]) -> None:
        """Have what is not on disk written, the beginning first."""
        if self.disk is None:
            return
        room = self.limit // 2  # what waits is held by the writer, in memory or not
        for segment in segments:
            assert segment.parent is not None
            if not (segment.parent.saved or segment.parent is self.tree.root):
                return
            whole = segment.saved and (segment.saved_draft or segment.draft is None)
            if segment.target is not None and not whole:
                tensors = rows_tensors(segment)
                if not self.disk.save(segment.entry(), tensors, most_waiting=room):
                    return
                segment.saved, segment.saved_draft = True, segment.draft is not None
            for length, states in segment.states.items():
                if states.snapshot is not None and not states.saved:
                    tensors = states_tensors(states.snapshot)
                    entry = segment.states_entry(length)
                    states.saved = self.disk.save(entry, tensors, most_waiting=room)

    def _touch(self, path: list[Stretch], end: int) -> None:
        """A path is used, on disk too; its beginning last, so that it is removed last."""
        if self.disk is None:
            return
        names = []
        for segment in (s.segment for s in reversed(path) if s.segment.start < end):
            if end in segment.states:
                names.append(segment.states_entry(end).file_name)
            names.append(segment.entry().file_name)
        self.disk.touch(names)


def read_ahead(
    prefixes: PrefixCache,
    call: Callable[..., Any],
    sequence: Sequence,
    prompt: Many[int],
    *,
    drafting: bool,
) -> None:
    """Read in this thread what `extend` would read from disk in the one that `call` runs in.

    So others' answers go on meanwhile.
    """
    if prefixes.disk is not None:
        for entry in call(prefixes.unread, sequence, prompt, drafting=drafting):
            call(prefixes.put, entry, prefixes.disk.read(entry))


# How much memory a prefix cache may take where nobody says.

SHARE = 1 / 4  # of what the models leave; the rest is for conversations that run, and for passes


def default_limit() -> int:
    """Bytes: a quarter of what is left of the working set once the models are loaded."""
    return max(0, int(SHARE * (working_set() - mx.get_active_memory())))
