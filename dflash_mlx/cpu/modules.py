"""Modules and caches for MLX's CPU backend that all layers of a forward pass share.

On a GPU a rotary embedding or a causal mask is part of a kernel. On the CPU each layer computes its
own by small operations; in a narrow model these are a third of all operations. Here the layers
share one `nn.RoPE` table and one mask, with the same bits. Feed-forward modules get a faster SwiGLU
of no lower precision (`swiglu`).
"""

import math
from types import FunctionType
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.activations import swiglu as mlx_swiglu
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache
from mlx_lm.models.llama import MLP

from dflash_mlx.kernels.dispatch import on_cpu

# RMSNorm of a few rows in fewer operations, for MLX's CPU backend.

FEW = 16 * 512  # elements


@mx.compile
def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """x [..., D] normed and times weight [D]."""
    return mx.fast.rms_norm(x, weight, eps)


class CpuNorm(nn.RMSNorm):
    """Replaces the class of an `nn.RMSNorm`, which keeps its parameters and attributes."""

    def __call__(self, x: mx.array) -> mx.array:
        """[..., D] -> [..., D], with the bits of MLX."""
        few = x.size <= FEW and x.dtype == mx.float32
        return (rms_norm if few else mx.fast.rms_norm)(x, self["weight"], self.eps)


# exp for MLX's CPU backend, whose own is not vectorised on x86.

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.693359375  # few bits
LN2_LOW = -2.12194440e-4  # the sum of both is ln 2
ROUND = 1.5 * 2**23 + 127  # x + ROUND holds round(x) plus the exponent bias in its low bits
# Minimax polynomial of e^r for |r| <= ln(2) / 2, relative error 8e-8; highest power first.
COEFFICIENTS = (0.008297583569, 0.0419158768, 0.1666757836, 0.4999889047, 0.9999996901, 1.000000072)


@mx.compile
def _parts(x: mx.array) -> tuple[mx.array, mx.array]:
    """x as r + k ln(2): r, and k in the low bits of a float."""
    shifted = x * LOG2_E + ROUND
    whole = shifted - ROUND
    return (x - whole * LN2_HIGH) - whole * LN2_LOW, shifted


@mx.compile
def _power(rest: mx.array) -> mx.array:
    power = rest * COEFFICIENTS[0] + COEFFICIENTS[1]
    for factor in COEFFICIENTS[2:]:
        power = power * rest + factor
    return power


@mx.compile
def _scaled(power: mx.array, shifted: mx.array) -> mx.array:
    two = mx.view(mx.left_shift(mx.view(shifted, mx.int32), 23), mx.float32)  # 2^k
    return power * two


def exp(x: mx.array) -> mx.array:
    """e^x, float32, of x within -87 and 87.

    It is compiled in three parts: compiled as one, large arrays take two to five times as long.
    """
    rest, shifted = _parts(x)
    return _scaled(_power(rest), shifted)


def softmax(x: mx.array) -> mx.array:
    """Softmax over the last axis of float32 numbers, for MLX's CPU backend.

    Differences from the maximum are clipped at -87, where e^x is about 1e-38.
    """
    shares: Any = _softmax(x)
    return shares


@mx.custom_function
def _softmax(x: mx.array) -> mx.array:
    shares = exp(mx.maximum(x - mx.max(x, axis=-1, keepdims=True), -87.0))
    return shares / mx.sum(shares, axis=-1, keepdims=True)


@_softmax.vjp
def _softmax_slope(primal: mx.array, cotangent: mx.array, shares: mx.array) -> mx.array:
    slope = shares * cotangent
    return slope - shares * mx.sum(slope, axis=-1, keepdims=True)


# SwiGLU for MLX's CPU backend, whose exponential is not vectorised.


@mx.compile
def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up, float32, arrays of one shape. Faster than MLX for several rows only."""
    return gate * up / (1 + exp(mx.clip(-gate, -87.0, 87.0)))


class CpuSwiGLU(nn.Module):
    """Replaces a SwiGLU module (see `is_swiglu`); shares its projections."""

    def __init__(self, original: Any):
        super().__init__()
        self._original = original
        self.gate_proj = original.gate_proj
        self.up_proj = original.up_proj
        self.down_proj = original.down_proj

    def __call__(self, x: mx.array) -> mx.array:
        """[..., S, H] -> [..., S, H]. One row (S = 1) has the bits of MLX."""
        gate = self.gate_proj(x)
        up = self.up_proj(x)
        fast = x.shape[-2] > 1 and gate.dtype == mx.float32
        return self.down_proj((swiglu if fast else mlx_swiglu)(gate, up))


def is_swiglu(module: nn.Module) -> bool:
    """Whether a module computes exactly down(silu(gate(x)) * up(x)): it has the code of Llama's."""
    call: Any = vars(type(module)).get("__call__")
    known: Any = MLP.__call__
    return (
        isinstance(call, FunctionType)
        and call.__code__.co_code == known.__code__.co_code
        and call.__code__.co_names == known.__code__.co_names
        and call.__globals__["swiglu"] is mlx_swiglu
    )


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
                child.__class__ = CpuNorm  # of this object only, with the same bits


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
        """Whether the table applies: one offset, or one per batch element, and all of d rotated."""
        per_element = isinstance(offset, int) or offset.shape == (len(x),)
        return per_element and x.shape[-1] == self._original.dims

    def __call__(
        self, x: mx.array, offset: int | mx.array = 0, depths: mx.array | None = None
    ) -> mx.array:
        """Rotate x [..., L, d]: row i is at offset + i, or at offset + depths[i] (int [L])."""
        if not self.shares(x, offset):
            assert depths is None
            return self._original(x, offset=offset)  # pyright: ignore[reportArgumentType]
        length = x.shape[-2]
        if not isinstance(offset, int):
            assert depths is None
            if self._offsets is not offset:
                self._offsets = offset
                self._starts = offset[:, None, None] + mx.arange(length)
            offset = 0
            depths = self._starts
        at = (offset, length)
        if at != self._at or depths is not self._depths:
            steps = mx.arange(at[1]) if depths is None else depths
            positions = (offset + steps).astype(mx.float32) * self._original.scale
            angles = positions[..., None] * self._rates
            cos = mx.cos(angles)
            sin = mx.sin(angles)
            self._at = at
            self._depths = depths
            self._table = mx.concatenate([cos, cos], -1), mx.concatenate([-sin, sin], -1)
        cos, sin = self._table
        first, second = mx.split(x, 2, axis=-1)
        return x * cos + mx.concatenate([second, first], axis=-1) * sin
