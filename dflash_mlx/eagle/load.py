"""An EAGLE-3 head from its folder: held against its target before any weight is read; loaded."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.cpu.modules import use_cpu_modules
from dflash_mlx.drafter.quantise import quantise
from dflash_mlx.drafter.vocabulary import checked_distances
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.files.checkpoint import WRONG_FILES, compare_shapes
from dflash_mlx.hub.resolve import Names
from dflash_mlx.target.target import Target

from .config import EagleConfig, parse
from .drafter import EagleDrafter
from .head import BoundHead
from .model import OWN, EagleModel
from .weights import read_shapes, read_tensors

WRONG_PAIR = "use the head that was trained for this target"


def check_eagle(path: Path, raw: dict[str, Any], target: dict[str, Any], names: Names) -> None:
    """DFlashError where a head's config or tensors do not fit a target with this config."""
    config, shapes = parse(raw), read_shapes(path)
    check_fit(config, target, own_parts(shapes), names)
    check_tensors(path, config, shapes, target)


def load_eagle(path: Path, raw: dict[str, Any], target: Target, bits: int = 0) -> EagleDrafter:
    """Load a checked head and bind it to its target, whose layers are tapped for it.

    `bits` 4 or 8 quantises it, 0 does not.
    """
    config, weights = parse(raw), read_tensors(path)
    taps = config.taps(target.layers)
    model = EagleModel(config, len(taps), target.hidden_size, own_parts(weights))
    if "d2t" in model:
        weights["d2t"] = checked_distances(weights["d2t"], config.vocab_size, path)
    else:
        weights.pop("d2t", None)
    model.load_weights(list(weights.items()))
    model.set_dtype(model.fc.weight.dtype)
    quantise(model, bits)
    use_cpu_modules(model)
    model.eval()
    mx.eval(model.parameters())
    target.tap(taps)
    return EagleDrafter(BoundHead(model, target.embed, target.head, target.head_type), taps)


def own_parts(names: Any) -> frozenset[str]:
    """Which parts a head with these tensors does not share with its target."""
    return OWN & {name.split(".")[0] for name in names}


def check_fit(
    config: EagleConfig, target: dict[str, Any], own: frozenset[str], names: Names
) -> None:
    """DFlashError when a head was made for another target, or lacks what it cannot share."""
    layers, wide = target["num_hidden_layers"], target["hidden_size"]
    for what, wanted, has in (
        ("hidden size", config.target_hidden_size or config.hidden_size, wide),
        ("vocabulary", config.vocab_size, target["vocab_size"]),
    ):
        if wanted != has:
            raise DFlashError(
                f"drafter '{names.draft_label}' expects a target with {what} {wanted}, "
                f"'{names.target_label}' has {has}.",
                hint=WRONG_PAIR,
            )
    if not all(0 <= number < layers for number in config.taps(layers)):
        raise DFlashError(
            f"drafter '{names.draft_label}' reads the outputs of the layers "
            f"{list(config.taps(layers))}, '{names.target_label}' has {layers}.",
            hint=WRONG_PAIR,
        )
    narrow = config.hidden_size != wide
    for part, shared in (
        ("embed_tokens", not narrow),
        ("lm_head", not narrow and config.draft_vocab_size in (None, config.vocab_size)),
    ):
        if part not in own and not shared:
            raise DFlashError(
                f"drafter '{names.draft_label}' has no tensor '{part}.weight', and its target's "
                "has another size.",
                hint=WRONG_FILES,
            )


def check_tensors(
    path: Path, config: EagleConfig, shapes: dict[str, list[int]], target: dict[str, Any]
) -> None:
    """DFlashError for a tensor that is missing, has another shape, or is not known."""
    taps = len(config.taps(target["num_hidden_layers"]))
    try:
        model = EagleModel(config, taps, target["hidden_size"], own_parts(shapes))
    except (ValueError, KeyError, TypeError) as error:  # mlx-lm does not know the rope scaling
        raise DFlashError(
            f"the drafter's config cannot be used ({first_line(error)}).",
            hint="use a drafter whose rope scaling mlx-lm knows",
        ) from error
    found = dict(shapes) if "d2t" in model else {n: s for n, s in shapes.items() if n != "d2t"}
    wanted = {name: list(value.shape) for name, value in tree_flatten(model.parameters())}  # type: ignore
    compare_shapes(path, wanted, found)
