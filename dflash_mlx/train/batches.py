"""Which sequences a step learns from, and at which anchors. Indices only, no model.

Everything follows from (seed, epoch) and (seed, step), so that a run can go on from a step number.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Sequence:
    """A prompt and the target's answer; the answer starts at `answer`."""

    tokens: tuple[int, ...]
    answer: int

    @property
    def anchors(self) -> range:
        """Valid anchors: positions of answer tokens that are followed by one (spec section 6.2)."""
        return range(self.answer, len(self.tokens) - 1)


@dataclass(frozen=True, slots=True)
class Micro:
    """A rectangle of blocks that go through the drafter together.

    rows: sequence numbers [n]; anchors: [n, m] positions, -1 where there is none.
    """

    rows: tuple[int, ...]
    anchors: np.ndarray


def epoch_batches(count: int, size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The epoch's batches of at most `size` sequence numbers, in random order.

    Short and long sequences meet in a batch; `rectangles` sorts them out again.
    """
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return [order[i : i + size] for i in range(0, count, size)]


def draw_anchors(
    sequences: list[Sequence], rows: np.ndarray, count: int, seed: int, step: int
) -> list[np.ndarray]:
    """At most `count` anchors of each row, uniformly without replacement, sorted."""
    rng = np.random.default_rng([seed, step, 1])
    drawn = []
    for row in rows:
        valid = np.arange(sequences[row].anchors.start, sequences[row].anchors.stop)
        drawn.append(np.sort(rng.choice(valid, min(count, len(valid)), replace=False)))
    return drawn


def rectangles(anchors: list[np.ndarray], chunk: int) -> list[Micro]:
    """Cover all blocks with rectangles of at most `chunk` blocks and little padding.

    A sequence with more anchors than that is cut; short pieces share a rectangle.
    """
    pieces = []
    for row, positions in enumerate(anchors):
        parts = -(-len(positions) // chunk)
        pieces += [(row, piece) for piece in np.array_split(positions, max(parts, 1))]
    pieces.sort(key=lambda piece: -len(piece[1]))
    micros = []
    while pieces:
        width = len(pieces[0][1])
        if width == 0:
            break
        taken, pieces = pieces[: max(1, chunk // width)], pieces[max(1, chunk // width) :]
        grid = np.full((len(taken), width), -1)
        for line, (_, positions) in enumerate(taken):
            grid[line, : len(positions)] = positions
        micros.append(Micro(tuple(row for row, _ in taken), grid))
    return micros
