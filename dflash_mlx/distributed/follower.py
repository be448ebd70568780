"""A rank that is not rank 0: does to its part of the target what rank 0 says, and prints nothing.

Makes the same passes over the same tokens and changes its caches in the same way. Never decides.
"""

import signal
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from dflash_mlx.cpu.modules import on_cpu
from dflash_mlx.engine.prefix_cache.prefix_cache import default_limit
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.cache.target_cache import TargetCache
from dflash_mlx.models.memory import estimate_memory, working_set
from dflash_mlx.models.packed import SequenceRows
from dflash_mlx.models.target import Target

from .group import END, World, say_and_exit
from .leader import HeldRows, Order, begin, tree_of
from .model_files import Facts, check_same, facts_of, own_folder
from .shards import part_loader

LONG = 256  # rows of a pass after which unused memory goes back, as rank 0's does


class Follower:
    """A rank's part of a target, and its caches by their numbers."""

    def __init__(self, world: World):
        self._world = world
        (self._leader,) = world.peers
        self._target: Target | None = None
        self._caches: dict[int, TargetCache] = {}
        self._held = defaultdict[int, HeldRows](HeldRows)

    def run(self) -> None:
        """Follow until rank 0 ends."""
        while (packet := self._leader.receive()) != END:
            for order in packet:
                self.do(order)

    def do(self, order: Order) -> None:
        """What one order says; a method of this class or of a cache has its name."""
        match order:
            case ["measure", question, name]:
                self._leader.send(told(question, lambda: self.measure(name)))
            case ["load", question, name, facts, split]:
                self._leader.send(told(question, lambda: self.load(name, facts, split)))
            case ["tap", layer_ids]:
                self.target.tap(tuple(layer_ids))
            case ["new", number]:
                self._caches[number] = self.target.make_cache()
            case ["fork", number, twin]:
                self._caches[twin] = self._caches[number].fork()
            case ["free", number]:
                self._caches.pop(number, None)
            case ["read", at_once, parts]:
                self.read(parts, at_once=at_once)
            case ["snapshot", number]:
                self._caches[number].snapshot()
            case ["rewind", number, length]:
                self._caches[number].rewind(length)
            case ["keep_path", number, rows]:
                self._caches[number].keep_path(tuple(rows))
            case ["fill", number, depth]:
                self._caches[number].fill(depth)
            case ["hold", held, name, number, start, end]:
                self._held[held].hold(name, self._caches[number], start, end)
            case ["hold_states", held, name, number, length]:
                self._held[held].hold_states(name, self._caches[number], length)
            case ["extend", held, number, parts, states, end]:
                self._held[held].extend(self._caches[number], parts, states, end)
            case ["drop", held, name]:
                self._held[held].drop(name)
            case ["drop_states", held, name, length]:
                self._held[held].drop_states(name, length)
            case ["drop_all", held]:
                self._held.pop(held, None)
            case _:
                raise AssertionError(order)

    @property
    def target(self) -> Target:
        """The target that was loaded last."""
        assert self._target is not None
        return self._target

    def measure(self, name: str) -> list[int]:
        """Bytes of the weights and of the caches of this rank's part, and what models may take."""
        item = 4 if on_cpu() else 2
        ranks = self._world.size
        needed = estimate_memory(own_folder(name), item_bytes=item, ranks=ranks)
        return [needed.weights, needed.caches, working_set()]

    def load(self, name: str, facts: Facts, split: str) -> list[int]:
        """Load this rank's part of a target: the bytes that a prefix cache may take then."""
        self._target = None
        self._caches = {}
        self._held.clear()
        mx.clear_cache()
        path = own_folder(name)
        check_same(facts_of(path), facts)
        read_model = partial(part_loader(split), group=self._world.group)
        no_ends = frozenset[int]()  # rank 0 decides where an answer ends
        self._target = Target.load(Checkpoint.read(path), no_ends, read_model=read_model)
        return [default_limit()]

    def read(self, parts: list[Order], *, at_once: bool) -> None:
        """One pass, as rank 0 makes it."""
        rows = [
            SequenceRows(self._caches[number], mx.array(tokens), tree_of(tokens, parents), *how)
            for number, tokens, parents, *how in parts
        ]
        found = self.target.read(rows, at_once=at_once)
        begin(rows, found)
        mx.eval([one.logits for one in found])
        if sum(len(tokens) for _, tokens, *_ in parts) >= LONG:
            mx.clear_cache()


def told(question: int, work: Callable[[], list[int]]) -> list[Any]:
    """What to answer a question of rank 0: what some work gave, or its error."""
    try:
        return ["done", question, *work()]
    except DFlashError as error:
        return ["failed", question, error.message, error.hint]


def follow(world: World) -> None:
    """Follow rank 0 until it ends, and then end this process; Ctrl-C is rank 0's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (leader,) = world.peers
    try:
        mlx_thread().call(Follower(world).run)
    except Exception as error:
        if not leader.ended:
            sentence = (
                f"rank {world.rank} cannot go on ({type(error).__name__}: {first_line(error)})."
            )
            leader.send(["lost", sentence])
            say_and_exit(sentence)
    sys.exit(0)
