"""An MTP head from its target's folder or its own: checked against the target, then loaded."""

from typing import Any

from dflash_mlx.drafters.weights import WRONG_FILES, check_fit, check_tensors, load_weights
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.files.formats import TRAINED_MTP
from dflash_mlx.models.target import Target

from .drafter import BLOCK, MTPDrafter
from .model import LAYERS, MTPHead, make_head
from .tensors import Tensors, has_head, read_head, with_whole_norms


def matches(checkpoint: Checkpoint, target: Checkpoint) -> bool:
    """Whether a checkpoint holds an MTP head, and is not a smaller model that has one too."""
    if checkpoint.format == "mtp":
        return True
    if not has_head(checkpoint):
        return False
    files = checkpoint.headers("*.safetensors").values()
    is_whole = any(name.endswith("embed_tokens.weight") for names in files for name in names)
    widths = [one.text_config.get("hidden_size") for one in (checkpoint, target)]
    return not is_whole or widths[0] == widths[1]


def check(checkpoint: Checkpoint, target: Checkpoint) -> None:
    """Raise DFlashError if there is no head, or if its tensors do not fit the target."""
    tensors = read_head(checkpoint)
    family = (own_config(checkpoint.config) or target.text_config)["model_type"]
    if family not in LAYERS:
        known = ", ".join(name for name in LAYERS if name != TRAINED_MTP)
        raise DFlashError(
            f"MTP heads of targets of the type '{family}' are not supported.",
            hint=f"those of {known} are, and your own: dflash train --kind mtp",
        )
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    model = head_for(checkpoint, target.text_config, tensors)
    check_tensors(checkpoint, lambda: model, shapes)
    width = target.text_config["hidden_size"]
    check_fit(checkpoint.name, target, [("hidden size", model.config.hidden_size, width)])


def load(checkpoint: Checkpoint, target: Target, bits: int = 0) -> MTPDrafter:
    tensors = read_head(checkpoint)
    model = head_for(checkpoint, target.config, tensors)
    load_weights(checkpoint, model, with_whole_norms(tensors), bits)
    taps = (target.layers,)
    target.tap(taps)
    block = block_size_of(checkpoint.config)
    return MTPDrafter(model, target.embed, target.head, target.head_type, taps, block)


def own_config(config: dict[str, Any]) -> dict[str, Any]:
    """A head's config if it describes the layer; empty if the target's does."""
    return config if config.get("model_type") == TRAINED_MTP else {}


def block_size_of(config: dict[str, Any]) -> int:
    return own_config(config).get("block_size", BLOCK)


def head_for(checkpoint: Checkpoint, target: dict[str, Any], tensors: Tensors) -> MTPHead:
    """As `make_head`, for a target with this config.

    Raises DFlashError for a tensor, or an entry of the head's own config, that is missing.
    """
    try:
        return make_head(own_config(checkpoint.config) or target, tensors)
    except (TypeError, ValueError) as error:
        raise DFlashError(
            f"the drafter's config cannot be used ({first_line(error)}).", hint=WRONG_FILES
        ) from error
    except KeyError as error:
        raise DFlashError(
            f"the drafter in '{checkpoint.path}' has no tensor '{error.args[0]}'.", hint=WRONG_FILES
        ) from error
