"""An EAGLE-3 head from its checkpoint: checked against its target, then loaded."""

import re

from dflash_mlx.drafters.weights import (
    WRONG_FILES,
    check_fit,
    check_tensors,
    load_weights,
    own_parts,
    read_safetensors,
    used,
)
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.target import Target

from .config import parse
from .drafter import EagleDrafter
from .model import EagleModel


def plain_name(name: str) -> str:
    """A tensor's name in the authors' checkpoints; speculators gives the layer a number."""
    return re.sub(r"^layers\.0\.", "midlayer.", name.removeprefix("model."))


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
    shapes = used({name: found.shape for name, found in checkpoint.tensors.items()}, plain_name)
    own = own_parts(shapes)
    fits = config.hidden_size == width
    whole = config.draft_vocab_size is None
    for part, shared in (("embed_tokens", fits), ("lm_head", fits and whole)):
        if part not in own and not shared:
            raise DFlashError(
                f"drafter '{checkpoint.name}' has no tensor '{part}.weight', and its target's has "
                "another size.",
                hint=WRONG_FILES,
            )
    if whole:
        shapes.pop("d2t", None)
    check_tensors(checkpoint, lambda: EagleModel(config, len(taps), width, own), shapes)


def load(checkpoint: Checkpoint, target: Target, bits: int = 0) -> EagleDrafter:
    config = parse(checkpoint.config)
    weights = used(read_safetensors(checkpoint), plain_name)
    taps = config.taps(target.layers)
    model = EagleModel(config, len(taps), target.hidden_size, own_parts(weights))
    if config.draft_vocab_size is None:
        weights.pop("d2t", None)
    load_weights(checkpoint, model, weights, bits)
    target.tap(taps)
    return EagleDrafter(model, target.embed, target.head, target.head_type, taps)
