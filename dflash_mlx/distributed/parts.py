"""The two ways to share a target: every layer's heads and products, or whole layers."""

from collections.abc import Callable
from typing import Any

from dflash_mlx.errors import UsageError

from .shards import load_shard
from .stages import load_stage

LOADERS: dict[str, Callable[..., Any]] = {"heads": load_shard, "layers": load_stage}


def part_loader(split: str) -> Callable[..., Any]:
    """What reads a rank's part of a model; UsageError for a way that is none."""
    if split not in LOADERS:
        raise UsageError(f"a target cannot be split by '{split}'.", hint="take heads or layers")
    return LOADERS[split]
