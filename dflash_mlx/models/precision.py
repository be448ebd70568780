"""The float type that a layer computes in, and weights quantised in memory."""

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.switch_layers import SwitchLinear


def float_type(layer: Any) -> mx.Dtype | None:
    """Of a layer's weights or scales; None if that is no float: then rows have any dtype.

    An adapter's layer has them in the layer that it wraps.
    """
    layer = layer.get("linear", layer.get("embedding", layer))
    weights = getattr(layer, "scales", None)
    if weights is None:
        weights = getattr(layer, "weight", None)  # a head may be of a class of its own
    if weights is None or not mx.issubdtype(weights.dtype, mx.floating):
        return None
    return weights.dtype


def cast(rows: mx.array, kind: mx.Dtype | None) -> mx.array:
    return rows if kind is None else rows.astype(kind)


def is_quantised(model: nn.Module) -> bool:
    return any("scales" in module for module in model.modules())


def quantise(drafter: nn.Module, bits: int) -> None:
    """Quantise a drafter's linear layers and experts in place; 0 bits leave them alone."""
    if bits:
        nn.quantize(drafter, group_size=64, bits=bits, class_predicate=quantisable)


def quantisable(path: str, module: nn.Module) -> bool:
    """Whether a module is a linear layer, also of experts, with rows of whole groups of 64."""
    return isinstance(module, nn.Linear | SwitchLinear) and module.weight.shape[-1] % 64 == 0


def bits_of(drafter: nn.Module) -> int:
    """The bits of a drafter's quantised layers; 0 if none is quantised."""
    return next((m.bits for m in drafter.modules() if isinstance(m, nn.QuantizedLinear)), 0)
