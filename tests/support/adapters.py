"""Adapters of tiny models, made by mlx-lm's own code."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import tiny
from mlx import nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model


def save_adapter(
    folder: Path, model: Path, kind: str = "lora", base: str = "", keys: Sequence[str] = ()
) -> Path:
    """An adapter with random weights (none of them 0) for the model in a folder.

    keys: the paths of the modules that it changes; by default mlx-lm's own choice in each layer.
    """
    trained: Any = load_model(model)[0]
    own: dict[str, Any] = {"rank": 4, "scale": 4.0, "dropout": 0.5}
    if keys:
        own["keys"] = list(keys)
    config = {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": own, "model": base}
    if kind == "full":
        trained.layers[-1].unfreeze()
    else:
        trained.freeze()
        linear_to_lora_layers(trained, 2, own, use_dora=kind == "dora")

    def draw(name: str, value: mx.array) -> mx.array:
        drawn = mx.random.normal(value.shape, key=mx.random.key(len(name)))
        if kind == "full":
            return value + 0.1 * drawn
        return value + 0.5 * drawn / max(1, value.shape[-1]) ** 0.5

    weights = tree_map_with_path(draw, trained.trainable_parameters())
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), dict(tree_flatten(weights)))
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def stock_model(model: Path, adapter: Path) -> nn.Module:
    adapted, _ = load_model(model)
    load_adapters(adapted, str(adapter))
    adapted.eval()
    return adapted


def base_of(folder: Path, family: str, *, quantised: bool = False) -> Path:
    """The folder of a golden target, or of a tiny one of that family, which is saved now."""
    if (golden := tiny.GOLDEN / family / "target").is_dir():
        return golden
    target = tiny.make_target(family, intermediate_size=64)
    config = target.checkpoint.config
    if quantised:
        how: dict[str, Any] = {"group_size": 32, "bits": 8}
        nn.quantize(target.model, **how, class_predicate=lambda _, m: type(m) is nn.Linear)
        config = {**config, "quantization": how}
    tiny.save_model(folder, target.model, config)
    return folder
