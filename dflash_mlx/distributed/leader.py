"""Rank 0's target: does what any target does, and has the other ranks do the same.

Whatever touches the model or its caches is said before it is done. Tokens are read before a pass,
because the others need them; nothing else of the engine is different.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from weakref import finalize

import mlx.core as mx
from mlx.utils import tree_map

from dflash_mlx.engine.prefix_cache.prefix_cache import PrefixCache
from dflash_mlx.engine.prefix_cache.tree import Layers, Match, Node, RadixTree
from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.cache.target_cache import Snapshot, TargetCache
from dflash_mlx.models.memory import MemoryEstimate
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.speculation.tree import Tree

from .environment import split, wiring
from .group import Peer, World
from .model_files import facts_of
from .shards import part_loader

# What rank 0 tells the others

Order = list[Any]


class Orders:
    """Orders of one target that have not been sent; may be added to from any thread."""

    def __init__(self, peers: Sequence[Peer]):
        self._peers = peers
        self._waiting: deque[Order] = deque()
        self._numbers = count()
        self.packets = self.packet_bytes = 0  # of one peer

    def number(self) -> int:
        """The number of a new cache."""
        return next(self._numbers)

    def add(self, *order: Any) -> None:
        """An order that goes with the next pass."""
        self._waiting.append([*order])

    def send(self, *order: Any) -> None:
        """Send what waits, and this order."""
        self.add(*order)
        packet = []
        while self._waiting:
            packet.append(self._waiting.popleft())
        sizes = [peer.send(packet) for peer in self._peers]
        self.packets += 1
        self.packet_bytes += max(sizes)


def describe(number: int, part: SequenceRows, tokens: list[int]) -> Order:
    """What one sequence brings to a pass, with its cache's number."""
    parents = None if part.tree is None else [*part.tree.parents]
    return [number, tokens, parents, part.tape, part.last]


def tree_of(tokens: list[int], parents: list[int] | None) -> Tree | None:
    """The tree of a pass's rows, as far as caches and layers look at it."""
    if parents is None:
        return None
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    return Tree(tuple(tokens[1:]), tuple(parents), tuple(depths[1:]), (0.0,) * len(parents))


def begin(parts: Sequence[SequenceRows], passes: Sequence[SequencePass]) -> None:
    """Begin to compute all of a pass, the same on each rank: collectives have one order."""
    mx.async_eval([(one.logits, one.taps) for one in passes], [part.cache.state for part in parts])


class LeaderCache(TargetCache):
    """The caches of one sequence on rank 0, whose every change the other ranks' have too."""

    def __init__(self, layers: list[Any], orders: Orders, *made: Any):
        """`made` is the order that makes them, without their number."""
        super().__init__(layers)
        self._orders = orders
        self.number = orders.number()
        orders.add(*made, self.number)
        finalize(self, orders.add, "free", self.number).atexit = False

    def fork(self) -> "LeaderCache":
        """As any, on all ranks."""
        twin = super().fork()
        found = LeaderCache(twin.layers, self._orders, "fork", self.number)
        found._snapshots = twin._snapshots
        return found

    def snapshot(self) -> None:
        """As any, on all ranks."""
        self._on_all(super().snapshot, "snapshot")

    def rewind(self, length: int) -> None:
        """As any, on all ranks; what raises here is not sent."""
        self._on_all(super().rewind, "rewind", length)

    def keep_path(self, rows: tuple[int, ...]) -> None:
        """As any, on all ranks."""
        self._on_all(super().keep_path, "keep_path", rows)

    def fill(self, depth: int) -> None:
        """As any, on all ranks."""
        self._on_all(super().fill, "fill", depth)

    def _on_all(self, change: Callable[..., None], name: str, *arguments: Any) -> None:
        """Change the caches here, and say so; no interrupt comes between."""
        with mlx_thread().uninterrupted():
            change(*arguments)
            self._orders.add(name, self.number, *arguments)


class LeaderTarget(Target):
    """A target of which this rank has a part, and the others theirs."""

    orders: Orders
    room: int  # bytes that each rank has for a prefix cache

    def make_cache(self) -> TargetCache:
        """Empty caches of one sequence, on all ranks."""
        return LeaderCache(super().make_cache().layers, self.orders, "new")

    def tap(self, layer_ids: tuple[int, ...]) -> None:
        """As any, on all ranks: passes are built alike."""
        super().tap(layer_ids)
        self.orders.add("tap", layer_ids)

    def read(self, parts: Sequence[SequenceRows], *, at_once: bool = False) -> list[SequencePass]:
        """As any, on all ranks; waits for the tokens. Once it is sent, a pass is not broken off."""
        tokens: list[Any] = [part.tokens.tolist() for part in parts]
        caches: list[Any] = [part.cache for part in parts]
        with mlx_thread().uninterrupted():
            each = zip(caches, parts, tokens, strict=True)
            self.orders.send("read", at_once, [describe(c.number, p, ids) for c, p, ids in each])
            pairs = zip(parts, tokens, strict=True)
            parts = [replace(part, tokens=mx.array(ids)) for part, ids in pairs]
            found = super().read(parts, at_once=at_once)
            begin(parts, found)
        return found

    def forward(self, tokens: mx.array, cache: TargetCache | None) -> tuple[mx.array, mx.array]:
        """Whole batches are read for training, which one machine does."""
        raise DFlashError("a sharded target only answers.", hint="run this command on one machine")


def load_leader(
    world: World, name: str | Path, checkpoint: Checkpoint, eos_ids: frozenset[int]
) -> LeaderTarget:
    """Load a target on all ranks, from its checkpoint here and by its name elsewhere.

    Raises DFlashError as `Target.load`, for what cannot be sharded, and where another rank has
    other files or versions.
    """
    question = ask(world, "load", str(name), facts_of(checkpoint.path), split())
    own: DFlashError | None = None
    target = None
    try:
        read_model = partial(part_loader(split()), group=world.group)
        target = LeaderTarget.load(checkpoint, eos_ids, read_model=read_model)
    except DFlashError as error:
        own = error
    answers = [answer_of(peer, question) for peer in world.peers]
    if own is not None:
        raise own
    assert target is not None
    target.orders = Orders(world.peers)
    target.room = min(said_by(*answer)[0] for answer in answers)
    target.shared_by = f"{world.size} ranks by {split()}, {wiring()}"
    return target


def memory_of_others(world: World, name: str) -> list[tuple[str, MemoryEstimate, int]]:
    """Of each other rank its name, what its part of a target needs, and the bytes it may take.

    DFlashError where a rank does not find the target.
    """
    question = ask(world, "measure", name)
    answers = [answer_of(peer, question) for peer in world.peers]
    said = [(name, said_by(name, answer)) for name, answer in answers]
    return [(who, MemoryEstimate(one[0], one[1], 0), one[2]) for who, one in said]


def ask(world: World, kind: str, *arguments: Any) -> int:
    """Ask all other ranks: the number of the question."""
    question = next(world.questions)
    for peer in world.peers:
        peer.send([[kind, question, *arguments]])
    return question


def answer_of(peer: Peer, question: int) -> tuple[str, list[Any]]:
    """A rank's name and its answer to a question; those that nobody waits for any more are left."""
    while (found := peer.receive())[1] != question:
        pass
    return peer.name, found


def said_by(name: str, answer: list[Any]) -> list[Any]:
    """What a rank answered; DFlashError where that is an error."""
    kind, _, *said = answer
    if kind == "failed":
        raise DFlashError(f"{name}: {said[0]}", hint=said[1])
    return said


# The prefix cache of a sharded target


class LeaderTree(RadixTree):
    """Segments of rank 0's cache `number`: what is dropped here, the other ranks drop too."""

    def __init__(self, orders: Orders, number: int):
        super().__init__()
        self._orders = orders
        self._number = number

    def forget_states(self, node: Node, length: int) -> None:
        """As any, on all ranks."""
        super().forget_states(node, length)
        self._orders.add("drop_states", self._number, node.name, length)

    def _unload(self, node: Node) -> None:
        if node.target is not None:
            self._orders.add("drop", self._number, node.name)
        super()._unload(node)


class LeaderPrefixes(PrefixCache):
    """The prefix cache of rank 0; there is none on disk."""

    def __init__(self, orders: Orders):
        self._orders = orders
        self._number = orders.number()
        super().__init__()
        finalize(self, orders.add, "drop_all", self._number).atexit = False

    def clear(self) -> None:
        """As any, on all ranks."""
        self.tree = LeaderTree(self._orders, self._number)
        self._orders.add("drop_all", self._number)

    def _hold(
        self, sequence: TokenSequence, match: Match, snapshots: Mapping[int, Snapshot]
    ) -> None:
        node = match.node
        number = number_of(sequence.target_cache)
        rows = node.target
        states = set(node.states)
        between = (node.start, node.end)
        with mlx_thread().uninterrupted():
            super()._hold(sequence, match, snapshots)
            if rows is None and node.target is not None:
                self._orders.add("hold", self._number, node.name, number, *between)
            for length in set(node.states) - states:
                self._orders.add("hold_states", self._number, node.name, number, length)

    def _take(self, sequence: TokenSequence, path: list[Match], start: int, end: int) -> None:
        used = [s for s in path if s.node.start < end and s.end > start]
        parts = list[list[Any]]()
        for node, last in ((one.node, one.end) for one in used):
            between = max(start, node.start), min(end, last)
            parts.append([node.name, *(place - node.start for place in between)])
        states = used[-1].node.name if sequence.target_cache.needs_snapshots else None
        with mlx_thread().uninterrupted():
            super()._take(sequence, path, start, end)
            number = number_of(sequence.target_cache)
            self._orders.add("extend", self._number, number, parts, states, end)


def number_of(cache: Any) -> int:
    """The number by which the other ranks know rank 0's caches."""
    return cache.number


class HeldRows:
    """What a rank that is not rank 0 holds for one cache: rows by their node's name, states."""

    def __init__(self) -> None:
        self._rows: dict[str, Layers] = {}
        self._states: dict[tuple[str, int], Snapshot] = {}

    def hold(self, name: str, cache: TargetCache, start: int, end: int) -> None:
        """Hold what a cache has of the tokens from `start` to before `end`."""
        self._rows[name] = cache.copy_rows(start, end)
        mx.eval(self._rows[name])

    def hold_states(self, name: str, cache: TargetCache, length: int) -> None:
        """Hold the states after `length` tokens, if this rank's layers have any."""
        if cache.needs_snapshots:
            self._states[name, length] = cache.snapshots_held[length]

    def drop(self, name: str) -> None:
        """Drop rows."""
        del self._rows[name]

    def drop_states(self, name: str, length: int) -> None:
        """Drop states."""
        self._states.pop((name, length), None)

    def extend(
        self, cache: TargetCache, parts: list[tuple[str, int, int]], states: str | None, end: int
    ) -> None:
        """Let a cache go on by rows of these nodes, each from a place to before another."""
        rows = [cut(self._rows[name], first, last) for name, first, last in parts]
        if states is None or not cache.needs_snapshots:
            cache.extend(rows, None)
        else:
            cache.extend(rows, self._states[states, end])


def cut(layers: Layers, first: int, last: int) -> Layers:
    """Of rows some."""
    return tree_map(lambda rows: rows[..., first:last, :], layers)
