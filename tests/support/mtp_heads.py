"""Untrained MTP heads for tiny targets, and folders with heads in the layouts that are in use."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import mlx.core as mx
import tiny
from mlx.utils import tree_flatten

from dflash_mlx.drafters.mtp.drafter import MTPDrafter
from dflash_mlx.drafters.mtp.model import LAYERS, MTPHead
from dflash_mlx.models.target import Target

GOLDEN = tiny.GOLDEN / "mtp_qwen35"
HEAD = GOLDEN / "target" / "model-00002-of-00002.safetensors"
Tensors = dict[str, mx.array]


def random_head(target: Target, seed: int = 2) -> MTPDrafter:
    kind = LAYERS[target.config["model_type"]]
    config = {**deepcopy(target.config), "full_attention_interval": 1}
    model = MTPHead(kind.arguments.from_dict(config), kind.layer)
    tiny.randomise(model, seed, 1.5)
    target.tap((target.layers,))
    return MTPDrafter(model, target.embed, target.head, target.head_type, (target.layers,))


def golden_head() -> Tensors:
    """The golden head's tensors, without a prefix, their norms as factors."""
    tensors: Any = mx.load(str(HEAD))
    return {
        name.removeprefix("mtp."): value + 1 if "norm" in name else value
        for name, value in tensors.items()
    }


def parameters_of(drafter: MTPDrafter) -> Tensors:
    found: Any = dict(tree_flatten(drafter.model.parameters()))
    return found


def with_differences(tensors: Tensors) -> Tensors:
    return {name: value - 1 if "norm" in name else value for name, value in tensors.items()}


def with_prefix(tensors: Tensors, prefix: str = "mtp.") -> Tensors:
    return {prefix + name: value for name, value in tensors.items()}


def quantised(tensors: Tensors, bits: int = 8) -> Tensors:
    found: Tensors = {}
    for name, value in tensors.items():
        if value.ndim == 1:
            found[name] = value
            continue
        packed = mx.quantize(value, group_size=32, bits=bits)
        found |= dict(zip((name, *others(name)), packed, strict=True))
    return found


def others(name: str) -> tuple[str, str]:
    stem = name.removesuffix("weight")
    return stem + "scales", stem + "biases"


def one_by_one(tensors: Tensors) -> Tensors:
    """Tensors with each expert's matrices by themselves, as Qwen3-Next has them."""
    found: Tensors = {}
    for name, value in tensors.items():
        if "switch_mlp" not in name:
            found[name] = value
            continue
        for number, matrix in enumerate(value):
            found[name.replace("switch_mlp", f"experts.{number}")] = matrix
    return found


def fused(tensors: Tensors) -> Tensors:
    """Tensors with all experts' matrices in two, as Qwen3.5 has them."""
    found = {name: value for name, value in tensors.items() if "switch_mlp" not in name}
    place = "layers.0.mlp.switch_mlp."
    pair = [tensors[f"{place}{part}_proj.weight"] for part in ("gate", "up")]
    found["layers.0.mlp.experts.gate_up_proj"] = mx.concatenate(pair, axis=1)
    found["layers.0.mlp.experts.down_proj"] = tensors[f"{place}down_proj.weight"]
    return found


def save_folder(
    folder: Path, tensors: Tensors, file: str = "model.safetensors", **config: Any
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / file), tensors)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_5_mtp", **config}))
    return folder
