"""A target's model as one rank has it: sharded before anything is read of its files.

mlx-lm's model classes say how, or `own_shards` where they do not: two sums over all ranks a layer
(three of Gemma's with experts), hidden states the same everywhere.
The head stays whole on each rank, because a drafter computes with it alone. Knows no orders.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.utils import load_model

from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.target.families import FAMILIES, flat

from .own_shards import OWN


def load_shard(path: Path, group: mx.distributed.Group) -> tuple[nn.Module, dict[str, Any]]:
    """This rank's part of a model in a folder, not evaluated, and its config; raises as `shard`."""
    model, config = load_model(path, lazy=True)
    shard(model, config, group)
    return model, config


def shard(model: nn.Module, config: dict[str, Any], group: mx.distributed.Group) -> None:
    """Leave a model whose arrays are not evaluated this rank's part of it.

    DFlashError for a family that mlx-lm cannot shard, and for sizes that ranks cannot share evenly.
    """
    kind, ranks = flat(config)["model_type"], group.size()
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
        outer.lm_head, outer.sharding_group = head, None


def at(model: Any, path: str) -> Any:
    """A module by its dotted path."""
    for name in filter(None, path.split(".")):
        model = model[name]
    return model


def uneven_sizes(config: dict[str, Any], ranks: int) -> list[tuple[str, int]]:
    """The numbers of heads that ranks cannot share evenly; a shard() may not look at them itself.

    Ranks may share a head of keys and values where the family's shard() knows how.
    """
    config = flat(config)
    kind, heads = config["model_type"], config["num_attention_heads"]
    found = [("attention heads", heads)]
    for key in ("key", "value"):
        if count := config.get(f"linear_num_{key}_heads"):
            found.append((f"recurrent {key} heads", count))
    uneven = [(what, n) for what, n in found if n % ranks]
    if "kv_lora_rank" in config:  # one latent for all heads
        return uneven
    shared = kind in OWN or kind.startswith("qwen3_5")
    for key in ("num_key_value_heads", "num_global_key_value_heads"):
        n = config.get(key) or heads
        if n % ranks and not (shared and ranks % n == 0):
            uneven.append(("key and value heads", n))
            break
    return uneven
