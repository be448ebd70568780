"""Linear layers of one model instance whose few rows go through our kernels.

Each stands in for one module that MLX or mlx-lm made and holds it: parameters stay where they were
(one name deeper) and attributes are the module's. Where rows must not depend on each other, layers
of experts and their gates run row by row. Latent attention's products of heads are left alone.
Knows modules, not models.
"""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.switch_layers import SwitchGLU, SwitchMLP

from dflash_mlx.kernels.dispatch import EXACT_ROWS, Kernels
from dflash_mlx.kernels.small_m_qmm import OP, Weights

ROWS = 16  # beyond, the kernel would read the weights twice, and MLX's own reads them once
SWITCHES = (SwitchGLU, SwitchMLP)
GATE = "MoEGate"  # mlx-lm's name for routers that multiply by a weight of their own


class StandIn(nn.Module):
    """A module of our instance in place of a `plain` one, whose attributes it has."""

    def __init__(self, plain: nn.Module, kernels: Kernels):
        super().__init__()
        self["plain"] = plain  # before any attribute: __getattr__ needs it
        self._kernels = kernels
        self._weights: Weights | None = None

    def __getattr__(self, name: str) -> Any:
        """Anything else is asked of the plain module."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self["plain"], name)

    def product(self, x: mx.array) -> mx.array | None:
        """x [..., K] times the module's weights, of the dtype MLX gives; None if MLX is to do it.

        That is for a single row, which MLX does as well, and for many; with exactness only for
        many.
        """
        kernels, rows = self._kernels, x.size // x.shape[-1]
        if not (1 <= rows <= EXACT_ROWS if kernels.exact else 2 <= rows <= ROWS):
            return None
        weights = self._weights
        if weights is None or not is_of(weights, self["plain"]):
            weights = self._weights = weights_of(self["plain"])
        wide = weights.dtype
        if wide is not None and wide != x.dtype:
            x = x.astype(mx.result_type(wide, x.dtype))
        return kernels.attempt(OP, x, weights)


class RowsLinear(StandIn):
    """An `nn.Linear` or `nn.QuantizedLinear`."""

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., N]."""
        out = self.product(x)
        return self["plain"](x) if out is None else out


class RowsEmbedding(StandIn):
    """An `nn.Embedding` or `nn.QuantizedEmbedding`, whose table may also be the head."""

    def __call__(self, ids: mx.array) -> mx.array:
        """Token ids [...] -> rows of the table [..., H]."""
        return self["plain"](ids)

    def as_linear(self, x: mx.array) -> mx.array:
        """x [..., H] -> logits [..., V]."""
        out = self.product(x)
        return self["plain"].as_linear(x) if out is None else out


class RowByRow(StandIn):
    """A module that treats rows alike, one row at a time, so that they have the bits of one."""

    def __call__(self, *arrays: mx.array) -> Any:
        """Arrays [..., S, D] of the same rows S -> what the module gives, [..., S, ...] each."""
        axis = arrays[0].ndim - 2
        rows = arrays[0].shape[axis]
        if not 1 < rows <= EXACT_ROWS:
            return self["plain"](*arrays)
        parts = [
            self["plain"](*(array[..., i : i + 1, :] for array in arrays)) for i in range(rows)
        ]
        if isinstance(parts[0], tuple):
            return tuple(mx.concatenate([*each], axis) for each in zip(*parts, strict=True))
        return mx.concatenate(parts, axis)


def install(model: nn.Module, kernels: Kernels) -> None:
    """Put stand-ins where `kernels` have a use for them, in this model instance only.

    Earlier ones are replaced, and taken out where there is no use any more.
    """

    def changes(_: nn.Module, __: str, child: Any) -> bool:
        return isinstance(child, nn.Module) and stand_in(child, kernels) is not child

    def change(child: nn.Module) -> nn.Module:
        return stand_in(child, kernels)

    found = model.filter_and_map(nn.Module.valid_child_filter, change, changes)
    model.update_modules(found)


def unknown(model: nn.Module) -> tuple[str, ...]:
    """The classes of linear layers in a model that have no stand-in: they quantise their input."""
    return ("QQLinear",) if any(type(m) is nn.QQLinear for m in model.modules()) else ()


def stand_in(module: nn.Module, kernels: Kernels) -> nn.Module:
    """What to run for a module: a stand-in, or the plain module itself."""
    plain = module["plain"] if isinstance(module, StandIn) else module
    kind = type(plain)
    if kernels.exact and (kind in SWITCHES or kind.__name__ == GATE):
        return RowByRow(plain, kernels)
    if not kernels.uses(OP):
        return plain
    if kind in (nn.Linear, nn.QuantizedLinear):
        return RowsLinear(plain, kernels)
    if kind in (nn.Embedding, nn.QuantizedEmbedding):
        return RowsEmbedding(plain, kernels)
    return plain


def weights_of(plain: Any) -> Weights:
    """The weights of one of MLX's linear layers or embeddings, as they are now."""
    if "scales" not in plain:
        return Weights(plain["weight"], bias=plain.get("bias"))
    return Weights(
        plain["weight"],
        plain["scales"],
        plain.get("biases"),
        plain.get("bias"),
        plain.group_size,
        plain.bits,
        plain.mode,
    )


def is_of(weights: Weights, plain: Any) -> bool:
    """Whether these are the weights of a module as they are now."""
    return (
        plain["weight"] is weights.values
        and plain.get("scales") is weights.scales
        and plain.get("biases") is weights.biases
        and plain.get("bias") is weights.bias
    )
