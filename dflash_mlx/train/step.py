"""The training step: sampled anchors, loss, gradient and optimiser update of one batch.

DFlash paper, section 4.1: AdamW, warm-up, cosine decay, clipped gradients; the target, its
embedding and its head are frozen.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.optimizers import AdamW, MultiOptimizer, Muon, Optimizer, clip_grad_norm
from mlx.utils import tree_map

from dflash_mlx.drafters.dflash.model import KeysValues

from .data import Rectangle, TrainingSequence, epoch_batches, rectangles, sample_anchors
from .loss import decay_weights, default_gamma, dpace_weights
from .settings import TrainSettings
from .streams import Streams, Task
from .student import Student, Text
from .taps import Taps, padded, stacked

# The gradient of one training step. Its memory does not depend on the number of anchors: blocks are
# computed in chunks, which share the keys and values of their sequence's context.

Parameters = Any  # nested dicts and lists of arrays, as in mlx.nn


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over all positions: the weighted losses, the weights, and the gradient of the losses."""

    loss: mx.array
    weight: mx.array
    gradient: Parameters

    def __add__(self, other: "Sums") -> "Sums":
        gradient = tree_map(mx.add, self.gradient, other.gradient)
        return Sums(self.loss + other.loss, self.weight + other.weight, gradient)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a rectangle: evaluated taps [S_i, K * Ht] and tokens of its n sequences."""

    rectangle: Rectangle
    taps: Sequence[mx.array]
    tokens: Sequence[tuple[int, ...]]


class BlockGradient:
    """Computes the loss and its gradient over blocks, on several streams on a CPU."""

    def __init__(self, student: Student, settings: TrainSettings, streams: Streams):
        size = student.drafter.block_size
        self._student = student
        self._model: nn.Module = student.drafter.model
        self._settings = settings
        self._streams = streams
        self._dtype: mx.Dtype = getattr(mx, settings.compute)
        self._decay = decay_weights(size, settings.gamma or default_gamma(size))
        self._of_blocks = mx.value_and_grad(self._loss, argnums=(0, 1))

    def sums(self, parts: Sequence[Blocks], stopped: Callable[[], bool]) -> Sums | None:
        """The sums over all these blocks; None if `stopped` returned true before the end."""
        total = None
        tasks = (self._sums_of(part, stopped) for part in parts)
        for finished in self._streams.together(tasks):
            for sums in finished:
                if sums is None:
                    return None
                total = sums if total is None else total + sums
                mx.eval(total.loss, total.weight, total.gradient)
        return total

    def _sums_of(self, part: Blocks, stopped: Callable[[], bool]) -> Task[Sums | None]:
        """The sums of one rectangle; None if stopped.

        First the loss's gradient by the weights and by the context's keys and values, chunk by
        chunk. Then, by the chain rule, the gradient by the weights that make the context.
        """
        model = self._model
        parameters = model.trainable_parameters()
        text = Text(
            stacked(part.taps, int(part.rectangle.anchors.max())).astype(self._dtype),
            mx.array(padded(part.tokens)),
            mx.array([len(row) for row in part.tokens]),
        )
        with restored(model, parameters):
            context = self._context(parameters, text)
        yield context
        total = None
        slopes = None
        for anchors in part.rectangle.slices(self._settings.chunk):
            if stopped():
                return None
            with restored(model, parameters):
                (loss, weight), (gradient, slope) = self._of_blocks(
                    parameters, context, text, mx.array(anchors)
                )
            sums = Sums(loss, weight, gradient)
            total = sums if total is None else total + sums
            slopes = slope if slopes is None else tree_map(mx.add, slopes, slope)
            del gradient, slope, sums  # so that MLX can reuse their memory
            yield total.loss, total.weight, total.gradient, slopes
        assert total is not None

        def context_loss(parameters: Parameters) -> mx.array:
            """The context times the loss's gradient by it; its gradient equals the loss's."""
            arrays = flatten(self._context(parameters, text))
            products = zip(arrays, flatten(slopes), strict=True)
            return mx.stack([(a.astype(mx.float32) * slope).sum() for a, slope in products]).sum()

        with restored(model, parameters):
            by_context = mx.grad(context_loss)(parameters)
        total = Sums(total.loss, total.weight, tree_map(mx.add, total.gradient, by_context))
        yield total.gradient
        return total

    def _enter(self, parameters: Parameters) -> None:
        """Put parameters into the model, in the dtype of the computation."""
        self._model.update(tree_map(lambda p: p.astype(self._dtype), parameters))

    def _context(self, parameters: Parameters, text: Text) -> list[KeysValues]:
        self._enter(parameters)
        return self._student.context(text)

    def _loss(
        self,
        parameters: Parameters,
        context: list[KeysValues],
        text: Text,
        anchors: mx.array,
    ) -> tuple[mx.array, mx.array]:
        """The sums of w_k CE_k and of w_k over positions of blocks (DFlash paper, section 3.3)."""
        self._enter(parameters)
        losses, counts = self._student.losses(context, text, anchors)
        dpace = self._settings.loss == "dpace"
        weights = dpace_weights(losses, counts) if dpace else self._decay * counts
        return (weights * losses).sum(), weights.sum()


@contextmanager
def restored(model: nn.Module, parameters: Parameters) -> Iterator[None]:
    """Restore the parameters afterwards, because gradients leave tracers in the model."""
    try:
        yield
    finally:
        model.update(parameters)


def flatten(context: list[KeysValues] | None) -> list[mx.array]:
    return [array for both in context or [] for array in both]


# The optimiser


class TrainOptimizer:
    """An mlx optimiser whose learning rate is set before each step."""

    def __init__(self, kind: str, hidden_size: int, weight_decay: float, streams: Streams):
        """kind: "adamw" or "muon". weight_decay: for AdamW, decoupled."""
        adamw = AdamW(0.0, betas=[0.9, 0.95], weight_decay=weight_decay, bias_correction=True)
        self.optimizer: Optimizer = adamw
        self._factors: list[tuple[Optimizer, float]] = [(adamw, 1.0)]
        if kind == "muon":
            # The factor 0.2 sqrt(H) matches the update size of AdamW, so that both use one rate.
            muon = StreamedMuon(streams, 0.0, momentum=0.95, weight_decay=0.0)
            self._factors.append((muon, 0.2 * math.sqrt(hidden_size)))
            self.optimizer = MultiOptimizer([muon, adamw], [is_matrix])

    def set_rate(self, rate: float) -> None:
        for optimizer, factor in self._factors:
            optimizer.learning_rate = rate * factor


class StreamedMuon(Muon):
    """Muon that updates its matrices on several streams in turn: each update is many products."""

    def __init__(self, streams: Streams, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._turns = cycle(streams.streams)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: Any) -> mx.array:
        with mx.stream(next(self._turns)):
            return super().apply_single(gradient, parameter, state)


def is_matrix(name: str, parameter: mx.array) -> bool:
    """Whether a tensor is the weight of a linear layer, not a table of tokens."""
    return parameter.ndim == 2 and not name.endswith("codebook")


@dataclass(frozen=True, slots=True)
class StepResult:
    """Metrics of one step; `loss` is the weighted mean over all positions, in nats."""

    loss: float
    rate: float
    gradient_norm: float
    blocks: int
    tokens: int


class Trainer:
    def __init__(
        self,
        student: Student,
        sequences: list[TrainingSequence],
        taps: Taps,
        settings: TrainSettings,
        streams: Streams,
    ):
        self.sequences = sequences
        self.settings = settings
        self._taps = taps
        self._model: nn.Module = student.drafter.model
        width = student.drafter.config.hidden_size
        self._optimizer = TrainOptimizer(settings.optimizer, width, settings.weight_decay, streams)
        self.optimizer = self._optimizer.optimizer
        self.optimizer.init(self._model.trainable_parameters())
        self._lengths = [len(s.tokens) for s in sequences]
        self._gradient = BlockGradient(student, settings, streams)
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

        Returns None and changes nothing if `stopped` returns true before the gradient is complete.
        """
        settings = self.settings
        rows = self.rows_of(number)
        anchors = sample_anchors(self.sequences, rows, settings.anchors, settings.seed, number)
        taps = self._taps.rows([int(row) for row in rows])
        if number + 1 < self.steps:
            self._taps.load_ahead([int(row) for row in self.rows_of(number + 1)])
        parts = [self._blocks(rows, taps, part) for part in rectangles(anchors, settings.chunk)]
        sums = self._gradient.sums(parts, stopped)
        if sums is None:
            return None
        loss = sums.loss
        weight = sums.weight
        mean = tree_map(lambda g: g / weight, sums.gradient)
        del sums  # so that MLX can reuse its gradient's memory
        gradient, norm = clip_grad_norm(mean, settings.clip)
        rate = settings.rate_at(number, self.steps)
        self._optimizer.set_rate(rate)
        self.optimizer.update(self._model, gradient)
        mx.eval(self._model.parameters(), self.optimizer.state, norm)
        return StepResult(
            loss=float(loss / weight),
            rate=rate,
            gradient_norm=float(norm),
            blocks=sum(len(a) for a in anchors),
            tokens=sum(self._lengths[row] for row in rows),
        )

    def _blocks(self, rows: np.ndarray, taps: list[mx.array], part: Rectangle) -> Blocks:
        """A rectangle with the taps and tokens of its sequences."""
        tokens = [self.sequences[rows[i]].tokens for i in part.rows]
        return Blocks(part, [taps[i] for i in part.rows], tokens)
