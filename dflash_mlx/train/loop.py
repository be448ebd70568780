"""The training step: sampled anchors, loss, gradient and optimiser update of one batch.

DFlash paper, section 4.1: AdamW, warm-up, cosine decay, clipped gradients; the target, its
embedding and its head are frozen.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.optimizers import clip_grad_norm
from mlx.utils import tree_map

from dflash_mlx.drafter.drafter import Drafter

from .batches import MicroBatch, Sequence, epoch_batches, micro_batches, sample_anchors
from .loss import block_losses, decay_weights, default_gamma, dpace_weights
from .optimizer import TrainOptimizer
from .settings import TrainSettings
from .target_hidden import TargetHiddenCache, padded, stacked
from .workers import Workers


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
        target_hidden: TargetHiddenCache,
        settings: TrainSettings,
        workers: Workers,
    ):
        self.drafter, self.sequences, self.settings = drafter, sequences, settings
        self._target_hidden = target_hidden
        self._optimizer = TrainOptimizer(
            settings.optimizer, drafter.config.hidden_size, settings.weight_decay
        )
        self.optimizer = self._optimizer.optimizer
        self.optimizer.init(drafter.model.trainable_parameters())
        self._lengths = [len(s.tokens) for s in sequences]
        size = drafter.config.block_size
        self._decay = decay_weights(size, settings.gamma or default_gamma(size))
        self._gradient = mx.value_and_grad(self._loss)
        self._workers = workers
        self._epoch: tuple[int, list[np.ndarray]] = (-1, [])
        self.batches = -(-len(sequences) // settings.batch)
        self.steps = settings.steps or settings.epochs * len(self._batches(0))

    def _batches(self, epoch: int) -> list[np.ndarray]:
        if self._epoch[0] != epoch:
            settings = self.settings
            made = epoch_batches(len(self.sequences), settings.batch, settings.seed, epoch)
            self._epoch = epoch, made
        return self._epoch[1]

    def step(self, number: int) -> StepResult:
        """Do step `number` (from 0). The result depends only on the state and the number."""
        epoch, place = divmod(number, len(self._batches(0)))
        rows = self._batches(epoch)[place]
        settings = self.settings
        anchors = sample_anchors(self.sequences, rows, settings.anchors, settings.seed, number)
        target_hidden = self._target_hidden.rows([int(row) for row in rows])
        groups = micro_batches(anchors, settings.chunk)
        loss, weight, gradient = self._accumulate(rows, target_hidden, groups)
        gradient, norm = clip_grad_norm(tree_map(lambda g: g / weight, gradient), settings.clip)
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

    def _accumulate(
        self, rows: np.ndarray, target_hidden: list[mx.array], batches: list[MicroBatch]
    ):
        """Sums over the step: weighted losses, weights, and the gradient of the weighted losses."""
        loss = weight = mx.array(0.0)
        gradient = tree_map(mx.zeros_like, self.drafter.model.trainable_parameters())
        waiting = iter(batches)
        while group := list(islice(waiting, self._workers.count)):
            parts = self._workers.map(
                lambda micro_batch: self._differentiate(rows, target_hidden, micro_batch), group
            )
            for (part_loss, part_weight), part in parts:
                loss, weight = loss + part_loss, weight + part_weight
                gradient = tree_map(mx.add, gradient, part)
            mx.eval(loss, weight, gradient)
        return loss, weight, gradient

    def _differentiate(
        self, rows: np.ndarray, target_hidden: list[mx.array], micro_batch: MicroBatch
    ):
        """The sums and gradient of one micro-batch: ((loss, weight), gradient), not evaluated."""
        model = self.drafter.model
        parameters = model.trainable_parameters()
        try:
            return self._gradient(parameters, *self._inputs(rows, target_hidden, micro_batch))
        finally:
            # value_and_grad leaves this thread's tracers in the model: restore the parameters.
            model.update(parameters)

    def _inputs(
        self, rows: np.ndarray, target_hidden: list[mx.array], micro_batch: MicroBatch
    ) -> Iterator[mx.array]:
        """The arguments of `block_losses` for one micro-batch."""
        tokens = [self.sequences[rows[i]].tokens for i in micro_batch.rows]
        last = int(micro_batch.anchors.max())
        yield stacked([target_hidden[i] for i in micro_batch.rows], last)
        yield mx.array(padded(tokens))
        yield mx.array([len(row) for row in tokens])
        yield mx.array(micro_batch.anchors)

    def _loss(
        self,
        parameters: dict[str, Any],
        target_hidden: mx.array,
        tokens: mx.array,
        lengths: mx.array,
        anchors: mx.array,
    ) -> tuple[mx.array, mx.array]:
        """The sums of w_k CE_k and of w_k over positions of a micro-batch (paper, section 3.3)."""
        self.drafter.model.update(parameters)
        losses, counts = block_losses(self.drafter, target_hidden, tokens, lengths, anchors)
        if self.settings.loss == "dpace":
            weights = dpace_weights(losses, counts)
        else:
            weights = self._decay * counts
        return (weights * losses).sum(), weights.sum()
