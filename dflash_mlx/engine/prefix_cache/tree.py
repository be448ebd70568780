"""The radix tree of all cached tokens, in memory or on disk, and its eviction.

The least recently used nodes leave memory first. A node that is on disk stays known.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

from dflash_mlx.models.cache.rows import Rows
from dflash_mlx.models.cache.target_cache import Snapshot

from .disk import ROOT, Record, record_name

Layers = tuple[Rows, ...]  # rows of each layer of a model
NO_TOKENS = np.zeros(0, np.int32)


@dataclass(slots=True, eq=False)
class RecurrentState:
    """The recurrent states after `length` tokens. `snapshot` is None if they are on disk only.

    size: bytes. used: time of the last use. saved: whether they are on disk.
    """

    length: int
    size: int
    used: int
    snapshot: Snapshot | None = None
    saved: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """A node of the tree: consecutive tokens, and their rows in the caches of both models.

    start: the place in the text of the first of `tokens` [n], int32. name: of its record.
    size: bytes of the rows. target, draft: the rows of the layers with KV caches; None if they are
    on disk only, or if the drafter has not processed the tokens. saved, saved_draft: whether they
    are on disk. children: by their start and first token. used: time of the last use.
    """

    start: int
    tokens: np.ndarray
    parent: "Node | None" = None
    name: str = ROOT
    size: int = 0
    target: Layers | None = None
    draft: Layers | None = None
    saved: bool = False
    saved_draft: bool = False
    states: dict[int, RecurrentState] = field(default_factory=dict)
    children: dict[tuple[int, int], "Node"] = field(default_factory=dict)
    used: int = 0

    @property
    def end(self) -> int:
        """The length of a text that ends with this node."""
        return self.start + len(self.tokens)

    @property
    def drafted(self) -> bool:
        """Whether the drafter's rows are in memory or on disk."""
        return self.draft is not None or (self.target is None and self.saved_draft)

    @property
    def key(self) -> tuple[int, int]:
        """The key in its parent's `children`."""
        return self.start, int(self.tokens[0])

    def record(self) -> Record:
        assert self.parent is not None
        return Record(
            self.name, "rows", self.parent.name, self.start, self.tokens, self.drafted, self.size
        )

    def states_record(self, length: int) -> Record:
        name = record_name(self.name, length, NO_TOKENS)
        return Record(name, "states", self.name, length, NO_TOKENS, drafted=False)

    def cut(self, layers: Layers, start: int, end: int) -> Layers:
        """The part of this node's rows that belongs to the text's tokens [start, end)."""
        if (start, end) == (self.start, self.end):
            return layers
        first = start - self.start
        last = end - self.start
        return tree_map(lambda rows: rows[..., first:last, :], layers)


@dataclass(frozen=True, slots=True)
class Match:
    """A node that a prompt has in common with the cache, up to the prompt's token `end`."""

    node: Node
    end: int

    @property
    def goes_on(self) -> bool:
        """Whether a cached text has more tokens after this one."""
        return self.end < self.node.end or bool(self.node.children)


def walk(root: Node, prompt: np.ndarray) -> list[Match]:
    """The longest path of nodes that a prompt [n] starts with."""
    path: list[Match] = []
    position = 0
    node = root
    while position < len(prompt):
        child = node.children.get((position, int(prompt[position])))
        if child is None:
            break
        position = child.start + count_common(child.tokens, prompt[child.start :])
        path.append(Match(child, position))
        node = child
    return path


def count_common(a: np.ndarray, b: np.ndarray) -> int:
    """The length of the common prefix of two texts."""
    length = min(len(a), len(b))
    differences = np.flatnonzero(a[:length] != b[:length])
    return int(differences[0]) if differences.size else length


def count_bytes(arrays: Any) -> int:
    leaves = [leaf for _, leaf in tree_flatten(arrays)]
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, mx.array))


class RadixTree:
    """nodes: by name. nbytes: of all rows and states in memory."""

    def __init__(self) -> None:
        self.root = Node(0, NO_TOKENS)
        self.nodes: dict[str, Node] = {ROOT: self.root}
        self.nbytes = 0
        self._time = 0

    def walk(self, tokens: np.ndarray) -> list[Match]:
        """The longest path of nodes that a text starts with; marks them as used."""
        path = walk(self.root, tokens)
        self._time += 1
        for match in path:
            match.node.used = self._time
        return path

    def add(self, parent: Node, start: int, tokens: np.ndarray) -> Node:
        node = Node(start, tokens, parent, record_name(parent.name, start, tokens))
        self._put(node)
        return node

    def set_rows(self, node: Node, target: Layers, draft: Layers | None) -> None:
        self.nbytes -= count_bytes((node.target, node.draft))
        node.target = target
        node.draft = draft
        node.size = count_bytes((target, draft))
        self.nbytes += node.size

    def set_states(self, node: Node, length: int, snapshot: Snapshot) -> None:
        """Keep the states after `length` tokens, which end in the node."""
        new = RecurrentState(length, snapshot.nbytes, self._time)
        states = node.states.setdefault(length, new)
        if states.snapshot is None:
            states.snapshot = snapshot
            states.size = snapshot.nbytes
            self.nbytes += snapshot.nbytes

    def insert(self, record: Record) -> None:
        """Add a record on disk, unless its parent is unknown or its place is taken."""
        parent = self.nodes.get(record.parent)
        if parent is None:
            return
        if record.kind == "states":
            if parent.start < record.start <= parent.end:
                new = RecurrentState(record.start, record.nbytes, 0)
                parent.states.setdefault(record.start, new).saved = True
            return
        node = self.nodes.get(record.name)
        if node is None:
            inside = parent.start < record.start <= parent.end or parent.end == record.start
            if not inside or not len(record.tokens):
                return
            node = Node(record.start, record.tokens, parent, record.name, record.nbytes)
            if node.key in parent.children:
                return
            self._put(node)
        node.saved = True
        node.saved_draft = record.drafted

    def forget(self, node: Node) -> None:
        """Remove a node and all nodes below it."""
        assert node.parent is not None
        del node.parent.children[node.key]
        remaining = [node]
        while remaining:
            node = remaining.pop()
            remaining += node.children.values()
            del self.nodes[node.name]
            self._unload(node)
            for length in list(node.states):
                self.forget_states(node, length)

    def lose(self, node: Node, record: Record) -> None:
        """The file of a record is gone: remove what was only there."""
        states = node.states.get(record.start)
        if record.kind == "rows":
            node.saved = False
            node.saved_draft = False
            if node.target is None:
                self.forget(node)
        elif states is not None:
            states.saved = False
            if states.snapshot is None:
                self.forget_states(node, record.start)

    def forget_states(self, node: Node, length: int) -> None:
        states = node.states.pop(length)
        self.nbytes -= states.size if states.snapshot else 0

    def evict(self, limit: int) -> None:
        """Remove the least recently used rows and states from memory until the rest fits."""
        while self.nbytes > limit:
            candidates: list[tuple[tuple[int, int, int], Callable[[], None]]] = []
            for node in self.nodes.values():
                if node.target is not None and (node.saved or not node.children):
                    order = (node.used, 1, -node.start)
                    candidates.append((order, partial(self._drop, node)))
                for length, states in node.states.items():
                    if states.snapshot is not None:
                        order = (states.used, 0, length)
                        candidates.append((order, partial(self._drop_states, node, length)))
            if not candidates:
                return
            _, drop = min(candidates, key=lambda candidate: candidate[0])
            drop()

    def _put(self, node: Node) -> None:
        assert node.parent is not None
        node.parent.children[node.key] = node
        self.nodes[node.name] = node
        node.used = self._time

    def _unload(self, node: Node) -> None:
        self.nbytes -= count_bytes((node.target, node.draft))
        node.target = None
        node.draft = None

    def _drop(self, node: Node) -> None:
        if node.saved:
            self._unload(node)
        else:
            self.forget(node)

    def _drop_states(self, node: Node, length: int) -> None:
        states = node.states[length]
        if states.saved:
            self.nbytes -= states.size
            states.snapshot = None
            return
        self.forget_states(node, length)
        if not node.states and not node.children:  # no prompt can use its rows alone
            self._drop(node)
