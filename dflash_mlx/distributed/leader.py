"""Rank 0's target: does what any target does, and has the other ranks do the same.

Whatever touches the model or its caches is said before it is done. Tokens are read before a pass,
because the others need them; nothing else of the engine is different.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import finalize

import mlx.core as mx

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.memory import MemoryEstimate
from dflash_mlx.target.caches.target_cache import TargetCache
from dflash_mlx.target.packed import SequencePass, SequenceRows
from dflash_mlx.target.target import Target
from dflash_mlx.thread import mlx_thread

from .orders import Orders, begin, describe
from .parts import part_loader
from .peer import Peer
from .places import split, wiring
from .sameness import facts_of
from .world import World


class LeaderCache(TargetCache):
    """The caches of one sequence on rank 0, whose every change the other ranks' have too."""

    def __init__(self, layers: list[Any], orders: Orders, *made: Any):
        """`made` is the order that makes them, without their number."""
        super().__init__(layers)
        self._orders, self.number = orders, orders.number()
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
    world: World, name: str | Path, path: Path, *, trust_remote_code: bool = False
) -> LeaderTarget:
    """Load a target on all ranks, from the folder `path` here and by its name elsewhere.

    Raises DFlashError as `Target.load`, for what cannot be sharded, and where another rank has
    other files or versions.
    """
    question = ask(world, "load", str(name), facts_of(path), trust_remote_code, split())
    own: DFlashError | None = None
    target = None
    try:
        read_model = partial(part_loader(split()), group=world.group)
        target = LeaderTarget.load(path, trust_remote_code=trust_remote_code, read_model=read_model)
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
