"""Sharding for families that mlx-lm has no shard() for: Qwen3-Next and Gemma 4.

Each rank has some heads, a part of each expert and of each dense layer, and all of the rest. What a
rank adds to hidden states is summed where the layer ends. Changes modules of one model, no class.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.nn.layers.distributed import shard_inplace, shard_linear
from mlx.utils import tree_map

Group = mx.distributed.Group
APART, TOGETHER = "all-to-sharded", "sharded-to-all"


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
    ranks, own = group.size(), tuple(n for n in ("k_proj", "v_proj") if n in attention)
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
    ranks, rank, ends = group.size(), group.rank(), [net.key_dim, 2 * net.key_dim]
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
        self.experts, self._group = experts, group

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
