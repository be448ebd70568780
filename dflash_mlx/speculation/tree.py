"""Draft trees: the likeliest continuations of an anchor, up to a number of nodes.

DDTree (arXiv 2604.12989) takes a drafter's block as a distribution over texts. Its likeliest
prefixes form a tree, and no other tree of that size has a longer expected match. A best-first heap
gives them one by one. Everything is computed on the host.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heappushpop
from math import inf
from typing import Protocol

import numpy as np

Ranked = tuple[list[float], list[int], list[int]]  # log-probabilities, falling; tokens; cases
Entry = tuple[float, tuple[int, ...], int, Ranked]  # -log q, ranks, parent's row, its children


@dataclass(frozen=True)
class Tree:
    """Draft tokens as nodes, parents before children.

    Row 0 of a verify pass is the anchor, which is not a node; rows 1, 2, ... are the nodes.
    tokens: the drafts. parents: the rows that they follow. depths: their distances from the
    anchor. logs: the drafter's log-probabilities of the whole paths to them.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    logs: tuple[float, ...]

    @property
    def rows(self) -> int:
        """Rows of a verify pass: the anchor and the nodes."""
        return len(self.tokens) + 1

    def ancestors(self) -> np.ndarray:
        """Which rows each row sees: itself and those on its path; bool [rows, rows]."""
        bits = [1]
        for row, parent in enumerate(self.parents, 1):
            bits.append(bits[parent] | 1 << row)
        width = (self.rows + 7) // 8
        packed = np.frombuffer(b"".join(b.to_bytes(width, "little") for b in bits), np.uint8)
        seen = np.unpackbits(packed.reshape(-1, width), 1, self.rows, bitorder="little")
        return seen.view(np.bool_)

    def paths(self) -> list[tuple[int, ...]]:
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append((*paths[parent], token))
        return paths

    def levels(self) -> list[list[int]]:
        """The rows of depth 0, 1, ..."""
        levels: list[list[int]] = [[0]]
        for row, depth in enumerate(self.depths, 1):
            if depth == len(levels):
                levels.append([])
            levels[depth].append(row)
        return levels

    def walk(self, chosen: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Follow the target's choices from the anchor: the accepted rows, and the bonus token.

        The walk ends where no child has the chosen token; that choice is the bonus token.
        """
        children = dict(
            zip(zip(self.parents, self.tokens, strict=True), range(1, self.rows), strict=True)
        )
        row = 0
        path = []
        while (child := children.get((row, chosen[row]))) is not None:
            path.append(child)
            row = child
        return tuple(path), chosen[row]

    def likeliest_after(self, row: int) -> tuple[int, ...]:
        """The likeliest path that follows a row: its first child, that one's first child, ..."""
        tokens = []
        for child, parent in enumerate(self.parents, 1):
            if parent == row:
                tokens.append(self.tokens[child - 1])
                row = child
        return tuple(tokens)

    def path_to(self, row: int) -> tuple[int, ...]:
        path = [row]
        while path[-1]:
            path.append(self.parents[path[-1] - 1])
        return tuple(reversed(path))

    def is_path(self, rows: tuple[int, ...]) -> bool:
        """Whether the rows begin at the anchor and each is a child of the row before."""
        return bool(rows) and 0 <= rows[-1] < self.rows and self.path_to(rows[-1]) == rows


class Rankings(Protocol):
    """The candidate tokens for each position of a block, the likeliest first."""

    @property
    def positions(self) -> int:
        """γ, the number of positions."""
        ...

    def after(self, position: int, case: int) -> Ranked:
        """The tokens of a position, given the case of the token before it."""
        ...


class Candidates:
    """The drafter's tokens for every position of a block, the likeliest first.

    tokens: [γ, k], ascending. scores: [γ, c, k]; minus `totals` [γ, c] they are log-probabilities.
    If c > 1, case i means that candidate i is the token before; at position 0 all cases are the
    same.
    """

    def __init__(self, tokens: np.ndarray, scores: np.ndarray, totals: np.ndarray):
        self.positions, self._cases = scores.shape[:2]
        order = np.argsort(-scores, axis=-1, kind="stable")
        self._logs = np.minimum(np.take_along_axis(scores, order, -1) - totals[..., None], 0.0)
        self._order = order
        self._tokens = tokens
        self._known: dict[tuple[int, int], Ranked] = {}

    def after(self, position: int, case: int) -> Ranked:
        """The tokens of a position; among equally likely ones, the smaller id comes first."""
        ranked = self._known.get((position, case))
        if ranked is None:
            order = self._order[position, case]
            logs = self._logs[position, case].tolist()
            while logs and not logs[-1] > -inf:  # drop tokens that the drafter never drafts
                logs.pop()
            cases = order.tolist() if self._cases > 1 else [0] * len(logs)
            ranked = (logs, self._tokens[position][order].tolist(), cases)
            self._known[position, case] = ranked
        return ranked


def best_first(
    candidates: Rankings,
    budget: int,
    *,
    chain_seed: bool = False,
    stops: frozenset[int] = frozenset(),
    narrow: Callable[[tuple[int, ...], Ranked], Ranked] | None = None,
) -> Tree:
    """The `budget` likeliest prefixes (fewer where there are no more), the likeliest first.

    This is algorithm 1 of the paper; ties go to the lexicographically smaller ranks. With
    `chain_seed` the greedy chain comes first, and the likeliest prefixes fill the rest. No node
    follows a token of `stops`, because the answer ends there. `narrow` returns the candidates that
    a grammar allows after a path of drafts, the likeliest first.
    """
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    costs = [0.0]
    positions = candidates.positions
    paths: list[tuple[int, ...]] = [()]
    heap: list[Entry] = []

    def child(row: int, ranks: tuple[int, ...], case: int) -> Entry | None:
        if len(ranks) == positions or (row and tokens[row - 1] in stops):
            return None
        ranked = candidates.after(len(ranks), case)
        if narrow is not None:
            ranked = narrow(paths[row], ranked)
        return (costs[row] - ranked[0][0], (*ranks, 0), row, ranked) if ranked[0] else None

    def take(entry: Entry) -> Entry | None:
        """Make an entry a node and put its next sibling on the heap; return its child."""
        cost, ranks, parent, ranked = entry
        logs, ids, cases = ranked
        rank = ranks[-1]
        tokens.append(ids[rank])
        parents.append(parent)
        depths.append(len(ranks))
        costs.append(cost)
        paths.append((*paths[parent], ids[rank]))
        if rank + 1 < len(logs):
            sibling = costs[parent] - logs[rank + 1]
            heappush(heap, (sibling, (*ranks[:-1], rank + 1), parent, ranked))
        return child(len(tokens), ranks, cases[rank])

    entry = child(0, (), 0)
    while chain_seed and entry and len(tokens) < budget:
        entry = take(entry)
    while len(tokens) < budget and (entry or heap):
        entry = take(heappushpop(heap, entry) if entry else heappop(heap))
    return Tree(tuple(tokens), tuple(parents), tuple(depths), tuple(-cost for cost in costs[1:]))
