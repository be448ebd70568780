"""The shapes at which a loaded pair runs kernels, from its configs and modules."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from dflash_mlx.device import device_info
from dflash_mlx.models.linear import EXPERTS, TAKEN, Format, has_grouped_experts

if TYPE_CHECKING:
    from dflash_mlx.drafters.base import Drafter
    from dflash_mlx.models.target import Target


DEFAULT_VERIFY_ROWS = 16  # without a drafter
CONTEXT = 1024  # tokens in the cache when attention is timed


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The attention layers of one type; `window` 0 is full attention."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class GatedDeltaShape:
    """Gated DeltaNet layers; `window` and `channels` are the convolution's cached inputs.

    `decay` and `bias` name the dtypes of A_log and dt_bias.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    window: int
    channels: int
    decay: str = "float32"
    bias: str = "bfloat16"


@dataclass(frozen=True, slots=True)
class SelectorShape:
    """DFlash 2's candidate selector; `dtype` names the dtype of its codebooks."""

    candidates: int
    rank: int
    dtype: str


@dataclass(frozen=True, slots=True)
class LinearShape:
    """Weights [outputs, inputs] of linear layers.

    `bits` 0: not quantised. `dtype` names the dtype of the weights, or of the scales. `biased`: a
    bias is added.
    """

    outputs: int
    inputs: int
    bits: int
    group: int
    mode: str
    dtype: str
    biased: bool = False


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A layer of `experts`, each of three matrices, of which a row takes `taken`."""

    experts: int
    taken: int
    up: LinearShape
    gate: LinearShape
    down: LinearShape


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of a pair: a verify pass of `rows` rows, logits of `vocab` tokens, its layers.

    `dtype` names the dtype of the hidden states. `linears` has one entry for each combination of
    bits, group, mode, dtype and bias, at its most frequent size; the most frequent combination is
    last. `products` and `experts` have all sizes, each with its number of layers. `exact`: a row
    must have the same bits as when it is computed alone. `architecture` is the GPU's, as MLX names
    it.
    """

    vocab: int
    rows: int
    dtype: str
    attention: tuple[AttentionShape, ...] = ()
    delta: GatedDeltaShape | None = None
    selector: SelectorShape | None = None
    linears: tuple[LinearShape, ...] = ()
    products: tuple[tuple[LinearShape, int], ...] = ()
    experts: tuple[tuple[ExpertShape, int], ...] = ()
    context: int = CONTEXT
    exact: bool = False
    architecture: str = ""

    @classmethod
    def of(cls, target: "Target", drafter: "Drafter | None") -> "Shapes":
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
        return cls(
            vocab=target.vocab_size,
            rows=rows,
            dtype=dtype_name(target.dtype),
            attention=tuple(AttentionShape(*shape) for shape in target.attention_shapes),
            delta=gated_delta_shape(target.config, target.model),
            selector=selector,
            linears=linear_shapes(models),
            products=product_shapes(models),
            experts=expert_shapes(target.config, target.model),
            exact=target.kernels.exact,
            architecture=device_info().get("architecture", ""),
        )


# For operations that a model does not use: sizes with few common factors.
GENERIC = Shapes(
    vocab=4103,
    rows=7,
    dtype="bfloat16",
    attention=(AttentionShape(6, 2, 64, 9, sinks=True), AttentionShape(2, 1, 128)),
    delta=GatedDeltaShape(2, 4, 64, 33, window=3, channels=388),
    selector=SelectorShape(13, 70, "bfloat16"),
    linears=(
        LinearShape(70, 384, 0, 0, "", "bfloat16"),
        *(LinearShape(70, 384, bits, 64, "affine", "bfloat16", bits == 8) for bits in (5, 6, 8)),
        LinearShape(70, 384, 4, 32, "mxfp4", "uint8", biased=True),
        LinearShape(70, 384, 4, 64, "affine", "bfloat16"),
    ),
    experts=(
        (
            ExpertShape(
                5,
                3,
                LinearShape(64, 384, 4, 64, "affine", "float32"),
                LinearShape(64, 384, 4, 64, "affine", "float32", biased=True),
                LinearShape(70, 64, 4, 32, "mxfp4", "uint8", biased=True),
            ),
            1,
        ),
    ),
    context=300,
    architecture="applegpu_g16g",
)


def gated_delta_shape(config: dict[str, Any], model: nn.Module) -> GatedDeltaShape | None:
    """The Gated DeltaNet layers of a model with this config; None if it has none."""
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


def linear_shapes(models: Sequence[nn.Module]) -> tuple[LinearShape, ...]:
    """The linear layers of models, see `Shapes.linears`."""
    modules = (module for model in models for module in model.modules())
    counts = Counter(filter(None, map(linear_shape, modules)))
    kinds: dict[tuple[Any, ...], tuple[int, LinearShape]] = {}
    for linear, count in sorted(counts.items(), key=lambda item: item[1]):
        kind = (linear.bits, linear.group, linear.mode, linear.dtype, linear.biased)
        total = kinds[kind][0] if kind in kinds else 0
        kinds[kind] = total + count, linear
    return tuple(linear for _, linear in sorted(kinds.values(), key=lambda entry: entry[0]))


def product_shapes(models: Sequence[nn.Module]) -> tuple[tuple[LinearShape, int], ...]:
    """All sizes of linear layers with their counts, including an embedding used as the head.

    models: a target's, and its drafter's.
    """
    counts = Counter[LinearShape | None]()
    for place, model in enumerate(models):
        modules = dict(model.named_modules())
        tied = place == 0 and not any(name.endswith("lm_head") for name in modules)
        counts.update(linear_shape(module, tables=tied) for module in modules.values())
    return tuple((shape, count) for shape, count in counts.items() if shape is not None)


def linear_shape(module: nn.Module, *, tables: bool = False) -> LinearShape | None:
    """The shape of an MLX linear layer, with `tables` also of an embedding; None for others."""
    if isinstance(module, nn.QuantizedLinear) or (tables and type(module) is nn.QuantizedEmbedding):
        bits = module.bits
        group = module.group_size
        scales = module.scales
        sizes = module.weight.shape[0], module.weight.shape[1] * 32 // bits
        packed = bits, group, module.mode, dtype_name(scales.dtype)
        return LinearShape(*sizes, *packed, biased="bias" in module)
    if isinstance(module, nn.Linear) or (tables and type(module) is nn.Embedding):
        rows, columns = module.weight.shape
        dtype = dtype_name(module.weight.dtype)
        return LinearShape(rows, columns, 0, 0, "", dtype, biased="bias" in module)
    return None


def expert_shapes(config: dict[str, Any], model: nn.Module) -> tuple[tuple[ExpertShape, int], ...]:
    """All sizes of layers of experts that a kernel may compute, with their counts."""
    taken = next((config[name] for name in TAKEN if config.get(name)), 0)
    layers: list[Any] = [module for module in model.modules() if has_grouped_experts(module)]
    if not taken:
        return ()
    counts = Counter[ExpertShape]()
    for layer in layers:
        up, gate, down = (switch_shape(layer[name]) for name in EXPERTS)
        counts[ExpertShape(layer.up_proj.num_experts, taken, up, gate, down)] += 1
    return tuple(counts.items())


def switch_shape(module: Any) -> LinearShape:
    """The shape of one expert's matrix of a layer of experts of mlx-lm."""
    form = Format.of(module)
    dtype = dtype_name(module["scales" if form.bits else "weight"].dtype)
    sizes = module.output_dims, module.input_dims
    mode = form.mode if form.bits else ""
    return LinearShape(*sizes, form.bits, form.group, mode, dtype, biased="bias" in form.names)


def dtype_name(dtype: mx.Dtype) -> str:
    """A dtype's name in `mlx.core`, such as "bfloat16"."""
    return str(dtype).rpartition(".")[2]
