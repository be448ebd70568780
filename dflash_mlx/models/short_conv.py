"""Short convolutions of LFM2 whose passes can be undone row by row, for one or several sequences.

Stands in for the layers' modules on one model instance; mlx-lm's classes stay as they are.
"""

from typing import Any

import mlx.core as mx
from mlx import nn

from .cache.recurrent import RecurrentCache, Window
from .gated_delta import convolve
from .packed import PackedCache
from .parts import stand_in

PARTS = ("in_proj", "conv", "out_proj")


class TapedConv(nn.Module):
    """Replaces a ShortConv module: the same results, and a tape of the pass if wanted."""

    def __init__(self, net: Any):
        super().__init__()
        self.net = net

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any = None
    ) -> mx.array:
        """Rows [1, S, H] -> [1, S, H]; runs mlx-lm's module without a cache of ours.

        A packed pass computes its projections once, and its convolutions one sequence at a time.
        """
        net: Any = self.net
        if not isinstance(cache, PackedCache | RecurrentCache):
            return net(inputs, mask, cache)
        before, after, x = mx.split(net.in_proj(inputs), 3, axis=-1)
        fed = before * x
        if isinstance(cache, PackedCache):
            parts = zip(cache.packed.split(fed, axis=1), cache.members, strict=True)
            out = mx.concatenate([self._convolved(*part) for part in parts], axis=1)
        else:
            out = self._convolved(fed, cache)
        return net.out_proj(after * out)

    def _convolved(self, fed: mx.array, cache: RecurrentCache) -> mx.array:
        """The convolution [1, S, H] of one sequence's gated rows [1, S, H], and the tape."""
        cache.begin()
        net: Any = self.net
        held = net.L_cache - 1
        count = fed.shape[1]
        window = cache[0]
        if window is None:
            window = mx.zeros((1, held, fed.shape[2]), dtype=fed.dtype)
        inputs = mx.concatenate([window, fed], axis=1)
        tree = cache.tree
        out = convolve(net.conv, inputs, tree.windows(net.L_cache) if tree else None)
        if tree is None:
            cache[0] = mx.contiguous(inputs[:, count:])
        if cache.taping:
            cache.remember(Window(inputs, held))
        cache.advance(count)
        return out


def tape_convolutions(layers: list[Any]) -> set[int]:
    """Put a `TapedConv` in place of every ShortConv module of one model's layers.

    Returns the ids of mlx-lm's modules that remember a tape now.
    """

    def make(net: Any) -> TapedConv | None:
        is_short = hasattr(net, "L_cache") and all(part in net for part in PARTS)
        return TapedConv(net) if is_short else None

    return stand_in(layers, TapedConv, make)
