"""An EAGLE-3 head from its checkpoint: checked against its target, then loaded."""

import re
from typing import Any

from dflash_mlx.drafters.weights import (
    UNUSED,
    WRONG_FILES,
    check_fit,
    check_tensors,
    load_weights,
    own_parts,
    read_safetensors,
)
from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.target import Target

from .config import parse
from .drafter import EagleDrafter
from .model import EagleModel


def used(tensors: dict[str, Any]) -> dict[str, Any]:
    """The entries that drafting reads, by the authors' names; speculators names a layer."""
    plain = {
        re.sub(r"^layers\.0\.", "midlayer.", name.removeprefix("model.")): value
        for name, value in tensors.items()
    }
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
    weights = used(read_safetensors(checkpoint))
    taps = config.taps(target.layers)
    model = EagleModel(config, len(taps), target.hidden_size, own_parts(weights))
    if config.draft_vocab_size is None:
        weights.pop("d2t", None)
    load_weights(checkpoint, model, weights, bits)
    target.tap(taps)
    return EagleDrafter(model, target.embed, target.head, target.head_type, taps)
