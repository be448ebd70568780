"""An EAGLE-3 head from its checkpoint: checked against its target, then loaded."""

from typing import Any

from dflash_mlx.drafters.weights import (
    UNUSED,
    WRONG_FILES,
    check_fit,
    check_tensors,
    checked_distances,
    load_weights,
    made,
    own_parts,
    read_safetensors,
)
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.target import Target

from .config import parse
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


def used(tensors: dict[str, Any]) -> dict[str, Any]:
    """The entries that drafting reads, by the authors' names."""
    plain = {plain_name(name): value for name, value in tensors.items()}
    return {
        name: value
        for name, value in plain.items()
        if name not in UNUSED and not name.endswith("rotary_emb.inv_freq")
    }


def matches(checkpoint: Checkpoint, target: Checkpoint) -> bool:
    return checkpoint.format == "eagle3"


def check(checkpoint: Checkpoint, target: Checkpoint) -> None:
    config = parse(checkpoint.config)
    theirs = target.text_config
    width = theirs["hidden_size"]
    taps = config.taps(theirs["num_hidden_layers"])
    sizes = (
        ("hidden size", config.target_hidden_size or config.hidden_size, width),
        ("vocabulary", config.vocab_size, theirs["vocab_size"]),
    )
    check_fit(checkpoint.name, target, sizes, taps)
    shapes = used({name: tensor.shape for name, tensor in checkpoint.tensors.items()})
    own = own_parts(shapes, OWN)
    narrow = config.hidden_size != width
    for part, shared in (
        ("embed_tokens", not narrow),
        ("lm_head", not narrow and config.draft_vocab_size in (None, config.vocab_size)),
    ):
        if part not in own and not shared:
            raise DFlashError(
                f"drafter '{checkpoint.name}' has no tensor '{part}.weight', and its target's has "
                "another size.",
                hint=WRONG_FILES,
            )
    model = made(lambda: EagleModel(config, len(taps), width, own))
    if "d2t" not in model:
        shapes.pop("d2t", None)
    check_tensors(checkpoint.path, model, shapes)


def load(checkpoint: Checkpoint, target: Target, bits: int = 0) -> EagleDrafter:
    config = parse(checkpoint.config)
    weights = used(read_safetensors(checkpoint))
    taps = config.taps(target.layers)
    model = EagleModel(config, len(taps), target.hidden_size, own_parts(weights, OWN))
    if "d2t" in model:
        weights["d2t"] = checked_distances(weights["d2t"], config.vocab_size, checkpoint.path)
    else:
        weights.pop("d2t", None)
    load_weights(model, weights, bits)
    target.tap(taps)
    return EagleDrafter(BoundHead(model, target.embed, target.head, target.head_type), taps)
