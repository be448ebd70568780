"""What MLX's CPU backend would do again in every layer, done once a pass.

On a GPU a rotary embedding or a causal mask is part of a kernel. On the CPU every layer builds its
own from small operations, a third of all that a narrow model runs. Models that this process owns
get their `nn.RoPE` modules replaced by one that keeps the last table, and caches that make the mask
once for all layers, bitwise the same; and feed-forward modules that are faster and no less exact
(swiglu.py). Knows no model.
"""

import math
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache

from .swiglu import BlockMLP, is_swiglu


def on_cpu() -> bool:
    """Whether MLX computes on the CPU by default."""
    return mx.default_device() == mx.Device(mx.cpu)


def settle(model: nn.Module) -> None:
    """Where MLX computes on the CPU: float32, which is fast there, and modules that suit it.

    They compute several rows otherwise than one: not for exactness (`unsettle`).
    """
    if not on_cpu():
        return
    model.set_dtype(mx.float32)
    tables: dict[tuple[int, float, float], SharedRope] = {}
    for module in model.modules():
        for name, child in module.children().items():
            if type(child) is nn.RoPE and not child.traditional:
                kind = (child.dims, child.base, child.scale)
                module[name] = tables.setdefault(kind, SharedRope(child))
            elif is_swiglu(child):
                module[name] = BlockMLP(child)


def unsettle(model: nn.Module) -> None:
    """Give a model its plain modules back, as training and exactness need them."""
    for module in model.modules():
        for name, child in module.children().items():
            if isinstance(child, SharedRope | BlockMLP):
                module[name] = child._plain


def lighten(layers: list[Any]) -> list[Any]:
    """Empty caches of one model; on the CPU its plain ones make an array of a mask."""
    if not on_cpu():
        return layers
    return [MaskedCache() if type(layer) is KVCache else layer for layer in layers]


class MaskedCache(KVCache):
    """A `KVCache` whose causal mask is an array, which all layers of a pass then share."""

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        """The mask of N new tokens, bool [N, offset + N]; None for one token that sees all."""
        if N == 1 and window_size is None:
            return None
        return create_causal_mask(N, self.offset, window_size=window_size)


class SharedRope(nn.Module):
    """`nn.RoPE` (half-split) for all layers of one model, with the table of the last positions."""

    def __init__(self, rope: nn.RoPE):
        super().__init__()
        self._plain = rope
        half = rope.dims // 2
        self._rates = mx.exp(
            mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(rope.base) / half)
        )
        self._at: tuple[int, int] | None = None
        self._depths: mx.array | None = None
        self._table: tuple[mx.array, mx.array] = (self._rates, self._rates)

    def shares(self, x: mx.array, offset: int | mx.array) -> bool:
        """Whether the table is used: not for arrays of offsets, nor where part of x is turned."""
        return isinstance(offset, int) and x.shape[-1] == self._plain.dims

    def __call__(
        self, x: mx.array, offset: int | mx.array = 0, depths: mx.array | None = None
    ) -> mx.array:
        """Rotate x [..., L, d] that starts at position `offset`.

        With `depths` [L] the rows stand that far behind `offset`, instead of one after another.
        """
        if not self.shares(x, offset):
            assert depths is None
            return self._plain(x, offset=offset)  # pyright: ignore[reportArgumentType]
        assert isinstance(offset, int)
        at = (offset, x.shape[-2])
        if at != self._at or depths is not self._depths:
            steps = mx.arange(at[1]) if depths is None else depths
            positions = (offset + steps).astype(mx.float32) * self._plain.scale
            angles = positions[:, None] * self._rates
            cos, sin = mx.cos(angles), mx.sin(angles)
            self._at, self._depths = at, depths
            self._table = mx.concatenate([cos, cos], -1), mx.concatenate([-sin, sin], -1)
        cos, sin = self._table
        first, second = mx.split(x, 2, axis=-1)
        return x * cos + mx.concatenate([second, first], axis=-1) * sin
