"""The optimiser: Muon for matrices and AdamW for the rest, or AdamW for all as in the paper.

Muon (orthogonalised momentum) needs far fewer blocks.
"""

import math
from itertools import cycle
from typing import Any

import mlx.core as mx
from mlx.optimizers import AdamW, MultiOptimizer, Muon, Optimizer

from .streams import Streams


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
        """Set the learning rate of the next step, as for AdamW."""
        for optimizer, factor in self._factors:
            optimizer.learning_rate = rate * factor


class StreamedMuon(Muon):
    """Muon whose matrices take turns on streams: each is many products, apart from the others."""

    def __init__(self, streams: Streams, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._turns = cycle(streams.each)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: Any) -> mx.array:
        """The updated parameter, as Muon's."""
        with mx.stream(next(self._turns)):
            return super().apply_single(gradient, parameter, state)


def is_matrix(name: str, parameter: mx.array) -> bool:
    """Whether a tensor is the weight of a linear layer, not a table of tokens."""
    return parameter.ndim == 2 and not name.endswith("codebook")
