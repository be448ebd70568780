"""One rank's part of a target's model: some heads of every layer, or some of the layers.

The model is split before its weights are read from disk. Split by heads (tensor parallelism), each
layer sums over all ranks twice (Gemma's layers with experts three times), and the hidden states are
the same on all ranks. mlx-lm's model classes have a shard() for this; `SHARD_LAYER` adds families
without one. The language model head stays whole on each rank, because rank 0's drafter uses it.
Split by layers, each rank is one stage of a pipeline.
"""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.nn.layers.distributed import shard_inplace, shard_linear
from mlx.utils import tree_map
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load_model

from dflash_mlx.errors import DFlashError, UsageError, first_line
from dflash_mlx.families import FAMILIES
from dflash_mlx.files.checkpoint import text_config
from dflash_mlx.models.attention import give_class, stock_class
from dflash_mlx.models.target import Tap

# Tensor parallelism for families without a shard() in mlx-lm

Group = mx.distributed.Group
COLUMN_PARALLEL = "all-to-sharded"  # each rank computes some outputs
ROW_PARALLEL = "sharded-to-all"  # each rank takes some inputs; the outputs are summed


def shard_projections(module: Any, inputs: tuple[str, ...], output: str, group: Group) -> None:
    """Shard a module's input projections by columns, and its output projection by rows."""
    for name in inputs:
        module[name] = shard_linear(module[name], COLUMN_PARALLEL, group=group)
    module[output] = shard_linear(module[output], ROW_PARALLEL, group=group)


def repeat_heads(module: nn.Module, heads: int, ranks: int) -> None:
    """Repeat each head of a projection if there are fewer heads than ranks."""
    copies = ranks // heads

    def repeat(weight: mx.array) -> mx.array:
        by_head = weight.reshape(heads, -1, *weight.shape[1:])
        return mx.repeat(by_head, copies, axis=0).reshape(-1, *weight.shape[1:])

    if copies > 1:
        module.update(tree_map(repeat, module.parameters()))


def shard_attention(attention: Any, heads: str, kv_heads: str, group: Group) -> None:
    """Keep this rank's heads. heads, kv_heads: the names of the attributes that count them."""
    ranks = group.size()
    # Some of Gemma's layers lack v_proj, or both.
    kv_projections = tuple(name for name in ("k_proj", "v_proj") if name in attention)
    for name in kv_projections:
        repeat_heads(attention[name], getattr(attention, kv_heads), ranks)
    shard_projections(attention, ("q_proj", *kv_projections), "o_proj", group)
    setattr(attention, heads, getattr(attention, heads) // ranks)
    setattr(attention, kv_heads, max(1, getattr(attention, kv_heads) // ranks))


def shard_mlp(mlp: Any, group: Group) -> None:
    """Keep this rank's part of a dense MLP, whose output is summed over the ranks."""
    shard_projections(mlp, ("gate_proj", "up_proj"), "down_proj", group)


def shard_mlp_unsummed(mlp: Any, group: Group) -> None:
    """Keep this rank's part of an MLP or of all experts; the caller has to sum the output."""
    for name, sharding in (
        ("gate_proj", COLUMN_PARALLEL),
        ("up_proj", COLUMN_PARALLEL),
        ("down_proj", ROW_PARALLEL),
    ):
        shard_inplace(mlp[name], sharding, group=group)


def shard_gated_delta_net(net: Any, group: Group) -> None:
    """Keep this rank's heads of Qwen3-Next's GatedDeltaNet.

    The input projections are ordered by key head. The convolution is over queries, keys and values,
    each of which is split.
    """
    ranks = group.size()
    rank = group.rank()
    boundaries = [net.key_dim, 2 * net.key_dim]
    shard_projections(net, ("in_proj_qkvz", "in_proj_ba"), "out_proj", group)
    shard_inplace(net.conv1d, lambda path, weight: (0, boundaries), group=group)
    net.conv1d.groups //= ranks
    for name in ("A_log", "dt_bias"):
        net[name] = mx.contiguous(mx.split(net[name], ranks)[rank])
    for name in ("num_k_heads", "num_v_heads", "key_dim", "value_dim", "conv_dim"):
        setattr(net, name, getattr(net, name) // ranks)


def shard_qwen3_next(layer: Any, group: Group) -> None:
    if layer.is_linear:
        shard_gated_delta_net(layer.linear_attn, group)
    else:
        shard_attention(layer.self_attn, "num_attention_heads", "num_key_value_heads", group)
    if "switch_mlp" in layer.mlp:
        layer.mlp.sharding_group = group
        shard_mlp_unsummed(layer.mlp.shared_expert, group)
        shard_mlp_unsummed(layer.mlp.switch_mlp, group)
    else:
        shard_mlp(layer.mlp, group)


class SummedExperts(nn.Module):
    """Sums the output of sharded experts over the ranks."""

    def __init__(self, experts: nn.Module, group: Group):
        super().__init__()
        self.experts = experts
        self._group = group

    def __call__(self, *inputs: mx.array) -> mx.array:
        return mx.distributed.all_sum(self.experts(*inputs), group=self._group)  # type: ignore


def shard_gemma4(layer: Any, group: Group) -> None:
    """With experts a layer has three sums, because a norm follows the MLP and the experts each."""
    shard_attention(layer.self_attn, "n_heads", "n_kv_heads", group)
    shard_mlp(layer.mlp, group)
    if layer.enable_moe:
        shard_mlp_unsummed(layer.experts.switch_glu, group)
        layer.experts = SummedExperts(layer.experts, group)


SHARD_LAYER: dict[str, Callable[[Any, Group], None]] = {
    "qwen3_next": shard_qwen3_next,
    "gemma4": shard_gemma4,
    "gemma4_text": shard_gemma4,
    "gemma4_unified": shard_gemma4,
}


def load_shard(path: Path, group: mx.distributed.Group) -> tuple[nn.Module, dict[str, Any]]:
    """This rank's heads of a model in a folder, not evaluated, and their config.

    Raises DFlashError as `shard`.
    """
    model, config = load_model(path, lazy=True)
    shard(model, config, group)
    return model, config_of_shard(config, group.size())


HEADS = (
    "num_attention_heads",
    "num_key_value_heads",
    "num_global_key_value_heads",
    "linear_num_key_heads",
    "linear_num_value_heads",
)


def config_of_shard(config: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The config with the numbers of heads of one rank."""
    if isinstance(inner := config.get("text_config"), dict):
        return {**config, "text_config": config_of_shard(inner, ranks)}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    heads = {name: max(1, config[name] // ranks) for name in HEADS if config.get(name)}
    return {**config, **heads, "head_dim": head_dim}


def shard(model: nn.Module, config: dict[str, Any], group: mx.distributed.Group) -> None:
    """Keep this rank's heads of a model whose arrays are not evaluated.

    Raises DFlashError for a family that cannot be sharded, and if the ranks cannot share the heads
    evenly.
    """
    model_type = text_config(config)["model_type"]
    ranks = group.size()
    if not hasattr(model, "shard") and model_type not in SHARD_LAYER:
        raise DFlashError(
            f"targets of the type '{model_type}' cannot be sharded: "
            "mlx-lm has no shard() for them.",
            hint="share its layers: --split layers",
        )
    if uneven := [f"{count} {name}" for name, count in uneven_sizes(config, ranks)]:
        raise DFlashError(
            f"{' and '.join(uneven)} cannot be shared by {ranks} ranks.",
            hint="take a number of ranks that divides them, or --split layers",
        )
    family = FAMILIES[model_type]
    outer = submodule(model, family.outer)
    head = outer.get("lm_head")
    try:
        if model_type in SHARD_LAYER:
            for layer in submodule(model, family.body).layers:
                SHARD_LAYER[model_type](layer, group)
        else:
            model.shard(group)  # type: ignore[operator]
    except (ValueError, AssertionError) as error:
        raise DFlashError(
            f"the weights cannot be shared by {ranks} ranks ({first_line(error)}).",
            hint="take fewer ranks",
        ) from error
    if head is not None and outer.lm_head is not head:  # shard() has split the head
        outer.lm_head = head
        outer.sharding_group = None


def submodule(model: Any, path: str) -> Any:
    """The module at a dotted path; an empty path is the model itself."""
    for name in filter(None, path.split(".")):
        model = model[name]
    return model


def uneven_sizes(config: dict[str, Any], ranks: int) -> list[tuple[str, int]]:
    """The names and numbers of heads that ranks cannot share evenly.

    mlx-lm's shard() does not always check them. Several ranks may have the same key and value head
    if the family supports it.
    """
    config = text_config(config)
    model_type = config["model_type"]
    heads = config["num_attention_heads"]
    sizes = [("attention heads", heads)]
    for key in ("key", "value"):
        if count := config.get(f"linear_num_{key}_heads"):
            sizes.append((f"recurrent {key} heads", count))
    uneven = [(name, count) for name, count in sizes if count % ranks]
    if "kv_lora_rank" in config:  # one latent for all heads
        return uneven
    repeats_heads = model_type in SHARD_LAYER or FAMILIES[model_type].shares_kv_heads
    for key in ("num_key_value_heads", "num_global_key_value_heads"):
        count = config.get(key) or heads
        if count % ranks and not (repeats_heads and ranks % count == 0):
            uneven.append(("key and value heads", count))
            break
    return uneven


# Pipeline parallelism


class PipelineStage(nn.Module):
    """A model of which this rank computes the layers `own`; it has the attributes of the model.

    Only the rank's own layers have caches.
    """

    def __init__(self, model: nn.Module, own: range):
        super().__init__()
        self["whole"] = model  # before any attribute: __getattr__ needs it
        caches = make_prompt_cache(model)
        self._own = own
        # The model makes its masks from some layer's cache. If it is another rank's layer, the
        # first own cache of the same type stands for it.
        first_of_type = {type(caches[n]): n - own.start for n in reversed(own)}
        self._cache_indices = [
            n - own.start if n in own else first_of_type.get(type(cache))
            for n, cache in enumerate(caches)
        ]

    def make_cache(self) -> list[Any]:
        return make_prompt_cache(self.whole)[self._own.start : self._own.stop]

    def __call__(self, tokens: mx.array, cache: list[Any] | None = None, **options: Any) -> Any:
        """Call the model. cache: of the rank's own layers."""
        if cache is not None:
            cache = [NO_CACHE if index is None else cache[index] for index in self._cache_indices]
        return self.whole(tokens, cache=cache, **options)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self["whole"], name)


class NoCache:
    """Stands for the cache of a layer whose type this rank does not have; its mask is not used."""

    offset = 0

    def make_mask(self, *args: Any, **options: Any) -> None:
        return None


NO_CACHE = NoCache()


def load_stage(path: Path, group: mx.distributed.Group) -> tuple[nn.Module, dict[str, Any]]:
    """This rank's layers of a model in a folder, not evaluated, and its config.

    Raises DFlashError as `stage`.
    """
    model, config = load_model(path, lazy=True)
    return stage(model, config, group), config


def stage(model: nn.Module, config: dict[str, Any], group: mx.distributed.Group) -> PipelineStage:
    """The model with this rank's layers; the weights of the others are not read from disk.

    Raises DFlashError if there are fewer layers than ranks, if a layer needs the keys of another
    rank, and if rank 0 has no layer of some cache type.
    """
    body: Any = reduce(getattr, FAMILIES[text_config(config)["model_type"]].body.split("."), model)
    layers = body.layers
    ranks = group.size()
    if ranks > len(layers):
        raise DFlashError(
            f"{len(layers)} layers cannot be shared by {ranks} ranks.", hint="take fewer ranks"
        )
    starts = [rank * len(layers) // ranks for rank in range(ranks + 1)]
    own = range(starts[group.rank()], starts[group.rank() + 1])
    cache_types = [type(cache) for cache in make_prompt_cache(model)]
    # Rank 0 decides by its own caches whether they can be rewound.
    if missing := {*cache_types} - {*cache_types[: starts[1]], KVCache}:
        raise DFlashError(
            f"the first of {ranks} ranks would have no layer with a {missing.pop().__name__}.",
            hint="take fewer ranks",
        )
    returns_kv = hasattr(body, "previous_kvs")  # Gemma's layers also return keys and values
    if returns_kv and body.previous_kvs != [*range(len(layers))]:
        raise DFlashError(
            "the model's last layers read keys of earlier layers, which would be on other ranks.",
            hint="run it on one machine",
        )
    for number, layer in enumerate(layers):

        def is_shared(number: int = number) -> bool:
            return number + 1 in starts or isinstance(body.layers[number], Tap)

        if number not in own:
            layer.apply(lambda weight: mx.broadcast_to(mx.zeros((), weight.dtype), weight.shape))
        run_on_rank(layer, group, is_shared, own=number in own, returns_kv=returns_kv)
    return PipelineStage(model, own)


def run_on_rank(
    layer: nn.Module,
    group: mx.distributed.Group,
    is_shared: Callable[[], bool],
    *,
    own: bool,
    returns_kv: bool,
) -> None:
    """Make only one rank compute a layer, and if `is_shared`, send its output to all ranks.

    own: whether this rank computes it. returns_kv: whether the layer returns (hidden, keys, values)
    instead of the hidden states.
    """
    layer_class: Any = stock_class(layer)

    def call(self: Any, x: mx.array, *args: Any, **options: Any) -> Any:
        """Hidden states [B, S, H] -> [B, S, H]; correct on all ranks if they are shared."""
        output = layer_class.__call__(self, x, *args, **options) if own else x
        if isinstance(output, tuple):
            hidden, *keys_values = output
        else:
            hidden = output
            keys_values = [None, None] if returns_kv else []
        if is_shared():
            # The other ranks add zeros. These depend on the previous sum, so that all ranks run
            # their sums in the same order.
            part = hidden if own else mx.depends(mx.zeros_like(hidden), hidden)
            hidden = mx.distributed.all_sum(part, group=group)
        return (hidden, *keys_values) if returns_kv else hidden

    give_class(layer, call)


# The two ways to split a target

LOADERS: dict[str, Callable[..., Any]] = {"heads": load_shard, "layers": load_stage}


def part_loader(split: str) -> Callable[..., Any]:
    """The function that loads a rank's part of a model. Raises UsageError for an unknown split."""
    if split not in LOADERS:
        raise UsageError(f"a target cannot be split by '{split}'.", hint="take heads or layers")
    return LOADERS[split]
