"""The frozen target's taps of training sequences, kept in memory as far as a budget allows.

Knows padding and the budget; does not know what the taps are used for.
"""

import mlx.core as mx
import numpy as np

from dflash_mlx.target.target import Target

from .batches import Sequence
from .workers import Workers

TOKENS = 2048  # target tokens read at once


class Features:
    """Taps by sequence number, always rounded to bfloat16 as a 16-bit target would give them."""

    def __init__(self, target: Target, sequences: list[Sequence], budget: int, workers: Workers):
        self._target, self._sequences, self._workers = target, sequences, workers
        self._kept: dict[int, mx.array] = {}
        self._room = budget

    def rows(self, numbers: list[int]) -> list[mx.array]:
        """The taps [S, K * Ht] of each of these sequences; a target pass for those not kept."""
        found = {n: self._kept[n] for n in numbers if n in self._kept}
        missing = sorted(set(numbers) - found.keys(), key=lambda n: len(self._sequences[n].tokens))
        passes = []
        while missing:
            longest = len(self._sequences[missing[-1]].tokens)
            some = max(1, TOKENS // longest // self._workers.count)
            passes.append(missing[-some:])
            missing = missing[:-some]
        for part, rows in zip(passes, self._workers.map(self._read, passes), strict=True):
            found |= zip(part, rows, strict=True)
            for n, array in zip(part, rows, strict=True):
                if array.nbytes <= self._room:
                    self._kept[n] = array
                    self._room -= array.nbytes
        return [found[n] for n in numbers]

    def _read(self, numbers: list[int]) -> list[mx.array]:
        """One padded pass; the target is causal, so what pads the end changes nothing before it."""
        tokens = padded([self._sequences[n].tokens for n in numbers])
        taps = self._target.taps(mx.array(tokens)).astype(mx.bfloat16)
        lengths = [len(self._sequences[n].tokens) for n in numbers]
        # Copies, or the rows that are kept would hold the whole padded batch.
        return [mx.contiguous(taps[line, :length] + 0) for line, length in enumerate(lengths)]


def padded(rows: list[tuple[int, ...]]) -> np.ndarray:
    """Token rows of different lengths as one array [n, L], zeros at the end."""
    grid = np.zeros((len(rows), max(map(len, rows))), dtype=np.int32)
    for line, row in enumerate(rows):
        grid[line, : len(row)] = row
    return grid


def stacked(taps: list[mx.array], length: int) -> mx.array:
    """Taps [S_i, D] cut or padded with zeros to one length: float32 [n, length, D]."""
    lines = []
    for rows in taps:
        rows = rows[:length]
        lines.append(mx.pad(rows, [(0, length - len(rows)), (0, 0)]))
    return mx.stack(lines).astype(mx.float32)
