"""The gradient of one training step, in memory that the number of anchors does not change.

The keys and values of a sequence's context are computed once, outside the graph of the blocks. The
blocks come in slices; each adds to the gradient of the weights, and to that of the context, which
goes back through the projections at the end. Does not know the optimiser.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from dflash_mlx.drafter.drafter import Drafter
from dflash_mlx.drafter.model import KeysValues

from .batches import Rectangle
from .loss import block_losses, decay_weights, default_gamma, dpace_weights
from .settings import DTYPES, TrainSettings
from .streams import Streams, Task
from .taps import padded, stacked

Tree = Any  # of arrays, as mlx's gradients are


@dataclass(frozen=True, slots=True)
class Sums:
    """Over all positions: weighted losses, weights, and the gradient of the weighted losses."""

    loss: mx.array
    weight: mx.array
    gradient: Tree

    def __add__(self, other: "Sums") -> "Sums":
        """Both together."""
        gradient = tree_map(mx.add, self.gradient, other.gradient)
        return Sums(self.loss + other.loss, self.weight + other.weight, gradient)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a rectangle, and its n sequences: taps [S_i, K * Ht] of each, and tokens.

    The taps are evaluated.
    """

    rectangle: Rectangle
    taps: Sequence[mx.array]
    tokens: Sequence[tuple[int, ...]]


class BlockGradient:
    """Computes `Sums` for a drafter, on several streams on a CPU."""

    def __init__(self, drafter: Drafter, settings: TrainSettings, streams: Streams):
        size = drafter.config.block_size
        self._drafter, self._settings, self._streams = drafter, settings, streams
        self._dtype = DTYPES[settings.compute]
        self._decay = decay_weights(size, settings.gamma or default_gamma(size))
        self._of_blocks = mx.value_and_grad(self._loss, argnums=(0, 1))

    def sums(self, parts: Sequence[Blocks], stopped: Callable[[], bool]) -> Sums | None:
        """The sums over all these blocks; None if `stopped` returned true before the end."""
        total = None
        for ended in self._streams.together(self._sums_of(part, stopped) for part in parts):
            for part in ended:
                if part is None:
                    return None
                total = part if total is None else total + part
                mx.eval(total.loss, total.weight, total.gradient)
        return total

    def _sums_of(self, part: Blocks, stopped: Callable[[], bool]) -> Task[Sums | None]:
        """The sums, or None if stopped."""
        model = self._drafter.model
        parameters = model.trainable_parameters()
        taps = stacked(part.taps, int(part.rectangle.anchors.max())).astype(self._dtype)
        tokens = mx.array(padded(part.tokens))
        lengths = mx.array([len(row) for row in part.tokens])
        with self._kept(parameters):
            context = self._context(parameters, taps)
        yield context
        total, slopes = None, None
        for anchors in part.rectangle.slices(self._settings.chunk):
            if stopped():
                return None
            with self._kept(parameters):
                (loss, weight), (gradient, slope) = self._of_blocks(
                    parameters, context, tokens, lengths, mx.array(anchors)
                )
            sums = Sums(loss, weight, gradient)
            total = sums if total is None else total + sums
            slopes = slope if slopes is None else tree_map(mx.add, slopes, slope)
            del gradient, slope, sums  # or their memory could not be used again
            yield total.loss, total.weight, total.gradient, slopes
        assert total is not None

        def against(parameters: Tree) -> mx.array:
            ours = self._context(parameters, taps)
            flat = zip(flatten(ours), flatten(slopes), strict=True)
            return mx.stack([(a.astype(mx.float32) * b).sum() for a, b in flat]).sum()

        with self._kept(parameters):
            through = mx.grad(against)(parameters)
        total = Sums(total.loss, total.weight, tree_map(mx.add, total.gradient, through))
        yield total.gradient
        return total

    def _kept(self, parameters: Tree) -> "Kept":
        return Kept(self._drafter, parameters)

    def _enter(self, parameters: Tree) -> None:
        """Put parameters into the model, in the dtype of the computation."""
        self._drafter.model.update(tree_map(lambda p: p.astype(self._dtype), parameters))

    def _context(self, parameters: Tree, taps: mx.array) -> list[KeysValues]:
        self._enter(parameters)
        return self._drafter.model.context(taps, 0)

    def _loss(
        self,
        parameters: Tree,
        context: list[KeysValues],
        tokens: mx.array,
        lengths: mx.array,
        anchors: mx.array,
    ) -> tuple[mx.array, mx.array]:
        """The sums of w_k CE_k and of w_k over positions of blocks (DFlash paper, section 3.3)."""
        self._enter(parameters)
        losses, counts = block_losses(self._drafter, context, tokens, lengths, anchors)
        dpace = self._settings.loss == "dpace"
        weights = dpace_weights(losses, counts) if dpace else self._decay * counts
        return (weights * losses).sum(), weights.sum()


class Kept:
    """Puts the model's own parameters back: gradients leave tracers in it."""

    def __init__(self, drafter: Drafter, parameters: Tree):
        self._drafter, self._parameters = drafter, parameters

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, *_: object) -> None:
        self._drafter.model.update(self._parameters)


def flatten(context: list[KeysValues] | None) -> list[mx.array]:
    """The keys and values of all layers, one after another."""
    return [array for both in context or [] for array in both]
