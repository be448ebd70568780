"""The prefix cache of one engine: prompts with the same beginning are processed only once.

A new sequence copies the rows of the longest cached prefix of its prompt. A sequence that has
processed tokens copies its rows into the cache. Runs in the thread that owns MLX.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.files.programs import held_bytes
from dflash_mlx.models.cache.rows import count_rows
from dflash_mlx.models.cache.target_cache import Snapshot
from dflash_mlx.models.memory import working_set

from .disk import Damaged, DiskCache, Record, parse_arrays
from .tree import NO_TOKENS, Layers, Match, Node, RadixTree, count_common

# Rows and states as the arrays of a file, and back


def rows_arrays(node: Node) -> dict[str, mx.array]:
    """The arrays of a node's file: its tokens, and the rows of both models."""
    return {
        "tokens": mx.array(node.tokens),
        **named_arrays(node.target, "target"),
        **named_arrays(node.draft, "draft"),
    }


def rows_of(record: Record, arrays: Mapping[str, mx.array]) -> tuple[Layers, Layers | None]:
    """The rows of the target and of the drafter, which may keep none.

    Raises ValueError if they do not belong to the record's tokens.
    """
    target = unnamed_arrays(arrays, "target")
    draft = unnamed_arrays(arrays, "draft")
    counts = {count_rows(rows) for rows in (*target, *draft)}
    if counts - {len(record.tokens)} or (draft and not record.drafted):
        raise ValueError("the rows are not those of the tokens")
    return target, draft if record.drafted else None


def snapshot_of(record: Record, arrays: Mapping[str, mx.array]) -> Snapshot:
    """Raises ValueError if there are no states."""
    parts = unnamed_arrays(arrays, "states")
    if not parts:
        raise ValueError("there are no states")
    return Snapshot(record.start, tuple(tuple(part) for part in parts))


def named_arrays(tree: Any, prefix: str) -> dict[str, mx.array]:
    """The arrays of a tree by their places in it, computed and contiguous.

    Another thread writes them, and only this thread may compute.
    """
    flat: Any = tree_flatten(tree, prefix=f".{prefix}") if tree else []
    arrays = {name: mx.contiguous(array) for name, array in flat}
    mx.eval(arrays)
    return arrays


def unnamed_arrays(arrays: Mapping[str, mx.array], prefix: str) -> tuple[Any, ...]:
    """The tree of those arrays, one part per layer."""
    flat: Any = [
        (name.removeprefix(f"{prefix}."), array)
        for name, array in arrays.items()
        if name.startswith(f"{prefix}.")
    ]
    return tuple(tree_unflatten(flat)) if flat else ()


MIN_BRANCH = 32  # tokens that a snapshot where two prompts part must save
MAX_NODE = 2048  # tokens of a node, which is evicted, written and read as a whole


@dataclass(frozen=True, slots=True)
class Reuse:
    """How much of a prompt was cached.

    taken: tokens copied from the cache. branch: the length of the prefix shared with a cached
    prompt, if it is longer but has no recurrent state; a snapshot there helps the next such
    prompt. Otherwise 0. differs_at: the length of that shared prefix, if the cached prompt goes on
    with other tokens; None if the prompt continues it, or shares nothing.
    """

    taken: int = 0
    branch: int = 0
    differs_at: int | None = None


class PrefixCache:
    """At most `limit` bytes in memory, and more on `disk`. A limit of 0 turns the cache off."""

    def __init__(self, limit: int = 0, disk: DiskCache | None = None):
        self.limit = limit
        self.disk = disk
        self.clear()

    def resize(self, limit: int) -> None:
        """Change the limit, in bytes, and drop what is beyond it. Call it in MLX's thread."""
        self.limit = limit
        self.tree.evict(limit)

    def clear(self) -> None:
        """Drop everything from memory; records on disk stay."""
        self.tree = RadixTree()
        if self.disk is not None:
            self.disk.forget_seen()

    @property
    def nbytes(self) -> int:
        return self.tree.nbytes

    def extend(self, sequence: Sequence, prompt: Many[int], *, drafting: bool) -> Reuse:
        """Extend a sequence by the cached rows of its prompt, after those it has itself.

        At least the prompt's last token stays uncomputed. If `drafting`, only rows are taken that
        the drafter has too. Records on disk are read now, unless `put` got them before.
        """
        if not self.limit or not sequence.use_prefix_cache:
            return Reuse()
        start = len(sequence.tokens)
        tokens = np.array(prompt, np.int32)
        path, end = self._find(sequence, tokens, start, drafting)
        while missing := self._missing(path, start, end):
            for record in missing:
                assert self.disk is not None
                self.put(record, self.disk.read(record))
            path, end = self._find(sequence, tokens, start, drafting)
        if end > start:
            self._take(sequence, path, start, end)
            self._touch(path, end)
        self.tree.evict(self.limit)
        shared = path[-1].end if path else 0
        reached = len(sequence.tokens)
        differs = bool(path) and shared < len(tokens) and path[-1].goes_on
        return Reuse(
            taken=reached - start,
            branch=shared if shared - reached >= MIN_BRANCH else 0,
            differs_at=shared if differs else None,
        )

    def records_to_read(
        self, sequence: Sequence, prompt: Many[int], *, drafting: bool
    ) -> list[Record]:
        """The records that `extend` would read; another thread can read them for `put`."""
        if self.disk is None or not sequence.use_prefix_cache:
            return []
        tokens = np.array(prompt, np.int32)
        start = count_common(np.array(sequence.tokens, np.int32), tokens)
        path, end = self._find(sequence, tokens, start, drafting)
        return self._missing(path, start, end)

    def put(self, record: Record, content: bytes | None) -> None:
        """Add a record by the content of its file, which is None if the file is gone."""
        name = record.name if record.kind == "rows" else record.parent
        node = self.tree.nodes.get(name)
        if node is None:
            return
        if content is None:
            self.tree.lose(node, record)
            return
        try:
            _, arrays = parse_arrays(BytesIO(content))
            mx.eval(arrays)
            if record.kind == "rows":
                self.tree.set_rows(node, *rows_of(record, arrays))
            else:
                self.tree.set_states(node, record.start, snapshot_of(record, arrays))
        except (Damaged, ValueError):
            if self.disk is not None:
                self.disk.drop(record.file_name)
            self.tree.lose(node, record)

    def keep(self, sequence: Sequence, *, ended: bool = False) -> None:
        """Cache the rows of a sequence; if it `ended`, also the state after its last token."""
        if not self.limit or not sequence.use_prefix_cache or not sequence.tokens:
            return
        cache = sequence.target_cache
        length = sequence.reusable
        snapshots = dict[int, Snapshot]()
        if cache.needs_snapshots:
            if ended and length == cache.offset:
                cache.snapshot()
            held = cache.snapshots_held
            snapshots = {count: held[count] for count in held if count <= length}
            length = max(snapshots, default=0)
        if not length:
            return
        tokens = np.array(sequence.tokens[:length], np.int32)
        path = self.tree.walk(tokens)
        for match in path:
            self._hold(sequence, match, snapshots)
        while (start := path[-1].end if path else 0) < length:
            end = min(length, start + MAX_NODE)
            parent = path[-1].node if path else self.tree.root
            node = self.tree.add(parent, start, tokens[start:end])
            path.append(Match(node, end))
            try:
                self._hold(sequence, path[-1], snapshots)
            except BaseException:
                self.tree.forget(node)  # it has no rows
                raise
            self._save([node])
            self.tree.evict(self.limit)
            if (
                node.name not in self.tree.nodes
            ):  # evicted at once: the text is larger than the cache
                return
        self._save([match.node for match in path])
        self._touch(path, length)
        self.tree.evict(self.limit)

    def _hold(self, sequence: Sequence, match: Match, snapshots: Mapping[int, Snapshot]) -> None:
        """Copy a sequence's rows and snapshots into a node that lacks them."""
        node = match.node
        draft_cache = sequence.draft_cache
        adds_drafts = (
            draft_cache is not None and draft_cache.offset >= node.end and not node.drafted
        )
        adds_rows = node.target is None and not node.saved
        if match.end == node.end and (adds_drafts or adds_rows):
            target = node.target or sequence.target_cache.copy_rows(node.start, node.end)
            draft = None
            if adds_drafts and draft_cache is not None:
                draft = draft_cache.copy_rows(node.start, node.end)
            mx.eval(target, draft)
            self.tree.set_rows(node, target, draft)
        for length, snapshot in snapshots.items():
            if node.start < length <= match.end:
                self.tree.set_states(node, length, snapshot)

    def _find(
        self, sequence: Sequence, prompt: np.ndarray, start: int, drafting: bool
    ) -> tuple[list[Match], int]:
        """The nodes that a prompt starts with, and how many of its tokens can be reused.

        The sequence has `start` tokens itself. Rows that do not fit into memory are left out.
        """
        if self.disk is not None:
            records = self.disk.new_records()
            for record in sorted(records, key=lambda record: (record.kind, record.start)):
                self.tree.insert(record)
        path = self.tree.walk(prompt)
        drafting = drafting and sequence.draft_cache is not None
        size = 0
        usable = 0
        for match in path:
            node = match.node
            size += node.size if match.end > start else 0
            if size > self.limit or (drafting and not node.drafted):
                break
            usable = match.end
        end = sequence.align(min(usable, len(prompt) - 1))
        if sequence.target_cache.needs_snapshots:
            lengths = [
                length
                for match in path
                for length in match.node.states
                if length <= min(match.end, end)
            ]
            end = max(lengths, default=0)
        return path, end

    def _missing(self, path: list[Match], start: int, end: int) -> list[Record]:
        """The records of the prompt's tokens [start, end) that are on disk only."""
        records: list[Record] = []
        if end <= start:
            return records
        for match in matches_between(path, start, end):
            node = match.node
            if node.target is None:
                records.append(node.record())
            states = node.states.get(end)
            if states is not None and states.snapshot is None:
                records.append(node.states_record(end))
        return records

    def _take(self, sequence: Sequence, path: list[Match], start: int, end: int) -> None:
        """Extend a sequence of `start` tokens by the rows of the tokens [start, end)."""
        matches = matches_between(path, start, end)
        target = list[Layers]()
        draft = list[Layers]()
        tokens = list[int]()
        for match in matches:
            node = match.node
            first = max(start, node.start)
            last = min(end, match.end)
            assert node.target is not None
            target.append(node.cut(node.target, first, last))
            if node.draft is not None:
                draft.append(node.cut(node.draft, first, last))
            tokens += node.tokens[first - node.start : last - node.start].tolist()
        snapshot = None
        if sequence.target_cache.needs_snapshots:
            node = matches[-1].node
            states = node.states[end]
            states.used = node.used
            snapshot = states.snapshot
        sequence.extend(tokens, target, draft if len(draft) == len(matches) else None, snapshot)

    def _save(self, nodes: Many[Node]) -> None:
        """Write nodes to disk, each after its parent, as far as they are not there yet."""
        if self.disk is None:
            return
        room = self.limit // 2  # the writer holds pending arrays beside those of the cache
        for node in nodes:
            assert node.parent is not None
            if not (node.parent.saved or node.parent is self.tree.root):
                return
            saved = node.saved and (node.saved_draft or node.draft is None)
            if node.target is not None and not saved:
                arrays = rows_arrays(node)
                if not self.disk.save(node.record(), arrays, max_pending_bytes=room):
                    return
                node.saved = True
                node.saved_draft = node.draft is not None
            for length, states in node.states.items():
                if states.snapshot is not None and not states.saved:
                    parts = named_arrays(states.snapshot.parts, "states")
                    arrays = {"tokens": mx.array(NO_TOKENS), **parts}
                    record = node.states_record(length)
                    states.saved = self.disk.save(record, arrays, max_pending_bytes=room)

    def _touch(self, path: list[Match], end: int) -> None:
        """Mark the files of a path as used, its beginning last: that is evicted last."""
        if self.disk is None:
            return
        names = []
        for match in reversed(matches_between(path, 0, end)):
            node = match.node
            if end in node.states:
                names.append(node.states_record(end).file_name)
            names.append(node.record().file_name)
        self.disk.touch(names)


def matches_between(path: list[Match], start: int, end: int) -> list[Match]:
    """The matches with tokens of the prompt in [start, end)."""
    return [match for match in path if match.node.start < end and match.end > start]


def read_ahead(
    prefixes: PrefixCache,
    call: Callable[..., Any],
    sequence: Sequence,
    prompt: Many[int],
    *,
    drafting: bool,
) -> None:
    """Read the records that `extend` needs in this thread, while others' answers continue.

    `call` runs a function in the thread that owns MLX.
    """
    if prefixes.disk is not None:
        for record in call(prefixes.records_to_read, sequence, prompt, drafting=drafting):
            call(prefixes.put, record, prefixes.disk.read(record))


SHARE = 1 / 4  # of the memory beside the models; the rest is for running answers


def default_limit() -> int:
    """Bytes of a prefix cache by default: a quarter of the working set that all models leave."""
    return max(0, int(SHARE * (working_set() - held_bytes() - mx.get_active_memory())))
