"""The training step: sampled anchors, loss, gradient and optimiser update of one batch.

DFlash paper, section 4.1: AdamW, warm-up, cosine decay, clipped gradients; the target, its
embedding and its head are frozen. A step's memory does not depend on the number of anchors: blocks
are computed in chunks, which share the keys and values of their sequence's context.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import cycle
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.optimizers import AdamW, MultiOptimizer, Muon, Optimizer, clip_grad_norm
from mlx.utils import tree_flatten, tree_map

from dflash_mlx.drafters.dflash.model import KeysValues

from .data import (
    Rectangle,
    Text,
    TrainingSequence,
    epoch_batches,
    padded,
    rectangles,
    sample_anchors,
)
from .dflash import DFlashStudent
from .events import StepDone
from .loss import decay_weights, default_gamma, dpace_weights
from .mtp import MTPStudent
from .settings import TrainSettings
from .streams import Streams, Task
from .taps import TapStore, stacked

Student = DFlashStudent | MTPStudent
Parameters = Any  # nested dicts and lists of arrays, as in mlx.nn
# Over all positions: "loss" (weighted), "weight", and "gradient" of the loss by the parameters.
Sums = dict[str, Any]


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

    def sums(
        self, parts: Iterable[tuple[Text, Rectangle]], stopped: Callable[[], bool]
    ) -> Sums | None:
        """The sums over the blocks of these texts; None if `stopped` returned true before the end.

        The taps of a text are evaluated.
        """
        total = None
        tasks = (self._sums_of(*part, stopped) for part in parts)
        for finished in self._streams.together(tasks):
            for sums in finished:
                if sums is None:
                    return None
                total = sums if total is None else tree_map(mx.add, total, sums)
                mx.eval(total)
        return total

    def _sums_of(
        self, text: Text, rectangle: Rectangle, stopped: Callable[[], bool]
    ) -> Task[Sums | None]:
        """The sums of one rectangle; None if stopped.

        First the loss's gradient by the weights and by the context's keys and values, chunk by
        chunk. Then, by the chain rule, the gradient by the weights that make the context.
        """
        parameters = self._model.trainable_parameters()
        text = replace(text, taps=text.taps.astype(self._dtype))
        context = self._context(parameters, text)
        self._model.update(parameters)  # also below: a gradient leaves tracers in the model
        yield context
        total: Sums | None = None
        for anchors in rectangle.slices(self._settings.chunk):
            if stopped():
                return None
            (loss, weight), (gradient, slopes) = self._of_blocks(
                parameters, context, text, mx.array(anchors)
            )
            self._model.update(parameters)
            sums = {"loss": loss, "weight": weight, "gradient": gradient, "slopes": slopes}
            total = sums if total is None else tree_map(mx.add, total, sums)
            del gradient, slopes, sums  # so that MLX can reuse their memory
            yield total
        assert total is not None
        slopes = total.pop("slopes")

        def context_loss(parameters: Parameters) -> mx.array:
            """The context times the loss's gradient by it; its gradient equals the loss's."""
            made = self._context(parameters, text)
            products = tree_map(lambda a, s: (a.astype(mx.float32) * s).sum(), made, slopes)
            return mx.stack([product for _, product in tree_flatten(products)]).sum()  # type: ignore

        by_context = mx.grad(context_loss)(parameters)
        self._model.update(parameters)
        total["gradient"] = tree_map(mx.add, total["gradient"], by_context)
        yield total
        return total

    def _context(self, parameters: Parameters, text: Text) -> list[KeysValues]:
        self._enter(parameters)
        return self._student.context(text)

    def _loss(
        self, parameters: Parameters, context: list[KeysValues], text: Text, anchors: mx.array
    ) -> tuple[mx.array, mx.array]:
        """The sums of w_k CE_k and of w_k over positions of blocks (DFlash paper, section 3.3)."""
        self._enter(parameters)
        losses, counts = self._student.losses(context, text, anchors)
        dpace = self._settings.loss == "dpace"
        weights = dpace_weights(losses, counts) if dpace else self._decay * counts
        return (weights * losses).sum(), weights.sum()

    def _enter(self, parameters: Parameters) -> None:
        self._model.update(tree_map(lambda p: p.astype(self._dtype), parameters))


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
            # The weights of linear layers, but not tables of tokens.
            self.optimizer = MultiOptimizer(
                [muon, adamw], [lambda name, array: array.ndim == 2 and "codebook" not in name]
            )

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


class Trainer:
    def __init__(
        self,
        student: Student,
        sequences: list[TrainingSequence],
        taps: TapStore,
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
        self._gradient = BlockGradient(student, settings, streams)
        self.batches = -(-len(sequences) // settings.batch)
        self.steps = settings.steps or settings.epochs * self.batches

    def step(self, number: int, stopped: Callable[[], bool] = lambda: False) -> StepDone | None:
        """Do step `number` (from 0). The result depends only on the state and the number.

        Returns None and changes nothing if `stopped` returns true before the gradient is complete.
        """
        began = perf_counter()
        settings = self.settings
        epoch, place = divmod(number, self.batches)
        batches = epoch_batches(len(self.sequences), settings.batch, settings.seed, epoch)
        sequences = [self.sequences[row] for row in batches[place]]
        anchors = sample_anchors(sequences, settings.anchors, settings.seed, number)
        taps = self._taps.rows(sequences)
        parts = rectangles(anchors, settings.chunk)
        texts = (text_of(sequences, taps, part) for part in parts)
        sums = self._gradient.sums(zip(texts, parts, strict=True), stopped)
        if sums is None:
            return None
        loss = sums["loss"]
        weight = sums["weight"]
        mean = tree_map(lambda g: g / weight, sums.pop("gradient"))
        gradient, norm = clip_grad_norm(mean, settings.clip)
        rate = settings.rate_at(number, self.steps)
        self._optimizer.set_rate(rate)
        self.optimizer.update(self._model, gradient)
        mx.eval(self._model.parameters(), self.optimizer.state, norm)
        return StepDone(
            step=number + 1,
            steps=self.steps,
            loss=float(loss / weight),
            rate=rate,
            gradient_norm=float(norm),
            blocks=sum(len(a) for a in anchors),
            tokens=sum(len(sequence.tokens) for sequence in sequences),
            seconds=perf_counter() - began,
        )


def text_of(sequences: list[TrainingSequence], taps: list[mx.array], part: Rectangle) -> Text:
    """The sequences of a rectangle; of their taps those before its last anchor."""
    tokens = [sequences[row].tokens for row in part.rows]
    rows = stacked([taps[row] for row in part.rows], int(part.anchors.max()))
    return Text(rows, mx.array(padded(tokens)), mx.array([len(row) for row in tokens]))
