"""The training loop: one optimiser step from one batch of sequences, until the steps are done.

Paper section 4.1: AdamW, warm-up, cosine, clipped gradients; the target, its embedding and its head
stay as they are. Knows no files and no terminal.
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

from .batches import Micro, Sequence, draw_anchors, epoch_batches, rectangles
from .features import Features, padded, stacked
from .loss import block_losses, decay_weights, default_gamma, dpace_weights
from .optimizer import Stepper
from .settings import TrainSettings
from .workers import Workers


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step did; loss in nats, weighted mean over the step's slots."""

    loss: float
    rate: float
    gradient_norm: float
    blocks: int
    tokens: int


class Trainer:
    """A drafter, its optimiser and the data it learns from."""

    def __init__(
        self,
        drafter: Drafter,
        sequences: list[Sequence],
        features: Features,
        settings: TrainSettings,
        workers: Workers,
    ):
        self.drafter, self.sequences, self.settings = drafter, sequences, settings
        self._features = features
        self._stepper = Stepper(
            settings.optimizer, drafter.config.hidden_size, settings.weight_decay
        )
        self.optimizer = self._stepper.optimizer
        self.optimizer.init(drafter.model.trainable_parameters())
        self._lengths = [len(s.tokens) for s in sequences]
        size = drafter.config.block_size
        self._decay = decay_weights(size, settings.gamma or default_gamma(size))
        self._gradient = mx.value_and_grad(self._micro_loss)
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

    def step(self, number: int) -> Outcome:
        """Do step `number` (from 0); the same number on the same state gives the same result."""
        epoch, place = divmod(number, len(self._batches(0)))
        rows = self._batches(epoch)[place]
        settings = self.settings
        anchors = draw_anchors(self.sequences, rows, settings.anchors, settings.seed, number)
        taps = self._features.rows([int(row) for row in rows])
        micros = rectangles(anchors, settings.chunk)
        loss, weight, gradient = self._accumulate(rows, taps, micros)
        gradient, norm = clip_grad_norm(tree_map(lambda g: g / weight, gradient), settings.clip)
        rate = settings.rate_at(number, self.steps)
        self._stepper.set_rate(rate)
        self.optimizer.update(self.drafter.model, gradient)
        mx.eval(self.drafter.model.parameters(), self.optimizer.state, norm)
        return Outcome(
            loss=float(loss / weight),
            rate=rate,
            gradient_norm=float(norm),
            blocks=sum(len(a) for a in anchors),
            tokens=sum(self._lengths[row] for row in rows),
        )

    def _accumulate(self, rows: np.ndarray, taps: list[mx.array], micros: list[Micro]):
        """Sums over the step: weighted losses, weights, and the gradient of the first."""
        loss = weight = mx.array(0.0)
        gradient = tree_map(mx.zeros_like, self.drafter.model.trainable_parameters())
        waiting = iter(micros)
        while group := list(islice(waiting, self._workers.count)):
            parts = self._workers.map(lambda micro: self._differentiate(rows, taps, micro), group)
            for (part_loss, part_weight), part in parts:
                loss, weight = loss + part_loss, weight + part_weight
                gradient = tree_map(mx.add, gradient, part)
            mx.eval(loss, weight, gradient)
        return loss, weight, gradient

    def _differentiate(self, rows: np.ndarray, taps: list[mx.array], micro: Micro):
        """Build one rectangle's sums and gradient: ((loss, weight), gradient)."""
        model = self.drafter.model
        parameters = model.trainable_parameters()
        try:
            return self._gradient(parameters, *self._inputs(rows, taps, micro))
        finally:
            # Differentiating leaves this thread's stand-ins in the model, of no use to others.
            model.update(parameters)

    def _inputs(self, rows: np.ndarray, taps: list[mx.array], micro: Micro) -> Iterator[mx.array]:
        """taps, tokens, lengths and anchors of one rectangle, as `block_losses` takes them."""
        tokens = [self.sequences[rows[i]].tokens for i in micro.rows]
        last = int(micro.anchors.max())
        yield stacked([taps[i] for i in micro.rows], last)
        yield mx.array(padded(tokens))
        yield mx.array([len(row) for row in tokens])
        yield mx.array(micro.anchors)

    def _micro_loss(
        self,
        parameters: dict[str, Any],
        taps: mx.array,
        tokens: mx.array,
        lengths: mx.array,
        anchors: mx.array,
    ) -> tuple[mx.array, mx.array]:
        """Sum of w_k * CE_k over a rectangle's slots, and of w_k: L is their quotient."""
        self.drafter.model.update(parameters)
        losses, counts = block_losses(self.drafter, taps, tokens, lengths, anchors)
        if self.settings.loss == "dpace":
            weights = dpace_weights(losses, counts)
        else:
            weights = self._decay * counts
        return (weights * losses).sum(), weights.sum()
