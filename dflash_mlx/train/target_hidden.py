"""A cache of the frozen target's hidden states of training sequences, with a memory budget.

The hidden states are those of the target layers that the drafter reads (`target_layer_ids`).
"""

import mlx.core as mx
import numpy as np

from dflash_mlx.target.target import Target

from .batches import Sequence
from .workers import Workers

MAX_PASS_TOKENS = 2048  # of all target passes that run at once


class TargetHiddenCache:
    """Hidden states by sequence number, bfloat16 as a 16-bit target gives them.

    `budget`: bytes that the cache may hold.
    """

    def __init__(self, target: Target, sequences: list[Sequence], budget: int, workers: Workers):
        self._target, self._sequences, self._workers = target, sequences, workers
        self._kept: dict[int, mx.array] = {}
        self._room = budget

    def rows(self, numbers: list[int]) -> list[mx.array]:
        """The hidden states [S, K * Ht] of each sequence; a target pass for those not cached."""
        found = {n: self._kept[n] for n in numbers if n in self._kept}
        missing = sorted(set(numbers) - found.keys(), key=lambda n: len(self._sequences[n].tokens))
        passes = []
        while missing:
            longest = len(self._sequences[missing[-1]].tokens)
            size = max(1, MAX_PASS_TOKENS // longest // self._workers.count)
            passes.append(missing[-size:])
            missing = missing[:-size]
        for part, rows in zip(passes, self._workers.map(self._read, passes), strict=True):
            found |= zip(part, rows, strict=True)
            for n, array in zip(part, rows, strict=True):
                if array.nbytes <= self._room:
                    self._kept[n] = array
                    self._room -= array.nbytes
        return [found[n] for n in numbers]

    def _read(self, numbers: list[int]) -> list[mx.array]:
        """One padded target pass; the target is causal, so padding at the end changes nothing."""
        tokens = padded([self._sequences[n].tokens for n in numbers])
        hidden_states = self._target.taps(mx.array(tokens)).astype(mx.bfloat16)
        lengths = [len(self._sequences[n].tokens) for n in numbers]
        # Copies: a view would keep the whole padded batch in memory.
        return [
            mx.contiguous(hidden_states[line, :length] + 0) for line, length in enumerate(lengths)
        ]


def padded(rows: list[tuple[int, ...]]) -> np.ndarray:
    """Token rows of different lengths as int32 [n, L], with zeros at the end."""
    grid = np.zeros((len(rows), max(map(len, rows))), dtype=np.int32)
    for line, row in enumerate(rows):
        grid[line, : len(row)] = row
    return grid


def stacked(hidden_states: list[mx.array], length: int) -> mx.array:
    """Arrays [S_i, D], cut or padded with zeros to one length -> float32 [n, length, D]."""
    lines = []
    for rows in hidden_states:
        rows = rows[:length]
        lines.append(mx.pad(rows, [(0, length - len(rows)), (0, 0)]))
    return mx.stack(lines).astype(mx.float32)
