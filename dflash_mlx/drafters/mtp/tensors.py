"""The tensors of an MTP head in a model's folder, by one set of names.

Four layouts are in use: `mtp.*` in the original checkpoints; the same in quantised MLX shards, as
`language_model.mtp.*`; a file beside the shards that their index does not name; and a folder of its
own without a prefix. The tensors decide, because configs name heads that are not there, and other
families keep other drafters under the same prefix.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.files.formats import MTP_TENSOR

PARTS = ("fc", "layers", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
OWN = "pre_fc_norm_hidden.weight"  # which only these heads have
DSPARK = ("markov", "confidence_head")  # parts of a DSpark drafter's names
MLP = "layers.0.mlp."
EXPERT = re.compile(r"experts\.(\d+)\.(\w+)\.(\w+)")
FUSED = re.compile(r"experts\.(gate_up_proj|down_proj)(?:\.(\w+))?")
# Norm weights w are stored as w - 1 in the original checkpoints, so that about half of them are
# negative; the weights themselves nearly never are.
NEGATIVE_SHARE = 0.05
NOT_HERE = (
    "mlx-lm's conversions leave the head out: name a folder that has it as --draft, or the "
    "original model as --draft ID#mtp, of which only the head is downloaded"
)
OURS = "heads of Qwen3-Next and Qwen3.5 to 3.8 are; or use --draft lookup"

Tensors = dict[str, mx.array]


def head_files(checkpoint: Checkpoint) -> dict[str, tuple[Path, str]]:
    """The file of each tensor and its name there, by the name without a prefix.

    Tensors with the prefix may be another family's. Empty if there is no head.
    """
    prefixed: dict[str, tuple[Path, str]] = {}
    bare: dict[str, tuple[Path, str]] = {}
    for file, headers in checkpoint.headers("*.safetensors").items():
        for name in headers:
            if found := MTP_TENSOR.match(name):
                prefixed[name[found.end() :]] = file, name
            elif name.startswith(PARTS):
                bare[name] = file, name
    return prefixed or (bare if OWN in bare else {})


def has_head(checkpoint: Checkpoint) -> bool:
    return bool(head_files(checkpoint))


def has_other_head(checkpoint: Checkpoint) -> bool:
    """Whether a model has layers of an MTP head behind its own, as DeepSeek-V3 and GLM do."""
    behind = f".layers.{checkpoint.text_config.get('num_hidden_layers')}."
    files = checkpoint.headers("*.safetensors").values()
    return any(behind in name for names in files for name in names)


def require_head(checkpoint: Checkpoint) -> dict[str, tuple[Path, str]]:
    """As `head_files`; raises DFlashError unless the head is of one of our families."""
    names = head_files(checkpoint)
    family = str(checkpoint.config.get("model_type"))
    if not names and has_other_head(checkpoint):
        raise DFlashError(
            f"the MTP head of targets of the type '{family}' is of a kind that is not supported.",
            hint=OURS,
        )
    if not names:
        raise DFlashError(f"there is no MTP head in '{checkpoint.path}'.", hint=NOT_HERE)
    if any(part in name for part in DSPARK for name in names):
        raise DFlashError(
            f"the 'mtp' tensors in '{checkpoint.path}' are a DSpark drafter, which is not "
            "supported.",
            hint="use another drafter, or --draft lookup",
        )
    if OWN not in names:
        raise DFlashError(
            f"the MTP head in '{checkpoint.path}' ('{family}') is of a kind that is not supported.",
            hint=OURS,
        )
    if any(name.startswith("layers.1.") for name in names):
        raise DFlashError(
            f"the MTP head in '{checkpoint.path}' has several layers, and one is supported.",
            hint="use another drafter, or --draft lookup",
        )
    return names


def read_head(checkpoint: Checkpoint) -> Tensors:
    """By our names, experts stacked to [E, ...]; lazy. Raises DFlashError as `require_head`."""
    files: dict[Path, Any] = {}
    tensors: Tensors = {}
    for plain, (file, name) in require_head(checkpoint).items():
        if file not in files:
            files[file] = mx.load(str(file))
        tensors[plain] = files[file][name]
    return stack_experts(tensors)


def stack_experts(tensors: Tensors) -> Tensors:
    """Tensors with those of experts by mlx-lm's names, `switch_mlp.gate_proj.weight` [E, I, H].

    They come fused, `experts.gate_up_proj` [E, 2 I, H], or one by one, `experts.3.gate_proj.weight`
    [I, H].
    """
    stacked: Tensors = {}
    single: dict[str, dict[int, mx.array]] = {}
    for name, value in tensors.items():
        inner = name.removeprefix(MLP)
        if expert := EXPERT.fullmatch(inner):
            number, *parts = expert.groups()
            single.setdefault(".".join(parts), {})[int(number)] = value
        elif fused := FUSED.fullmatch(inner):
            projection, part = fused.groups("weight")
            if projection == "down_proj":
                stacked[f"{MLP}switch_mlp.down_proj.{part}"] = value
                continue
            gate, up = mx.split(value, 2, axis=-2)
            stacked[f"{MLP}switch_mlp.gate_proj.{part}"] = gate
            stacked[f"{MLP}switch_mlp.up_proj.{part}"] = up
        else:
            stacked[name] = value
    for name, experts in single.items():
        values = [value for _, value in sorted(experts.items())]
        stacked[f"{MLP}switch_mlp.{name}"] = mx.stack(values)
    return stacked


def with_whole_norms(tensors: Tensors) -> Tensors:
    """Tensors with norm weights that are factors; 1 is added if they are stored as differences."""
    norms = {name: x for name, x in tensors.items() if "norm" in name and x.ndim == 1}
    if not stores_differences(norms.values()):
        return tensors
    return {**tensors, **{name: value + 1 for name, value in norms.items()}}


def stores_differences(norms: Iterable[mx.array]) -> bool:
    """Whether norm weights are stored as differences from 1, by their signs."""
    weights = mx.concatenate([value.astype(mx.float32) for value in norms])
    return bool(mx.mean(weights <= 0) > NEGATIVE_SHARE)
