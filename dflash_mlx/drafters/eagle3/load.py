"""An EAGLE-3 head from its checkpoint: checked against its target, then loaded."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.drafters.weights import (
    UNUSED,
    checked_distances,
    load_weights,
    model_shapes,
    read_safetensors,
)
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import WRONG_FILES, Checkpoint, compare_shapes
from dflash_mlx.models.target import Target

from .config import EagleConfig, parse
from .drafter import EagleDrafter
from .model import OWN, BoundHead, EagleModel

# The tensors of an EAGLE-3 head's folder, by the authors' names.

LAYER = "midlayer."
SPECULATORS_LAYER = "layers.0."


def plain_name(name: str) -> str:
    """The name in the authors' checkpoints of a tensor that may come from another export."""
    name = name.removeprefix("model.")
    if name.startswith(SPECULATORS_LAYER):
        return LAYER + name.removeprefix(SPECULATORS_LAYER)
    return name


def is_used(name: str) -> bool:
    return name not in UNUSED and not name.endswith("rotary_emb.inv_freq")


def read_tensors(checkpoint: Checkpoint) -> dict[str, mx.array]:
    """The tensors that drafting reads. DFlashError for damaged or missing files."""
    return used(read_safetensors(checkpoint))


def used(tensors: dict[str, Any]) -> dict[str, Any]:
    """The entries that drafting reads, by the authors' names."""
    plain = {plain_name(name): value for name, value in tensors.items()}
    return {name: value for name, value in plain.items() if is_used(name)}


WRONG_PAIR = "use the head that was trained for this target"


def matches(checkpoint: Checkpoint, target: Checkpoint) -> bool:
    return checkpoint.format == "eagle3"


def check(checkpoint: Checkpoint, target: Checkpoint) -> None:
    config = parse(checkpoint.config)
    shapes = used({name: tensor.shape for name, tensor in checkpoint.tensors.items()})
    check_fit(config, own_parts(shapes), checkpoint.name, target)
    check_tensors(checkpoint.path, config, shapes, target.text_config)


def load(
    checkpoint: Checkpoint,
    target: Target,
    tokenizer: TokenizerWrapper | None = None,
    *,
    bits: int = 0,
    trust_remote_code: bool = False,
) -> EagleDrafter:
    config = parse(checkpoint.config)
    weights = read_tensors(checkpoint)
    taps = config.taps(target.layers)
    model = EagleModel(config, len(taps), target.hidden_size, own_parts(weights))
    if "d2t" in model:
        weights["d2t"] = checked_distances(weights["d2t"], config.vocab_size, checkpoint.path)
    else:
        weights.pop("d2t", None)
    load_weights(model, weights, bits)
    target.tap(taps)
    return EagleDrafter(BoundHead(model, target.embed, target.head, target.head_type), taps)


def own_parts(names: Iterable[str]) -> frozenset[str]:
    """The parts that a head with these tensors does not share with its target."""
    return OWN & {name.split(".")[0] for name in names}


def check_fit(config: EagleConfig, own: frozenset[str], name: str, target: Checkpoint) -> None:
    """Raise DFlashError if the head `name` does not fit or lacks a part. own: those it has."""
    layers = target.text_config["num_hidden_layers"]
    width = target.text_config["hidden_size"]
    for what, wanted, has in (
        ("hidden size", config.target_hidden_size or config.hidden_size, width),
        ("vocabulary", config.vocab_size, target.text_config["vocab_size"]),
    ):
        if wanted != has:
            raise DFlashError(
                f"drafter '{name}' expects a target with {what} {wanted}, "
                f"'{target.name}' has {has}.",
                hint=WRONG_PAIR,
            )
    if not all(0 <= number < layers for number in config.taps(layers)):
        raise DFlashError(
            f"drafter '{name}' reads the outputs of the layers "
            f"{list(config.taps(layers))}, '{target.name}' has {layers}.",
            hint=WRONG_PAIR,
        )
    narrow = config.hidden_size != width
    for part, shared in (
        ("embed_tokens", not narrow),
        ("lm_head", not narrow and config.draft_vocab_size in (None, config.vocab_size)),
    ):
        if part not in own and not shared:
            raise DFlashError(
                f"drafter '{name}' has no tensor '{part}.weight', and its target's "
                "has another size.",
                hint=WRONG_FILES,
            )


def check_tensors(
    path: Path, config: EagleConfig, shapes: dict[str, list[int]], target: dict[str, Any]
) -> None:
    """Raise DFlashError for a tensor that is missing, has another shape, or is not known."""
    taps = len(config.taps(target["num_hidden_layers"]))
    own = own_parts(shapes)
    wanted = model_shapes(lambda: EagleModel(config, taps, target["hidden_size"], own))
    if "d2t" not in wanted:
        shapes = {name: shape for name, shape in shapes.items() if name != "d2t"}
    compare_shapes(path, wanted, shapes)
