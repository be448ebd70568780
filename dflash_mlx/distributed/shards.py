"""A target's model as one rank has it: sharded before anything is read of its files.

mlx-lm's model classes say how: two sums over all ranks a layer, hidden states the same everywhere.
The head stays whole on each rank, because a drafter computes with it alone. Knows no orders.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.utils import load_model

from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.target.families import FAMILIES, flat


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
    if not hasattr(model, "shard"):
        raise DFlashError(
            f"targets of the type '{kind}' cannot be sharded: mlx-lm has no shard() for them.",
            hint="run it on one machine",
        )
    if uneven := [f"{n} {what}" for what, n in shared_sizes(config) if n % ranks]:
        raise DFlashError(
            f"{' and '.join(uneven)} cannot be shared by {ranks} ranks.",
            hint="take a number of ranks that divides them",
        )
    outer: Any = model
    for name in filter(None, FAMILIES[kind].outer.split(".")):
        outer = outer[name]
    head = outer.get("lm_head")
    try:
        model.shard(group)  # type: ignore[operator]
    except (ValueError, AssertionError) as error:
        raise DFlashError(
            f"the weights cannot be shared by {ranks} ranks ({first_line(error)}).",
            hint="take fewer ranks",
        ) from error
    if head is not None and outer.lm_head is not head:
        outer.lm_head, outer.sharding_group = head, None


def shared_sizes(config: dict[str, Any]) -> list[tuple[str, int]]:
    """The numbers of heads that the ranks share evenly; a shard() may not look at them itself."""
    config = flat(config)
    heads = config["num_attention_heads"]
    found = [("attention heads", heads)]
    if "kv_lora_rank" not in config and not config["model_type"].startswith("qwen3_5"):
        found.append(("key and value heads", config.get("num_key_value_heads") or heads))
    for key, what in (("k", "key"), ("v", "value")):
        if count := config.get(f"linear_num_{'key' if key == 'k' else 'value'}_heads"):
            found.append((f"recurrent {what} heads", count))
    return found
