"""Modules and caches for MLX's CPU backend that all layers of a forward pass share.

On a GPU a rotary embedding or a causal mask is part of a kernel. On the CPU each layer computes its
own by small operations; in a narrow model these are a third of all operations. Here the layers
share one `nn.RoPE` table and one mask, with the same bits. Feed-forward modules get a faster SwiGLU
of no lower precision (`swiglu`).
"""

import math
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache

from .norm import CpuNorm
from .swiglu import CpuSwiGLU, is_swiglu


def on_cpu() -> bool:
    """Whether MLX computes on the CPU by default."""
    return mx.default_device() == mx.Device(mx.cpu)


def use_cpu_modules(model: nn.Module) -> None:
    """Convert a model to float32 and replace modules by CPU modules, in place. No-op on a GPU.

    Several rows then give other bits than one row; exact mode calls `restore_modules`.
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
                module[name] = CpuSwiGLU(child)
            elif type(child) is nn.RMSNorm:
                child.__class__ = CpuNorm  # this object's, with the same bits


def restore_modules(model: nn.Module) -> None:
    """Put the original modules back, in place. Training and exact mode need them."""
    norm: Any = nn.RMSNorm
    for module in model.modules():
        for name, child in module.children().items():
            if isinstance(child, SharedRope | CpuSwiGLU):
                module[name] = child._original
            elif type(child) is CpuNorm:
                child.__class__ = norm


def use_cpu_caches(layers: list[Any]) -> list[Any]:
    """Replace each `KVCache` of a model's empty caches by a `MaskedCache`. No-op on a GPU."""
    if not on_cpu():
        return layers
    return [MaskedCache() if type(layer) is KVCache else layer for layer in layers]


class MaskedCache(KVCache):
    """A `KVCache` whose causal mask is an array, which all layers of a forward pass share."""

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        """The causal mask of N new tokens, bool [N, offset + N]; None for N = 1 without window."""
        if N == 1 and window_size is None:
            return None
        return create_causal_mask(N, self.offset, window_size=window_size)


class SharedRope(nn.Module):
    """`nn.RoPE` (half-split) for all layers of one model; keeps the last table of cos and sin."""

    def __init__(self, rope: nn.RoPE):
        super().__init__()
        self._original = rope
        half = rope.dims // 2
        self._rates = mx.exp(
            mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(rope.base) / half)
        )
        self._at: tuple[int, int] | None = None
        self._depths: mx.array | None = None
        self._offsets: mx.array | None = None
        self._starts: mx.array | None = None
        self._table: tuple[mx.array, mx.array] = (self._rates, self._rates)

    def shares(self, x: mx.array, offset: int | mx.array) -> bool:
        """Whether the table applies: one offset, or one a batch element; all of x rotated."""
        one = isinstance(offset, int) or offset.shape == (len(x),)
        return one and x.shape[-1] == self._original.dims

    def __call__(
        self, x: mx.array, offset: int | mx.array = 0, depths: mx.array | None = None
    ) -> mx.array:
        """Rotate x [..., L, d]. Row i has the position offset + i, or offset + depths[i].

        `depths` is int [L].
        """
        if not self.shares(x, offset):
            assert depths is None
            return self._original(x, offset=offset)  # pyright: ignore[reportArgumentType]
        length = x.shape[-2]
        if not isinstance(offset, int):
            assert depths is None
            if self._offsets is not offset:
                self._offsets, self._starts = offset, offset[:, None, None] + mx.arange(length)
            offset, depths = 0, self._starts
        at = (offset, length)
        if at != self._at or depths is not self._depths:
            steps = mx.arange(at[1]) if depths is None else depths
            positions = (offset + steps).astype(mx.float32) * self._original.scale
            angles = positions[..., None] * self._rates
            cos, sin = mx.cos(angles), mx.sin(angles)
            self._at, self._depths = at, depths
            self._table = mx.concatenate([cos, cos], -1), mx.concatenate([-sin, sin], -1)
        cos, sin = self._table
        first, second = mx.split(x, 2, axis=-1)
        return x * cos + mx.concatenate([second, first], axis=-1) * sin
