"""The sizes at which a loaded pair would run kernels. Knows configs and modules, no operation."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from dflash_mlx.hub.memory import layer_kinds, row_width

if TYPE_CHECKING:
    from dflash_mlx.pair import Pair

ROWS = 16  # of a verify where there is no drafter to say
CONTEXT = 1024  # tokens before a block, where attention is timed


@dataclass(frozen=True, slots=True)
class Attention:
    """One kind of attention layers; a `window` of 0 is none."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class Delta:
    """Gated DeltaNet layers: heads and their sizes, how many layers, the convolution's inputs."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    layers: int
    window: int
    channels: int


@dataclass(frozen=True, slots=True)
class Selector:
    """DFlash 2's candidate selector; `dtype` is that of its codebooks, by name."""

    candidates: int
    rank: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Linear:
    """One kind of weights [outputs, inputs]; 0 `bits`: not packed. `dtype` names that of scales."""

    outputs: int
    inputs: int
    bits: int
    group: int
    mode: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a pair needs: a verify of `rows` rows of logits of `vocab` tokens, and its layers.

    `dtype` is the name of the hidden states' dtype. `linears` has of each kind of weights the most
    frequent size, the most frequent kind last. `exact`: a row is to have the bits of a row alone.
    """

    vocab: int
    rows: int
    dtype: str
    attention: tuple[Attention, ...] = ()
    delta: Delta | None = None
    selector: Selector | None = None
    linears: tuple[Linear, ...] = ()
    context: int = CONTEXT
    exact: bool = False

    @classmethod
    def of(cls, pair: "Pair") -> "Shapes":
        """Those of a loaded pair; reads its configs, evaluates nothing."""
        target, drafter, selector = pair.target, pair.drafter, None
        rows = drafter.config.block_size if drafter else ROWS
        if drafter and (more := drafter.config.dflash2):
            assert drafter.model.selector is not None
            codebook = drafter.model.selector.predecessor_codebook
            selector = Selector(more.selector_top_k, more.selector_rank, name_of(codebook.dtype))
        return cls(
            vocab=target.vocab_size,
            rows=rows,
            dtype=name_of(target.embed(mx.array([0])).dtype),
            attention=attention_of(target.config),
            delta=delta_of(target.config),
            selector=selector,
            linears=linears_of(target.model),
            exact=target.kernels.exact,
        )


# Where a model has no such layers: sizes of which nothing is a multiple of much.
GENERIC = Shapes(
    vocab=4103,
    rows=7,
    dtype="bfloat16",
    attention=(Attention(6, 2, 64, 9, sinks=True), Attention(2, 1, 128)),
    delta=Delta(2, 4, 64, 33, layers=2, window=3, channels=7),
    selector=Selector(13, 70, "bfloat16"),
    linears=(
        Linear(70, 384, 0, 0, "", "bfloat16"),
        *(Linear(70, 384, bits, 64, "affine", "bfloat16") for bits in (5, 6, 8)),
        Linear(70, 384, 4, 32, "mxfp4", "uint8"),
        Linear(70, 384, 4, 64, "affine", "bfloat16"),
    ),
    context=300,
)


def attention_of(config: dict[str, Any]) -> tuple[Attention, ...]:
    """The kinds of a config's attention layers; none where keys and values are one (MLA)."""
    if config.get("kv_lora_rank"):
        return ()
    heads, found = config["num_attention_heads"], []
    for kind in dict.fromkeys(layer_kinds(config)):
        if kind == "linear_attention":
            continue
        dim = config.get("head_dim") or config["hidden_size"] // heads
        if kind == "full_attention":
            dim = config.get("global_head_dim") or dim
        kv_heads = row_width(config, kind) // (2 * dim)
        window = (config.get("sliding_window") or 0) if kind == "sliding_attention" else 0
        sinks = config["model_type"] == "gpt_oss"
        found.append(Attention(heads, kv_heads, dim, window, sinks))
    return tuple(found)


def delta_of(config: dict[str, Any]) -> Delta | None:
    """The Gated DeltaNet layers of a config, if it has any."""
    layers = layer_kinds(config).count("linear_attention")
    names = ("linear_num_key_heads", "linear_num_value_heads")
    keys, values, key_dim, value_dim = (
        config.get(name) or 0 for name in (*names, "linear_key_head_dim", "linear_value_head_dim")
    )
    if not layers * keys * values * key_dim * value_dim:
        return None
    window = (config.get("linear_conv_kernel_dim") or 4) - 1
    channels = 2 * keys * key_dim + values * value_dim
    return Delta(keys, values, key_dim, value_dim, layers, window, channels)


def linears_of(model: nn.Module) -> tuple[Linear, ...]:
    """The kinds of a model's linear layers, the most frequent last."""
    found = Counter(filter(None, map(linear_of, model.modules())))
    kinds: dict[tuple[Any, ...], tuple[int, Linear]] = {}
    for linear, count in sorted(found.items(), key=lambda item: item[1]):
        kind = (linear.bits, linear.group, linear.mode, linear.dtype)
        total = kinds[kind][0] if kind in kinds else 0
        kinds[kind] = total + count, linear
    return tuple(linear for _, linear in sorted(kinds.values(), key=lambda entry: entry[0]))


def linear_of(module: nn.Module) -> Linear | None:
    """What a module's weights are, if it is a linear layer of MLX."""
    if isinstance(module, nn.QuantizedLinear):
        bits, group, scales = module.bits, module.group_size, module.scales
        sizes = module.weight.shape[0], module.weight.shape[1] * 32 // bits
        return Linear(*sizes, bits, group, module.mode, name_of(scales.dtype))
    if isinstance(module, nn.Linear):
        rows, columns = module.weight.shape
        return Linear(rows, columns, 0, 0, "", name_of(module.weight.dtype))
    return None


def name_of(dtype: mx.Dtype) -> str:
    """A dtype's name, as MLX's module has it."""
    return str(dtype).rpartition(".")[2]
