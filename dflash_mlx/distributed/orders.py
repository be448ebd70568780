"""What rank 0 tells the others: everything that it does to a target and its caches, in its order.

Cache operations wait for the next pass and travel with it, so a round has one packet. Knows how
orders look; the leader says them, a follower does them.
"""

from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any

import mlx.core as mx

from dflash_mlx.speculation.tree import Tree
from dflash_mlx.target.packed import SequencePass, SequenceRows

from .peer import Peer

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
        self.packets, self.packet_bytes = self.packets + 1, self.packet_bytes + max(sizes)


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
