"""The sequences and anchors of each training step, as indices.

They depend only on (seed, epoch) and (seed, step), so that a run can resume at a step.
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
        """The valid anchors, as in SpecForge: positions of answer tokens with a next token."""
        return range(self.answer, len(self.tokens) - 1)


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Blocks of sequences that are computed together, each sequence's context once.

    rows: n indices into the batch; anchors: positions [n, m], -1 for padding.
    """

    rows: tuple[int, ...]
    anchors: np.ndarray

    def slices(self, chunk: int) -> list[np.ndarray]:
        """The anchors in slices of at most `chunk` blocks (at least one a sequence)."""
        count, width = self.anchors.shape
        parts = -(-width // max(1, chunk // count))
        return np.array_split(self.anchors, parts, axis=1)


def epoch_batches(count: int, size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The batches of an epoch: at most `size` sequence numbers each, in random order.

    Lengths are mixed in a batch; `rectangles` groups similar ones.
    """
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return [order[i : i + size] for i in range(0, count, size)]


def sample_anchors(
    sequences: list[Sequence], rows: np.ndarray, count: int, seed: int, step: int
) -> list[np.ndarray]:
    """At most `count` anchors of each row, sorted; drawn uniformly without replacement."""
    rng = np.random.default_rng([seed, step, 1])
    drawn = []
    for row in rows:
        valid = np.arange(sequences[row].anchors.start, sequences[row].anchors.stop)
        drawn.append(np.sort(rng.choice(valid, min(count, len(valid)), replace=False)))
    return drawn


def rectangles(anchors: list[np.ndarray], chunk: int) -> list[Rectangle]:
    """All blocks of a batch: each sequence's together, and short ones with little padding.

    As many sequences share a rectangle as have at most `chunk` blocks.
    """
    pieces = sorted(enumerate(anchors), key=lambda piece: -len(piece[1]))
    pieces = [piece for piece in pieces if len(piece[1])]
    found = []
    while pieces:
        width = len(pieces[0][1])
        taken, pieces = pieces[: max(1, chunk // width)], pieces[max(1, chunk // width) :]
        grid = np.full((len(taken), width), -1)
        for line, (_, positions) in enumerate(taken):
            grid[line, : len(positions)] = positions
        found.append(Rectangle(tuple(row for row, _ in taken), grid))
    return found
