"""The rotary embedding of a drafter."""

import math
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.rope_utils import initialize_rope

from .entries import LayerConfig


def make_rope(config: LayerConfig, *, interleaved: bool = False) -> Any:
    """The module that rotates [B, heads, T, d] from an `offset` on.

    interleaved: the two numbers of a pair are neighbours, not half a head apart. Raises KeyError or
    ValueError for a `rope_scaling` that lacks a key or is of an unknown type.
    """
    scaling = config.rope_scaling or {}
    kind = scaling.get("type") or scaling.get("rope_type")
    ignored = not scaling.get("truncate", True) or scaling.get("attention_factor") is not None
    if kind == "yarn" and ignored:
        return Yarn(config.head_dim, config.rope_theta, scaling, interleaved=interleaved)
    return initialize_rope(
        config.head_dim,
        base=config.rope_theta,
        traditional=interleaved,
        scaling_config=config.rope_scaling,
        max_position_embeddings=config.max_position_embeddings,
    )


class Yarn(nn.Module):
    """YaRN (arXiv 2309.00071), with the settings of transformers."""

    def __init__(
        self, dims: int, base: float, scaling: dict[str, Any], *, interleaved: bool = False
    ):
        """`dims`: of a head. Raises KeyError without `factor` or the original context length."""
        super().__init__()
        self.dims = dims
        self.interleaved = interleaved
        factor = scaling["factor"]
        context = scaling["original_max_position_embeddings"]

        def dimension(rotations: float) -> float:
            """The pair of dimensions that makes so many rotations in the original context."""
            return dims * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low = dimension(scaling.get("beta_fast") or 32)
        high = dimension(scaling.get("beta_slow") or 1)
        if scaling.get("truncate", True):
            low = math.floor(low)
            high = math.ceil(high)
        low = max(low, 0)
        high = min(high, dims - 1)
        high += 0.001 if low == high else 0.0
        share = mx.clip((mx.arange(dims // 2, dtype=mx.float32) - low) / (high - low), 0, 1)
        periods = base ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims)
        self._freqs = periods / (share / factor + (1 - share))
        self._scale = attention_factor(scaling)

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """Rotate x [B, heads, T, d], whose first row is at `offset`, or at [B] offsets."""
        if self._scale != 1.0:
            x = x * self._scale
        return mx.fast.rope(
            x,
            self.dims,
            traditional=self.interleaved,
            base=None,
            scale=1.0,
            offset=offset,
            freqs=self._freqs,
        )


def attention_factor(scaling: dict[str, Any]) -> float:
    """The factor of rotated queries and keys: the config's own, or YaRN's for this `factor`."""
    own = scaling.get("attention_factor")
    if own is not None:
        return float(own)

    def by_length(weight: float) -> float:
        return 1.0 + (0.1 * weight * math.log(scaling["factor"]) if scaling["factor"] > 1 else 0.0)

    weight = scaling.get("mscale")
    weight_all = scaling.get("mscale_all_dim")
    if weight and weight_all:
        return by_length(weight) / by_length(weight_all)
    return by_length(1.0)
