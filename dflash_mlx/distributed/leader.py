"""Rank 0's part of a target; the other ranks do the same by remote calls.

Every change of the model or its caches is sent to the other ranks. Before a pass, rank 0 waits for
the tokens, because the others need them; otherwise the engine works as with any target.
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

from dflash_mlx.engine.prefix_cache.prefix_cache import PrefixCache, matches_between
from dflash_mlx.engine.prefix_cache.tree import Layers, Match, Node, RadixTree
from dflash_mlx.engine.sequence import Sequence as TokenSequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.cache.target_cache import Snapshot, TargetCache
from dflash_mlx.models.memory import MemoryEstimate
from dflash_mlx.models.packed import SequencePass, SequenceRows
from dflash_mlx.models.target import Target
from dflash_mlx.speculation.tree import Tree

from .environment import split, wiring
from .group import ControlChannel, World
from .kernels import Enabled, common, enabled_in_layers, with_layers
from .model_files import facts_of
from .shards import part_loader

# Remote calls from rank 0 to the others

RemoteCall = list[Any]


class CallQueue:
    """The remote calls of one target that are not sent yet. Any thread may add calls."""

    def __init__(self, channels: Sequence[ControlChannel]):
        self._channels = channels
        self._waiting: deque[RemoteCall] = deque()
        self._numbers = count()
        self.packets = 0  # of one channel
        self.packet_bytes = 0

    def number(self) -> int:
        """The number of a new cache."""
        return next(self._numbers)

    def add(self, *call: Any) -> None:
        """Add a call, which is sent with the next pass."""
        self._waiting.append([*call])

    def send(self, *call: Any) -> None:
        """Send all waiting calls, and this one."""
        self.add(*call)
        packet = []
        while self._waiting:
            packet.append(self._waiting.popleft())
        sizes = [channel.send(packet) for channel in self._channels]
        self.packets += 1
        self.packet_bytes += max(sizes)


def describe(number: int, part: SequenceRows, tokens: list[int]) -> RemoteCall:
    """The arguments of a pass for one sequence, with its cache's number."""
    parents = None if part.tree is None else [*part.tree.parents]
    return [number, tokens, parents, part.tape, part.last]


def tree_of(tokens: list[int], parents: list[int] | None) -> Tree | None:
    """The tree of a pass's rows, as far as caches and layers need it."""
    if parents is None:
        return None
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    return Tree(tuple(tokens[1:]), tuple(parents), tuple(depths[1:]), (0.0,) * len(parents))


def begin(parts: Sequence[SequenceRows], passes: Sequence[SequencePass]) -> None:
    """Start to compute a pass. All ranks evaluate the same arrays, so collectives stay in order."""
    outputs = [(output.logits, output.taps) for output in passes]
    mx.async_eval(outputs, [part.cache.state for part in parts])


class LeaderCache(TargetCache):
    """The caches of one sequence on rank 0; each change is made on all ranks."""

    def __init__(self, layers: list[Any], calls: CallQueue, *make_call: Any):
        """make_call: the remote call that makes the caches, without their number."""
        super().__init__(layers)
        self._calls = calls
        self.number = calls.number()
        calls.add(*make_call, self.number)
        finalize(self, calls.add, "free", self.number).atexit = False

    def fork(self) -> "LeaderCache":
        twin = super().fork()
        leader_twin = LeaderCache(twin.layers, self._calls, "fork", self.number)
        leader_twin._snapshots = twin._snapshots
        return leader_twin

    def snapshot(self) -> None:
        self._on_all(super().snapshot, "snapshot")

    def rewind(self, length: int) -> None:
        """A rewind that raises here is not sent."""
        self._on_all(super().rewind, "rewind", length)

    def keep_path(self, rows: tuple[int, ...]) -> None:
        self._on_all(super().keep_path, "keep_path", rows)

    def fill(self, depth: int) -> None:
        self._on_all(super().fill, "fill", depth)

    def _on_all(self, change: Callable[..., None], name: str, *arguments: Any) -> None:
        """Change the caches here and on the other ranks, without an interrupt in between."""
        with mlx_thread().uninterrupted():
            change(*arguments)
            self._calls.add(name, self.number, *arguments)


class LeaderTarget(Target):
    """A target that is split over the ranks, on rank 0.

    room: bytes that each rank has for a prefix cache. allowed: the kernels that all other ranks
    have proven; None until they have loaded the target.
    """

    world: World
    calls: CallQueue
    room: int
    allowed: Enabled | None = None
    reasons: Mapping[str, str] = {}  # why other kernels are not allowed

    @Target.kernels.setter
    def kernels(self, kernels: Kernels) -> None:
        """Enable the kernels of the layers that are allowed, on all ranks from the next pass on."""
        if self.allowed is not None:
            enabled = common(enabled_in_layers(kernels), self.allowed)
            kernels = with_layers(kernels, enabled, self.reasons)
            self.calls.add("kernels", kernels.references, enabled)
        Target.kernels.__set__(self, kernels)

    def ask_for_kernels(self, kernels: Kernels, rows: int) -> None:
        """Allow those of rank 0's kernels that every other rank has proven on its machine.

        rows: of a verify pass. Raises DFlashError if a rank cannot check its kernels.
        """
        allowed = enabled_in_layers(kernels)
        reasons = dict[str, str]()
        question = ask(self.world, "prove", rows, allowed)
        for name, answer in [receive_reply(other, question) for other in self.world.channels]:
            proven, off = check_reply(name, answer)
            allowed = common(allowed, proven)
            reasons |= {operation: f"{name}: {reason}" for operation, reason in off.items()}
        self.allowed = allowed
        self.reasons = reasons

    def make_cache(self) -> TargetCache:
        return LeaderCache(super().make_cache().layers, self.calls, "new")

    def tap(self, layer_ids: tuple[int, ...]) -> None:
        super().tap(layer_ids)
        self.calls.add("tap", layer_ids)

    def read(self, parts: Sequence[SequenceRows], *, at_once: bool = False) -> list[SequencePass]:
        """Waits for the tokens. A pass that is sent is not interrupted."""
        tokens: list[Any] = [part.tokens.tolist() for part in parts]
        caches: list[Any] = [part.cache for part in parts]
        with mlx_thread().uninterrupted():
            rows = zip(caches, parts, tokens, strict=True)
            arguments = [describe(cache.number, part, ids) for cache, part, ids in rows]
            self.calls.send("read", at_once, arguments)
            pairs = zip(parts, tokens, strict=True)
            parts = [replace(part, tokens=mx.array(ids)) for part, ids in pairs]
            passes = super().read(parts, at_once=at_once)
            begin(parts, passes)
        return passes

    def on_failure(self, error: BaseException) -> None:
        """Raise RankLost for an error of MLX: the others are in the pass, and wait for its sums."""
        if isinstance(error, Exception) and not isinstance(error, DFlashError):
            self.world.explain(error)
            self.world.lose(f"rank 0 cannot go on ({type(error).__name__}: {first_line(error)}).")
            assert self.world.lost is not None
            raise self.world.lost from error

    def forward(self, tokens: mx.array, cache: TargetCache | None) -> tuple[mx.array, mx.array]:
        raise DFlashError(
            "a model on several machines only generates answers.",
            hint="run this command on one machine",
        )


def load_leader(
    world: World, name: str | Path, checkpoint: Checkpoint, eos_ids: frozenset[int]
) -> LeaderTarget:
    """Load a target on all ranks: here from its checkpoint, on the others by its name.

    Raises DFlashError as `Target.load`, for a target that cannot be split, and if another rank has
    different files or versions.
    """
    question = ask(world, "load", str(name), facts_of(checkpoint.path), split())
    own_error: DFlashError | None = None
    target = None
    try:
        read_model = partial(part_loader(split()), group=world.group)
        target = LeaderTarget.load(checkpoint, eos_ids, read_model=read_model)
    except DFlashError as error:
        own_error = error
    answers = [receive_reply(channel, question) for channel in world.channels]
    if own_error is not None:
        raise own_error
    assert target is not None
    target.world = world
    target.calls = CallQueue(world.channels)
    target.room = min(check_reply(*answer)[0] for answer in answers)
    target.allowed = {}
    target.kernels = target.kernels  # the other ranks' DFLASH_KERNELS may have other values
    target.shared_by = f"{world.size} ranks by {split()}, {wiring()}"
    return target


def memory_of_others(world: World, name: str) -> list[tuple[str, MemoryEstimate, int]]:
    """For each other rank its name, the memory that its part needs, and its limit in bytes.

    Raises DFlashError if a rank does not have the target.
    """
    question = ask(world, "measure", name)
    answers = [receive_reply(channel, question) for channel in world.channels]
    memory = []
    for rank_name, answer in answers:
        weights, caches, limit = check_reply(rank_name, answer)
        memory.append((rank_name, MemoryEstimate(weights, caches, 0), limit))
    return memory


def ask(world: World, kind: str, *arguments: Any) -> int:
    """Send a question to all other ranks, and return its number."""
    question = next(world.questions)
    for channel in world.channels:
        channel.send([[kind, question, *arguments]])
    return question


def receive_reply(channel: ControlChannel, question: int) -> tuple[str, list[Any]]:
    """A rank's name and its reply to a question. Replies to earlier questions are dropped."""
    while (reply := channel.receive())[1] != question:
        pass
    return channel.name, reply


def check_reply(name: str, answer: list[Any]) -> list[Any]:
    """The result in a rank's reply. Raises DFlashError if the reply is an error."""
    kind, _, *result = answer
    if kind == "failed":
        raise DFlashError(f"{name}: {result[0]}", hint=result[1])
    return result


# The prefix cache of a sharded target


class LeaderTree(RadixTree):
    """The nodes of rank 0's prefix cache; nodes that are dropped here are dropped on all ranks."""

    def __init__(self, calls: CallQueue, number: int):
        super().__init__()
        self._calls = calls
        self._number = number

    def forget_states(self, node: Node, length: int) -> None:
        super().forget_states(node, length)
        self._calls.add("drop_states", self._number, node.name, length)

    def _unload(self, node: Node) -> None:
        if node.target is not None:
            self._calls.add("drop", self._number, node.name)
        super()._unload(node)


class LeaderPrefixCache(PrefixCache):
    """The prefix cache of rank 0, without a disk cache."""

    def __init__(self, calls: CallQueue):
        self._calls = calls
        self._number = calls.number()
        super().__init__()
        finalize(self, calls.add, "drop_all", self._number).atexit = False

    def clear(self) -> None:
        self.tree = LeaderTree(self._calls, self._number)
        self._calls.add("drop_all", self._number)

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
                self._calls.add("hold", self._number, node.name, number, *between)
            for length in set(node.states) - states:
                self._calls.add("hold_states", self._number, node.name, number, length)

    def _take(self, sequence: TokenSequence, path: list[Match], start: int, end: int) -> None:
        matches = matches_between(path, start, end)
        parts = list[list[Any]]()
        for match in matches:
            node = match.node
            first = max(start, node.start) - node.start
            last = min(end, match.end) - node.start
            parts.append([node.name, first, last])
        states = matches[-1].node.name if sequence.target_cache.needs_snapshots else None
        with mlx_thread().uninterrupted():
            super()._take(sequence, path, start, end)
            number = number_of(sequence.target_cache)
            self._calls.add("extend", self._number, number, parts, states, end)


def number_of(cache: Any) -> int:
    """The number of rank 0's caches in remote calls."""
    return cache.number


class CachedRows:
    """A follower's part of a prefix cache: rows and recurrent states by the node's name."""

    def __init__(self) -> None:
        self._rows: dict[str, Layers] = {}
        self._states: dict[tuple[str, int], Snapshot] = {}

    def hold(self, name: str, cache: TargetCache, start: int, end: int) -> None:
        """Keep a cache's rows of the tokens [start, end)."""
        self._rows[name] = cache.copy_rows(start, end)
        mx.eval(self._rows[name])

    def hold_states(self, name: str, cache: TargetCache, length: int) -> None:
        """Keep the states after `length` tokens, if this rank's layers have any."""
        if cache.needs_snapshots:
            self._states[name, length] = cache.snapshots_held[length]

    def drop(self, name: str) -> None:
        del self._rows[name]

    def drop_states(self, name: str, length: int) -> None:
        self._states.pop((name, length), None)

    def extend(
        self, cache: TargetCache, parts: list[tuple[str, int, int]], states: str | None, end: int
    ) -> None:
        """Append rows to a cache. parts: nodes with the range of their rows, [first, last)."""
        rows = [cut(self._rows[name], first, last) for name, first, last in parts]
        if states is None or not cache.needs_snapshots:
            cache.extend(rows, None)
        else:
            cache.extend(rows, self._states[states, end])


def cut(layers: Layers, first: int, last: int) -> Layers:
    return tree_map(lambda rows: rows[..., first:last, :], layers)
