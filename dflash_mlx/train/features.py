"""The frozen target's taps of training sequences, kept in memory as far as a budget allows.

Knows padding and the budget; does not know what the taps are used for.
"""

import mlx.core as mx
import numpy as np

from dflash_mlx.target import Target

from .batches import Sequence

TOKENS = 4096  # target tokens read at once


class Features:
    """Taps by sequence number, always rounded to bfloat16 as a 16-bit target would give them."""

    def __init__(self, target: Target, sequences: list[Sequence], budget: int):
        self._target, self._sequences = target, sequences
        self._kept: dict[int, mx.array] = {}
        self._room = budget

    def rows(self, numbers: list[int]) -> list[mx.array]:
        """The taps [S, K * Ht] of each of these sequences; a target pass for those not kept."""
        found = {n: self._kept[n] for n in numbers if n in self._kept}
        missing = sorted(set(numbers) - found.keys(), key=lambda n: len(self._sequences[n].tokens))
        while missing:
            longest = len(self._sequences[missing[-1]].tokens)
            part = missing[-max(1, TOKENS // longest) :]
            missing = missing[: -len(part)]
            found |= self._read(part)
        return [found[n] for n in numbers]

    def _read(self, numbers: list[int]) -> dict[int, mx.array]:
        """One padded pass; the target is causal, so what pads the end changes nothing before it."""
        tokens = padded([self._sequences[n].tokens for n in numbers])
        taps = self._target.taps(mx.array(tokens)).astype(mx.bfloat16)
        rows = {}
        for line, n in enumerate(numbers):
            # A copy, or the kept rows would hold the whole padded batch.
            rows[n] = mx.contiguous(taps[line, : len(self._sequences[n].tokens)] + 0)
        mx.eval(list(rows.values()))
        for n, array in rows.items():
            if array.nbytes <= self._room:
                self._kept[n] = array
                self._room -= array.nbytes
        return rows


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
