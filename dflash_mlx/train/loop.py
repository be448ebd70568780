"""The training step: sampled anchors, loss, gradient and optimiser update of one batch.

DFlash paper, section 4.1: AdamW, warm-up, cosine decay, clipped gradients; the target, its
embedding and its head are frozen.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx.optimizers import clip_grad_norm
from mlx.utils import tree_map

from dflash_mlx.drafter.drafter import Drafter

from .batches import Rectangle, Sequence, epoch_batches, rectangles, sample_anchors
from .gradient import BlockGradient, Blocks
from .optimizer import TrainOptimizer
from .settings import TrainSettings
from .streams import Streams
from .taps import Taps


@dataclass(frozen=True, slots=True)
class StepResult:
    """Metrics of one step; `loss` is the weighted mean over all positions, in nats."""

    loss: float
    rate: float
    gradient_norm: float
    blocks: int
    tokens: int


class Trainer:
    """A drafter, its optimiser and its training data."""

    def __init__(
        self,
        drafter: Drafter,
        sequences: list[Sequence],
        taps: Taps,
        settings: TrainSettings,
        streams: Streams,
    ):
        self.drafter, self.sequences, self.settings = drafter, sequences, settings
        self._taps = taps
        self._optimizer = TrainOptimizer(
            settings.optimizer, drafter.config.hidden_size, settings.weight_decay, streams
        )
        self.optimizer = self._optimizer.optimizer
        self.optimizer.init(drafter.model.trainable_parameters())
        self._lengths = [len(s.tokens) for s in sequences]
        self._gradient = BlockGradient(drafter, settings, streams)
        self._epoch: tuple[int, list[np.ndarray]] = (-1, [])
        self.batches = -(-len(sequences) // settings.batch)
        self.steps = settings.steps or settings.epochs * len(self._batches(0))

    def _batches(self, epoch: int) -> list[np.ndarray]:
        if self._epoch[0] != epoch:
            settings = self.settings
            made = epoch_batches(len(self.sequences), settings.batch, settings.seed, epoch)
            self._epoch = epoch, made
        return self._epoch[1]

    def rows_of(self, number: int) -> np.ndarray:
        """The sequences of step `number`."""
        epoch, place = divmod(number, self.batches)
        return self._batches(epoch)[place]

    def step(self, number: int, stopped: Callable[[], bool] = lambda: False) -> StepResult | None:
        """Do step `number` (from 0). The result depends only on the state and the number.

        None, with nothing changed, if `stopped` returns true before the gradient is whole.
        """
        settings, rows = self.settings, self.rows_of(number)
        anchors = sample_anchors(self.sequences, rows, settings.anchors, settings.seed, number)
        taps = self._taps.rows([int(row) for row in rows])
        if number + 1 < self.steps:
            self._taps.load_ahead([int(row) for row in self.rows_of(number + 1)])
        parts = [self._blocks(rows, taps, part) for part in rectangles(anchors, settings.chunk)]
        sums = self._gradient.sums(parts, stopped)
        if sums is None:
            return None
        loss, weight = sums.loss, sums.weight
        mean = tree_map(lambda g: g / weight, sums.gradient)
        del sums  # or its gradient's memory could not be used again
        gradient, norm = clip_grad_norm(mean, settings.clip)
        rate = settings.rate_at(number, self.steps)
        self._optimizer.set_rate(rate)
        self.optimizer.update(self.drafter.model, gradient)
        mx.eval(self.drafter.model.parameters(), self.optimizer.state, norm)
        return StepResult(
            loss=float(loss / weight),
            rate=rate,
            gradient_norm=float(norm),
            blocks=sum(len(a) for a in anchors),
            tokens=sum(self._lengths[row] for row in rows),
        )

    def _blocks(self, rows: np.ndarray, taps: list[mx.array], part: Rectangle) -> Blocks:
        """A rectangle with what its blocks read."""
        tokens = [self.sequences[rows[i]].tokens for i in part.rows]
        return Blocks(part, [taps[i] for i in part.rows], tokens)
