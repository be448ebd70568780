"""A target's model as one rank has it: sharded before anything is read of its files.

mlx-lm's model classes say how, or `own_shards` where they do not: two sums over all ranks a layer
(three of Gemma's with experts), hidden states the same everywhere. The head stays whole on each
rank, because a drafter computes with it alone.
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

# Sharding for families that mlx-lm has no shard() for

Group = mx.distributed.Group
APART = "all-to-sharded"
TOGETHER = "sharded-to-all"


def split(module: Any, apart: tuple[str, ...], together: str, group: Group) -> None:
    """Give a rank some outputs of the projections `apart`, and the same inputs of `together`."""
    for name in apart:
        module[name] = shard_linear(module[name], APART, group=group)
    module[together] = shard_linear(module[together], TOGETHER, group=group)


def spread_heads(module: nn.Module, heads: int, ranks: int) -> None:
    """Where there are fewer heads than ranks, have each as often as there are ranks to share it."""
    times = ranks // heads

    def spread(rows: mx.array) -> mx.array:
        by_head = rows.reshape(heads, -1, *rows.shape[1:])
        return mx.repeat(by_head, times, axis=0).reshape(-1, *rows.shape[1:])

    if times > 1:
        module.update(tree_map(spread, module.parameters()))


def shard_attention(attention: Any, heads: str, kv_heads: str, group: Group) -> None:
    """Give a rank some heads; `heads` and `kv_heads` are the attributes that count them."""
    ranks = group.size()
    own = tuple(n for n in ("k_proj", "v_proj") if n in attention)
    for name in own:
        spread_heads(attention[name], getattr(attention, kv_heads), ranks)
    split(attention, ("q_proj", *own), "o_proj", group)
    setattr(attention, heads, getattr(attention, heads) // ranks)
    setattr(attention, kv_heads, max(1, getattr(attention, kv_heads) // ranks))


def shard_part(part: Any, group: Group) -> None:
    """Give a rank a part of a dense layer or of each expert; what it gives is not summed."""
    for name, how in (("gate_proj", APART), ("up_proj", APART), ("down_proj", TOGETHER)):
        shard_inplace(part[name], how, group=group)


def shard_dense(dense: Any, group: Group) -> None:
    """Give a rank a part of a dense layer, whose sum over the ranks it gives."""
    split(dense, ("gate_proj", "up_proj"), "down_proj", group)


def shard_delta(net: Any, group: Group) -> None:
    """Give a rank some heads of Qwen3-Next's Gated DeltaNet, whose projections go by key heads."""
    ranks = group.size()
    rank = group.rank()
    ends = [net.key_dim, 2 * net.key_dim]
    split(net, ("in_proj_qkvz", "in_proj_ba"), "out_proj", group)
    shard_inplace(net.conv1d, lambda path, weight: (0, ends), group=group)
    net.conv1d.groups //= ranks
    for name in ("A_log", "dt_bias"):
        net[name] = mx.contiguous(mx.split(net[name], ranks)[rank])
    for name in ("num_k_heads", "num_v_heads", "key_dim", "value_dim", "conv_dim"):
        setattr(net, name, getattr(net, name) // ranks)


def shard_next(layer: Any, group: Group) -> None:
    """A layer of Qwen3-Next."""
    if layer.is_linear:
        shard_delta(layer.linear_attn, group)
    else:
        shard_attention(layer.self_attn, "num_attention_heads", "num_key_value_heads", group)
    if "switch_mlp" in layer.mlp:
        layer.mlp.sharding_group = group
        shard_part(layer.mlp.shared_expert, group)
        shard_part(layer.mlp.switch_mlp, group)
    else:
        shard_dense(layer.mlp, group)


class SummedExperts(nn.Module):
    """Experts of which each rank has a part, and whose sum over the ranks is what comes out."""

    def __init__(self, experts: nn.Module, group: Group):
        super().__init__()
        self.experts = experts
        self._group = group

    def __call__(self, *given: mx.array) -> mx.array:
        """As the experts'."""
        return mx.distributed.all_sum(self.experts(*given), group=self._group)  # type: ignore


def shard_gemma(layer: Any, group: Group) -> None:
    """A layer of Gemma 4; one with experts has three sums, because a norm follows each part."""
    shard_attention(layer.self_attn, "n_heads", "n_kv_heads", group)
    shard_dense(layer.mlp, group)
    if layer.enable_moe:
        shard_part(layer.experts.switch_glu, group)
        layer.experts = SummedExperts(layer.experts, group)


OWN: dict[str, Callable[[Any, Group], None]] = {
    "qwen3_next": shard_next,
    "gemma4": shard_gemma,
    "gemma4_text": shard_gemma,
    "gemma4_unified": shard_gemma,
}


def load_shard(path: Path, group: mx.distributed.Group) -> tuple[nn.Module, dict[str, Any]]:
    """This rank's part of a model in a folder, not evaluated, and its config; raises as `shard`."""
    model, config = load_model(path, lazy=True)
    shard(model, config, group)
    return model, config


def shard(model: nn.Module, config: dict[str, Any], group: mx.distributed.Group) -> None:
    """Leave a model whose arrays are not evaluated this rank's part of it.

    DFlashError for a family that mlx-lm cannot shard, and for sizes that ranks cannot share evenly.
    """
    kind = text_config(config)["model_type"]
    ranks = group.size()
    if not hasattr(model, "shard") and kind not in OWN:
        raise DFlashError(
            f"targets of the type '{kind}' cannot be sharded: mlx-lm has no shard() for them.",
            hint="share its layers: --split layers",
        )
    if uneven := [f"{n} {what}" for what, n in uneven_sizes(config, ranks)]:
        raise DFlashError(
            f"{' and '.join(uneven)} cannot be shared by {ranks} ranks.",
            hint="take a number of ranks that divides them, or --split layers",
        )
    outer = at(model, FAMILIES[kind].outer)
    head = outer.get("lm_head")
    try:
        if kind in OWN:
            for layer in at(model, FAMILIES[kind].body).layers:
                OWN[kind](layer, group)
        else:
            model.shard(group)  # type: ignore[operator]
    except (ValueError, AssertionError) as error:
        raise DFlashError(
            f"the weights cannot be shared by {ranks} ranks ({first_line(error)}).",
            hint="take fewer ranks",
        ) from error
    if head is not None and outer.lm_head is not head:
        outer.lm_head = head
        outer.sharding_group = None


def at(model: Any, path: str) -> Any:
    """A module by its dotted path."""
    for name in filter(None, path.split(".")):
        model = model[name]
    return model


def uneven_sizes(config: dict[str, Any], ranks: int) -> list[tuple[str, int]]:
    """The numbers of heads that ranks cannot share evenly; a shard() may not look at them itself.

    Ranks may share a head of keys and values where the family's shard() knows how.
    """
    config = text_config(config)
    kind = config["model_type"]
    heads = config["num_attention_heads"]
    found = [("attention heads", heads)]
    for key in ("key", "value"):
        if count := config.get(f"linear_num_{key}_heads"):
            found.append((f"recurrent {key} heads", count))
    uneven = [(what, n) for what, n in found if n % ranks]
    if "kv_lora_rank" in config:  # one latent for all heads
        return uneven
    shared = kind in OWN or FAMILIES[kind].shares_kv_heads
    for key in ("num_key_value_heads", "num_global_key_value_heads"):
        n = config.get(key) or heads
        if n % ranks and not (shared and ranks % n == 0):
            uneven.append(("key and value heads", n))
            break
    return uneven


# A target's layers shared out


class PipelineStage(nn.Module):
    """A model of which one rank computes some layers; attributes are the model's.

    Its caches are those of the rank's own layers.
    """

    def __init__(self, model: nn.Module, own: range):
        super().__init__()
        self["whole"] = model  # before any attribute: __getattr__ needs it
        caches = make_prompt_cache(model)
        self._own = own
        # Masks are made from the cache of any layer of a kind, so another's is as good.
        kinds = {type(caches[n]): n - own.start for n in reversed(own)}
        self._places = [
            n - own.start if n in own else kinds.get(type(cache)) for n, cache in enumerate(caches)
        ]

    def make_cache(self) -> list[Any]:
        """Empty caches of the rank's layers."""
        return make_prompt_cache(self.whole)[self._own.start : self._own.stop]

    def __call__(self, tokens: mx.array, cache: list[Any] | None = None, **options: Any) -> Any:
        """As the model's, with those caches."""
        if cache is not None:
            cache = [NOTHING if place is None else cache[place] for place in self._places]
        return self.whole(tokens, cache=cache, **options)

    def __getattr__(self, name: str) -> Any:
        """Anything else is asked of the model."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self["whole"], name)


class Nothing:
    """The cache of a kind of layer that this rank has none of: what is made of it, nobody reads."""

    offset = 0

    def make_mask(self, *args: Any, **options: Any) -> None:
        """None."""


NOTHING = Nothing()


def load_stage(path: Path, group: mx.distributed.Group) -> tuple[nn.Module, dict[str, Any]]:
    """This rank's layers of a model in a folder, and its config; raises as `stage`."""
    model, config = load_model(path, lazy=True)
    return stage(model, config, group), config


def stage(model: nn.Module, config: dict[str, Any], group: mx.distributed.Group) -> PipelineStage:
    """The model with this rank's layers; the weights of all others are left on disk.

    DFlashError where there are fewer layers than ranks, where a layer needs another rank's keys,
    and where rank 0's do not stand for all.
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
    kinds = [type(cache) for cache in make_prompt_cache(model)]
    if missing := {*kinds} - {*kinds[: starts[1]], KVCache}:  # rank 0 decides what can be rewound
        raise DFlashError(
            f"the first of {ranks} ranks would have no layer with a {missing.pop().__name__}.",
            hint="take fewer ranks",
        )
    several = hasattr(body, "previous_kvs")  # Gemma's layers hand keys and values on, too
    if several and body.previous_kvs != [*range(len(layers))]:
        raise DFlashError(
            "its last layers read keys of earlier ones, which other ranks would have.",
            hint="run it on one machine",
        )
    for number, layer in enumerate(layers):

        def shared(number: int = number) -> bool:
            return number + 1 in starts or isinstance(body.layers[number], Tap)

        if number not in own:
            layer.apply(lambda each: mx.broadcast_to(mx.zeros((), each.dtype), each.shape))
        run_on(layer, group, shared, own=number in own, several=several)
    return PipelineStage(model, own)


def run_on(
    layer: nn.Module,
    group: mx.distributed.Group,
    shared: Callable[[], bool],
    *,
    own: bool,
    several: bool,
) -> None:
    """Let one layer of our instance be computed by its rank, and where `shared`, summed to all."""
    kind: Any = stock_class(layer)

    def call(self: Any, x: mx.array, *args: Any, **options: Any) -> Any:
        """Hidden states [B, S, H] -> [B, S, H], the right ones on all ranks if they are shared."""
        found = kind.__call__(self, x, *args, **options) if own else x
        hidden, *more = found if isinstance(found, tuple) else (found, *(None,) * (2 * several))
        if shared():
            # On the others zeros, which wait for the sum before: all ranks have one order.
            part = hidden if own else mx.depends(mx.zeros_like(hidden), hidden)
            hidden = mx.distributed.all_sum(part, group=group)
        return (hidden, *more) if several else hidden

    give_class(layer, call)


# The two ways to share a target

LOADERS: dict[str, Callable[..., Any]] = {"heads": load_shard, "layers": load_stage}


def part_loader(split: str) -> Callable[..., Any]:
    """What reads a rank's part of a model; UsageError for a way that is none."""
    if split not in LOADERS:
        raise UsageError(f"a target cannot be split by '{split}'.", hint="take heads or layers")
    return LOADERS[split]
