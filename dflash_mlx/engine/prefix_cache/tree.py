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

from .disk import ROOT, Layers, Record, piece_name

NO_TOKENS = np.zeros(0, np.int32)
PartKey = str | int


@dataclass(slots=True, eq=False)
class Part:
    """What a node keeps of one kind. layers: None if they are on disk only; saved: they are there.

    size: bytes. used: time of the last use, of recurrent states only.
    """

    size: int = 0
    used: int = 0
    layers: Layers | None = None
    saved: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """A node of the tree, a piece of a text: consecutive tokens, and what both models made of them.

    start: the place in the text of the first of `tokens` [n], int32. parts: the "target"'s and the
    "draft"er's rows in the layers with KV caches, and by a number of tokens the recurrent states
    after it. children: by their start and first token. used: time of the last use.
    """

    start: int
    tokens: np.ndarray
    parent: "Node | None" = None
    name: str = ROOT
    parts: dict[PartKey, Part] = field(default_factory=dict)
    children: dict[tuple[int, int], "Node"] = field(default_factory=dict)
    used: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def key(self) -> tuple[int, int]:
        return self.start, int(self.tokens[0])

    @property
    def size(self) -> int:
        """Bytes of the rows, in memory or on disk."""
        return sum(part.size for key, part in self.parts.items() if isinstance(key, str))

    @property
    def in_memory(self) -> bool:
        return any(self.layers(key) is not None for key in ("target", "draft"))

    @property
    def saved(self) -> bool:
        return "target" in self.parts and self.parts["target"].saved

    def layers(self, key: PartKey) -> Layers | None:
        part = self.parts.get(key)
        return None if part is None else part.layers

    def record(self, key: PartKey) -> Record:
        assert self.parent is not None
        names = self.parent.name, self.name, self.start
        if isinstance(key, int):
            return Record(*names, key, "states")
        return Record(*names, self.end, key)

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
        node = Node(start, tokens, parent, piece_name(parent.name, start, tokens))
        node.used = self._time
        parent.children[node.key] = node
        self.nodes[node.name] = node
        return node

    def hold(self, node: Node, key: PartKey, layers: Layers) -> None:
        """Keep a part in memory, unless it is there."""
        part = node.parts.setdefault(key, Part(used=self._time))
        if part.layers is None:
            part.layers = layers
            part.size = count_bytes(layers)
            self.nbytes += part.size

    def insert(self, record: Record, tokens: np.ndarray | None) -> None:
        """Add a part on disk, unless its parent is unknown or its place is taken.

        tokens: of its node; None unless they are the target's rows.
        """
        node = self.nodes.get(record.name)
        parent = self.nodes.get(record.parent)
        if node is None and parent is not None and tokens is not None and len(tokens):
            inside = parent.start < record.start <= parent.end or parent.end == record.start
            if not inside or (record.start, int(tokens[0])) in parent.children:
                return
            node = self.add(parent, record.start, tokens)
        if node is not None:
            key = record.end if record.part == "states" else record.part
            node.parts.setdefault(key, Part(record.nbytes)).saved = True

    def forget(self, node: Node) -> None:
        """Remove a node and all nodes below it."""
        assert node.parent is not None
        del node.parent.children[node.key]
        remaining = [node]
        while remaining:
            node = remaining.pop()
            remaining += node.children.values()
            del self.nodes[node.name]
            for key in list(node.parts):
                self._unload(node, key)

    def lose(self, node: Node, key: PartKey) -> None:
        """The file of a part is gone: remove what was only there."""
        part = node.parts[key]
        part.saved = False
        if part.layers is None:
            if key == "target":
                self.forget(node)
            else:
                del node.parts[key]

    def evict(self, limit: int) -> None:
        """Remove the least recently used rows and states from memory until the rest fits."""
        while self.nbytes > limit:
            candidates: list[tuple[tuple[int, int, int], Callable[[], None]]] = []
            for node in self.nodes.values():
                if node.in_memory and (node.saved or not node.children):
                    order = (node.used, 1, -node.start)
                    candidates.append((order, partial(self._drop_rows, node)))
                for key, part in node.parts.items():
                    if isinstance(key, int) and part.layers is not None:
                        order = (part.used, 0, key)
                        candidates.append((order, partial(self._drop_states, node, key)))
            if not candidates:
                return
            _, drop = min(candidates, key=lambda candidate: candidate[0])
            drop()

    def _unload(self, node: Node, key: PartKey) -> None:
        """Drop a part from memory, and forget it if it is not on disk."""
        part = node.parts[key]
        self.nbytes -= 0 if part.layers is None else part.size
        part.layers = None
        if not part.saved:
            del node.parts[key]

    def _drop_rows(self, node: Node) -> None:
        if not node.saved:
            self.forget(node)
            return
        for key in [key for key in node.parts if isinstance(key, str)]:
            self._unload(node, key)

    def _drop_states(self, node: Node, length: int) -> None:
        self._unload(node, length)
        has_states = any(isinstance(key, int) for key in node.parts)
        if not has_states and not node.children:  # no prompt can use its rows alone
            self._drop_rows(node)
