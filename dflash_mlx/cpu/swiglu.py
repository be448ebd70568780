"""SwiGLU for MLX's CPU backend, whose exponential is not vectorised.

In a narrow model x * sigmoid(x) * y costs more than the matrix products around it; with the exp of
`exponential` it is several times faster for the rows of a block.
"""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.activations import swiglu as mlx_swiglu

from .exponential import exp

# Classes whose `__call__` is exactly down(silu(gate(x)) * up(x)).
SWIGLU_LAYERS = frozenset(
    {
        "dflash_mlx.drafter.model.MLP",
        "mlx_lm.models.llama.MLP",
        "mlx_lm.models.qwen3.MLP",
        "mlx_lm.models.qwen3_moe.MLP",
        "mlx_lm.models.qwen3_next.Qwen3NextMLP",
    }
)


@mx.compile
def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up, float32, arrays of one shape. Faster than MLX for several rows only."""
    return gate * up / (1 + exp(mx.clip(-gate, -87.0, 87.0)))


class CpuSwiGLU(nn.Module):
    """Replaces a module of a class in `SWIGLU_LAYERS`; shares its projections."""

    def __init__(self, original: Any):
        super().__init__()
        self._original = original
        self.gate_proj, self.up_proj = original.gate_proj, original.up_proj
        self.down_proj = original.down_proj

    def __call__(self, x: mx.array) -> mx.array:
        """[..., S, H] -> [..., S, H]. One row (S = 1) has the bits of MLX."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        fast = x.shape[-2] > 1 and gate.dtype == mx.float32
        return self.down_proj((swiglu if fast else mlx_swiglu)(gate, up))


def is_swiglu(module: nn.Module) -> bool:
    """Whether `CpuSwiGLU` can replace a module."""
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}" in SWIGLU_LAYERS
