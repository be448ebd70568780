"""The shapes at which a loaded pair runs kernels, from its configs and modules."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from dflash_mlx.device import device_info
from dflash_mlx.kernels.shapes import (
    AttentionShape,
    ExpertShape,
    GatedDeltaShape,
    LinearShape,
    SelectorShape,
    Shapes,
)
from dflash_mlx.models.linear import (
    EMBEDDINGS,
    EXPERTS,
    LINEARS,
    TAKEN,
    Format,
    has_grouped_experts,
)

if TYPE_CHECKING:
    from dflash_mlx.drafters.base import Drafter
    from dflash_mlx.models.target import Target


DEFAULT_VERIFY_ROWS = 16  # without a drafter


def shapes_of(target: "Target", drafter: "Drafter | None") -> Shapes:
    """The shapes of a loaded target and drafter; evaluates nothing."""
    selector = None
    models = [target.model, *([drafter.model] if drafter and drafter.model else [])]
    rows = drafter.block_size if drafter else DEFAULT_VERIFY_ROWS
    if drafter and (dflash2 := getattr(drafter.config, "dflash2", None)):
        model: Any = drafter.model
        codebook = model.selector.predecessor_codebook
        selector = SelectorShape(
            dflash2.selector_top_k, dflash2.selector_rank, dtype_name(codebook.dtype)
        )
    return Shapes(
        vocab=target.vocab_size,
        rows=rows,
        dtype=dtype_name(target.dtype),
        attention=tuple(AttentionShape(*shape) for shape in dict.fromkeys(target.attention_shapes)),
        delta=gated_delta_shape(target.config, target.model),
        selector=selector,
        products=product_shapes(models),
        experts=expert_shapes(target.config, target.model),
        exact=target.kernels.exact,
        architecture=device_info().get("architecture", ""),
    )


def gated_delta_shape(config: dict[str, Any], model: nn.Module) -> GatedDeltaShape | None:
    names = ("linear_num_key_heads", "linear_num_value_heads")
    keys, values, key_dim, value_dim = (
        config.get(name) or 0 for name in (*names, "linear_key_head_dim", "linear_value_head_dim")
    )
    net: Any = next((module for module in model.modules() if "A_log" in module), None)
    if net is None or not keys * values * key_dim * value_dim:
        return None
    window = (config.get("linear_conv_kernel_dim") or 4) - 1
    channels = 2 * keys * key_dim + values * value_dim
    types = dtype_name(net.A_log.dtype), dtype_name(net.dt_bias.dtype)
    return GatedDeltaShape(keys, values, key_dim, value_dim, window, channels, *types)


def product_shapes(models: Sequence[nn.Module]) -> tuple[tuple[LinearShape, int], ...]:
    """All sizes of linear layers with their counts, including an embedding used as the head.

    models: a target's, and its drafter's.
    """
    counts = Counter[LinearShape]()
    for place, model in enumerate(models):
        modules = dict(model.named_modules())
        tied = place == 0 and not any(name.endswith("lm_head") for name in modules)
        counts.update(
            matrix_shape(module)
            for module in modules.values()
            if isinstance(module, LINEARS) or (tied and type(module) in EMBEDDINGS)
        )
    return tuple(counts.items())


def expert_shapes(config: dict[str, Any], model: nn.Module) -> tuple[ExpertShape, ...]:
    taken = next((config[name] for name in TAKEN if config.get(name)), 0)
    layers: list[Any] = [module for module in model.modules() if has_grouped_experts(module)]
    found = (
        ExpertShape(layer.up_proj.num_experts, taken, *(matrix_shape(layer[n]) for n in EXPERTS))
        for layer in layers
    )
    return tuple(dict.fromkeys(found)) if taken else ()


def matrix_shape(module: Any) -> LinearShape:
    form = Format.of(module)
    outputs, inputs = form.shape[-2:]
    if form.bits:
        inputs = inputs * 32 // form.bits
    dtype = dtype_name(module["scales" if form.bits else "weight"].dtype)
    mode = form.mode if form.bits else ""
    return LinearShape(outputs, inputs, form.bits, form.group, mode, dtype, "bias" in form.names)


def dtype_name(dtype: mx.Dtype) -> str:
    """A dtype's name in `mlx.core`, such as "bfloat16"."""
    return str(dtype).rpartition(".")[2]
