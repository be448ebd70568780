"""Drafters of published pairs, without weights: those of the DFlash family, and MTP heads."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx import nn

from dflash_mlx.drafters.base import Drafter
from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.drafters.dflash.model import DraftModel
from dflash_mlx.drafters.mtp.drafter import ENOUGH, MTPDrafter
from dflash_mlx.drafters.mtp.model import BoundHead, make_head
from dflash_mlx.drafters.mtp.tensors import MLP, Tensors
from dflash_mlx.files.formats import is_mtp
from dflash_mlx.models.precision import quantise
from dflash_mlx.models.target import Target


def make_drafter(config: Mapping[str, Any], target: Target, bits: int) -> Drafter:
    """The drafter of a config.json in bfloat16, or quantised in `bits`; computes nothing.

    Taps the target's layers that it reads.
    """
    if is_mtp(dict(config)):
        return mtp_drafter(target, bits)
    settings = parse(dict(config))
    model = DraftModel(settings, target.hidden_size)
    prepare(model, bits)
    target.tap(settings.target_layer_ids)
    return DFlashDrafter(model, target.embed, target.head)


def mtp_drafter(target: Target, bits: int) -> MTPDrafter:
    """The MTP head that a target of this shape has; it is no longer compared with texts."""
    model = make_head(target.config, head_tensors(target.config))
    prepare(model, bits)
    target.tap((target.layers,))
    drafter = MTPDrafter(BoundHead(model, target.embed, target.head), target.layers)
    drafter.agreement.compared = ENOUGH
    return drafter


def head_tensors(config: Mapping[str, Any]) -> Tensors:
    """Those tensors of a target's MTP head that tell its sizes."""
    hidden, dim = config["hidden_size"], config["head_dim"]
    attention = "layers.0.self_attn."
    sizes: dict[str, tuple[int, ...]] = {
        "fc": (hidden, 2 * hidden),
        f"{attention}q_norm": (dim,),
        f"{attention}q_proj": (2 * config["num_attention_heads"] * dim, hidden),
        f"{attention}k_proj": (config["num_key_value_heads"] * dim, hidden),
    }
    if experts := config.get("num_experts"):
        inner, shared = (config[f"{part}_intermediate_size"] for part in ("moe", "shared_expert"))
        sizes |= {
            f"{MLP}gate": (experts, hidden),
            f"{MLP}switch_mlp.gate_proj": (experts, inner, hidden),
            f"{MLP}shared_expert.gate_proj": (shared, hidden),
        }
    else:
        sizes[f"{MLP}gate_proj"] = (config["intermediate_size"], hidden)
    return {f"{name}.weight": mx.zeros(size, mx.bfloat16) for name, size in sizes.items()}


def prepare(model: nn.Module, bits: int) -> None:
    """Give a drafter's lazy weights their dtype or their bits."""
    model.set_dtype(mx.bfloat16)
    quantise(model, bits)
    evaluate_hidden(model)


def evaluate_hidden(model: nn.Module) -> None:
    """Compute the small arrays of modules that are not parameters, as loading does."""
    for module in model.modules():
        mx.eval([v for k, v in module.items() if k.startswith("_") and isinstance(v, mx.array)])
