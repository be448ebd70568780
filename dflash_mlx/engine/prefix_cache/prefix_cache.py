"""The prefix cache of one engine: prompts with the same beginning are processed only once.

A new sequence copies the rows of the longest cached prefix of its prompt. A sequence that has
processed tokens copies its rows into the cache. Runs in the thread that owns MLX.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.files.programs import held_bytes
from dflash_mlx.models.cache.rows import count_rows
from dflash_mlx.models.cache.target_cache import Snapshot
from dflash_mlx.models.memory import working_set

from .disk import Damaged, DiskCache, Layers, Record, parse_layers
from .tree import Match, Node, RadixTree, count_common

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

    def __init__(self) -> None:
        self.limit = 0
        self.disk: DiskCache | None = None
        self.clear()

    def resize(self, limit: int) -> None:
        """Change the limit, in bytes, and drop what is beyond it. Call it in MLX's thread."""
        self.limit = limit
        self.tree.evict(limit)

    def clear(self) -> None:
        """Drop everything from memory; what is on disk stays."""
        self.tree = RadixTree()
        if self.disk is not None:
            self.disk.seen = set()

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
        node = self.tree.nodes.get(record.name)
        key = record.end if record.part == "states" else record.part
        if node is None or key not in node.parts:
            return
        if content is not None:
            try:
                layers = parse_layers(content, record.file_name)
                if isinstance(key, str) and {*map(count_rows, layers)} - {len(node.tokens)}:
                    raise Damaged
                self.tree.hold(node, key, layers)
                return
            except Damaged:
                assert self.disk is not None
                self.disk.drop(record.file_name)
        self.tree.lose(node, key)

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
            snapshots = {n: one for n, one in cache.held.items() if n <= length}
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
            if node.name not in self.tree.nodes:  # the text is larger than the cache
                return
        self._save([match.node for match in path])
        self._touch(path, length)
        self.tree.evict(self.limit)

    def _hold(self, sequence: Sequence, match: Match, snapshots: Mapping[int, Snapshot]) -> None:
        node = match.node
        for key, cache in (("target", sequence.target_cache), ("draft", sequence.draft_cache)):
            if cache is None or key in node.parts or not match.end == node.end <= cache.offset:
                continue
            rows = cache.copy_rows(node.start, node.end)
            mx.eval(rows)
            self.tree.hold(node, key, rows)
        for length, snapshot in snapshots.items():
            if node.start < length <= match.end:
                self.tree.hold(node, length, snapshot.parts)

    def _find(
        self, sequence: Sequence, prompt: np.ndarray, start: int, drafting: bool
    ) -> tuple[list[Match], int]:
        """The nodes that a prompt starts with, and how many of its tokens can be reused.

        The sequence has `start` tokens itself. Rows that do not fit into memory are left out.
        """
        if self.disk is not None:
            for record, piece in self.disk.new_records():
                self.tree.insert(record, piece)
        path = self.tree.walk(prompt)
        drafting = drafting and sequence.draft_cache is not None
        size = 0
        usable = 0
        for match in path:
            node = match.node
            size += node.size if match.end > start else 0
            if size > self.limit or (drafting and "draft" not in node.parts):
                break
            usable = match.end
        end = sequence.align(min(usable, len(prompt) - 1))
        if sequence.target_cache.needs_snapshots:
            lengths = [
                length
                for match in path
                for length in match.node.parts
                if isinstance(length, int) and length <= min(match.end, end)
            ]
            end = max(lengths, default=0)
        return path, end

    def _missing(self, path: list[Match], start: int, end: int) -> list[Record]:
        """The records of the prompt's tokens [start, end) that are on disk only."""
        if end <= start:
            return []
        return [
            match.node.record(key)
            for match in matches_between(path, start, end)
            for key, part in match.node.parts.items()
            if part.layers is None and (isinstance(key, str) or key == end)
        ]

    def _take(self, sequence: Sequence, path: list[Match], start: int, end: int) -> None:
        matches = matches_between(path, start, end)
        target = list[Layers]()
        draft = list[Layers]()
        tokens = list[int]()
        for match in matches:
            node = match.node
            first = max(start, node.start)
            last = min(end, match.end)
            rows = node.layers("target")
            assert rows is not None
            target.append(node.cut(rows, first, last))
            if (rows := node.layers("draft")) is not None:
                draft.append(node.cut(rows, first, last))
            tokens += node.tokens[first - node.start : last - node.start].tolist()
        snapshot = None
        if sequence.target_cache.needs_snapshots:
            node = matches[-1].node
            states = node.parts[end]
            states.used = node.used
            assert states.layers is not None
            snapshot = Snapshot(end, tuple(map(tuple, states.layers)))
        sequence.extend(tokens, target, draft if len(draft) == len(matches) else None, snapshot)

    def _save(self, nodes: Many[Node]) -> None:
        """Write nodes to disk, each after its parent, as far as they are not there yet."""
        if self.disk is None:
            return
        room = self.limit // 2  # the writer holds pending arrays beside those of the cache
        for node in nodes:
            assert node.parent is not None
            for key, part in node.parts.items():
                if not (node.parent.saved or node.parent is self.tree.root):
                    return
                if part.layers is not None and not part.saved:
                    record = node.record(key)
                    if not self.disk.save(record, part.layers, node.tokens, max_pending_bytes=room):
                        return
                    part.saved = True

    def _touch(self, path: list[Match], end: int) -> None:
        if self.disk is not None:
            for match in matches_between(path, 0, end):
                for key in match.node.parts:
                    self.disk.touch(match.node.record(key))


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
