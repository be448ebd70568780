"""Tiny random models of every type that mlx-lm opens; their configs are in zoo.toml."""

import inspect
import tomllib
from copy import deepcopy
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import MODEL_REMAPPING, _get_classes

DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TYPES: dict[str, dict[str, Any]] = {
    **DATA["types"],
    **{
        alias: {**DATA["types"][module], **DATA["types"].get(alias, {})}
        for alias, module in MODEL_REMAPPING.items()
    },
}
# The keys of zoo.toml that are not part of a config.json.
OWN = {"text", "seed", "can", "forgets", "differs", "needs", "fails"}


@cache
def known(name: str) -> frozenset[str]:
    """The arguments of a module's ModelArgs, or of `module.Class`."""
    module, _, args = name.partition(".")
    found = getattr(import_module(f"mlx_lm.models.{module}"), args or "ModelArgs")
    return frozenset(inspect.signature(found).parameters)


def config_of(kind: str) -> dict[str, Any]:
    own = {key: value for key, value in deepcopy(TYPES[kind]).items() if key not in OWN}
    args = TYPES[kind].get("text", MODEL_REMAPPING.get(kind, kind))
    shared = {key: value for key, value in DATA["defaults"].items() if key in known(args)}
    outer = {"model_type": kind, "eos_token_id": 98}
    if "text" not in TYPES[kind]:
        return {**outer, **shared, **own}
    text = {"model_type": args.partition(".")[0], **shared, **own.pop("text_config", {})}
    return {**outer, "vocab_size": text["vocab_size"], **own, "text_config": text}


def tiny_model(kind: str) -> tuple[nn.Module, dict[str, Any]]:
    """A new random model in float32, and its config.json."""
    config = config_of(kind)
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(deepcopy(config)))
    randomise(model, TYPES[kind].get("seed", 1))
    if hasattr(model, "sanitize"):  # as mlx-lm does with the weights of a folder
        weights = dict(tree_flatten(model.parameters()))
        model.load_weights(list(model.sanitize(weights).items()))
    model.eval()
    return model, config


def randomise(model: nn.Module, seed: int, scale: float = 1.6) -> None:
    """Set random weights, large enough that greedy text does not repeat itself at once."""
    key = mx.random.key(seed)
    norms = {name for name, module in model.named_modules() if "Norm" in type(module).__name__}

    def draw(name: str, value: mx.array) -> mx.array:
        nonlocal key
        key, mine = mx.random.split(key)
        path, _, last = name.rpartition(".")
        if value.ndim == 0 or last == "signs":  # constants of activations and of packed weights
            return value
        if value.dtype == mx.uint32:  # packed weights
            return mx.random.randint(0, 2**32 - 1, value.shape, value.dtype, key=mine)
        noise = mx.random.normal(value.shape, key=mine)
        if path in norms or "norm" in last:
            return 0.1 * noise + (last != "bias")
        return noise * (scale / value.shape[-1] ** 0.5)

    model.update(tree_map_with_path(draw, model.parameters()))
    mx.eval(model.parameters())
