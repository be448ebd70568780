"""What drafts, from its folder: checked against a target before any weight is read, then loaded.

A folder holds a DFlash drafter, an EAGLE-3 head or a language model.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.cpu.modules import use_cpu_modules
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.files.checkpoint import check_weights, compare_shapes, header, load_config
from dflash_mlx.hub import resolve
from dflash_mlx.hub.formats import is_drafter, is_eagle
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.models.quantise import quantise
from dflash_mlx.models.target import Target, target_config

from .base import Drafter
from .dflash import config as assistant
from .dflash.config import DraftConfig, parse
from .dflash.drafter import DFlashDrafter, read_mask_embedding
from .dflash.model import OWN, DraftModel, checked_distances
from .eagle3.load import check_eagle, load_eagle
from .small_model import SmallModelDrafter

# Tensors of some exports that drafting does not read: the map back, and copies of the target's.
UNUSED = frozenset({"t2d", "verifier_norm.weight", "verifier_lm_head.weight"})


def check_drafter(path: Path, target: dict[str, Any], names: resolve.Names) -> None:
    """DFlashError where what lies in a folder cannot draft for a target with this config."""
    raw = load_config(path)
    if is_eagle(raw):
        check_eagle(path, raw, target, names)
    elif is_drafter(raw):
        checked(path, target, names)
    else:
        target_config(path)


def load_source(
    path: Path, target: Target, bits: int = 0, *, trust_remote_code: bool = False
) -> Drafter:
    """Load what was checked. `bits` 4 or 8 quantises it, 0 does not.

    DFlashError for a language model that has other tokens, or layers that cannot go back.
    """
    raw = load_config(path)
    if is_eagle(raw):
        return load_eagle(path, raw, target, bits)
    if is_drafter(raw):
        return load_drafter(path, parse(raw), target, bits)
    reader = Target.load(path, trust_remote_code=trust_remote_code)
    reader.kernels = Kernels()
    ours, theirs = target.tokenizer.get_vocab(), reader.tokenizer.get_vocab()
    if ours != theirs:
        raise DFlashError(
            f"the model '{path.name}' has other tokens than '{target.path.name}'.",
            hint="give a smaller model of the same family, or --draft lookup",
        )
    if reader.make_cache().needs_snapshots:
        raise DFlashError(
            f"the layers of '{path.name}' are recurrent or slide, and cannot take drafts back.",
            hint="give a model with full attention, or --draft lookup",
        )
    quantise(reader.model, bits)
    target.tap(())
    return SmallModelDrafter(reader, target.vocab_size)


def checked(path: Path, target: dict[str, Any], names: resolve.Names) -> DraftConfig:
    """A drafter's config, after it and all tensor shapes were held against the target."""
    config = parse(load_config(path))
    check_fit(config, target, names.draft_label, names.target_label)
    check_tensors(path, config, target["hidden_size"])
    return config


def load_drafter(path: Path, config: DraftConfig, target: Target, bits: int = 0) -> DFlashDrafter:
    """Load a checked drafter and bind it to its target, whose layers are tapped for it.

    `bits` 4 or 8 quantises it, 0 does not.
    """
    weights: dict[str, mx.array] = {}
    for file in check_weights(path, "*.safetensors"):
        weights.update({plain_name(k): v for k, v in mx.load(str(file)).items()})  # type: ignore
    if (row := read_mask_embedding(path, config.mask_token_id)) is not None:
        weights["mask_embedding"] = row
    model = DraftModel(config, target.hidden_size, own_parts(weights))
    if config.draft_vocab_size:
        weights["d2t"] = checked_distances(weights["d2t"], config.vocab_size, path)
    model.load_weights([item for item in weights.items() if item[0] not in UNUSED])
    # A norm or a mask row in float32 would make everything after it float32.
    model.set_dtype(model.fc.weight.dtype)
    quantise(model, bits)
    use_cpu_modules(model)
    model.eval()
    mx.eval(model.parameters())
    target.tap(config.target_layer_ids)
    return DFlashDrafter(model, target.embed, target.head, target.head_type)


def own_parts(names: Iterable[str]) -> frozenset[str]:
    """Which parts a drafter with these tensors does not share with its target."""
    return OWN & {name.split(".")[0] for name in names}


def plain_name(name: str) -> str:
    """A tensor's name in Z Lab's checkpoints: some exports add a prefix, Meta's has other names."""
    name = name.removeprefix("model.")
    return assistant.ASSISTANT_NAMES.get(name, name)


def check_fit(
    draft: DraftConfig, target: dict[str, Any], draft_name: str | None, target_name: str
) -> None:
    """DFlashError when a drafter was made for another target: it shares embedding and head."""
    hint = "use the drafter that was trained for this target; `dflash models list` shows the pairs"
    layers = target["num_hidden_layers"]
    for what, wanted, has in (
        ("hidden size", draft.hidden_size, target["hidden_size"]),
        ("vocabulary", draft.vocab_size, target["vocab_size"]),
        ("layer count", draft.num_target_layers or layers, layers),
    ):
        if wanted != has:
            raise DFlashError(
                f"drafter '{draft_name}' expects a target with {what} {wanted}, "
                f"'{target_name}' has {has}.",
                hint=hint,
            )
    if not all(0 <= number < layers for number in draft.target_layer_ids):
        raise DFlashError(
            f"drafter '{draft_name}' taps the layers {list(draft.target_layer_ids)}, "
            f"'{target_name}' has {layers}.",
            hint=hint,
        )
    if not 0 <= draft.mask_token_id < draft.vocab_size:
        raise DFlashError(
            f"drafter '{draft_name}' has the mask token {draft.mask_token_id}, outside its "
            f"vocabulary of {draft.vocab_size}.",
            hint=hint,
        )


def check_tensors(path: Path, config: DraftConfig, target_hidden_size: int) -> None:
    """DFlashError for a tensor that is missing, has another shape, or is not known."""
    found: dict[str, list[int]] = {}
    for file in check_weights(path, "*.safetensors"):
        found.update({plain_name(name): shape for name, shape in header(file).items()})
    found = {name: shape for name, shape in found.items() if name not in UNUSED}
    if (row := read_mask_embedding(path, config.mask_token_id)) is not None:
        found["mask_embedding"] = list(row.shape)
    try:
        model = DraftModel(config, target_hidden_size, own_parts(found))
    except (ValueError, KeyError, TypeError) as error:  # mlx-lm does not know the rope scaling
        raise DFlashError(
            f"the drafter's config cannot be used ({first_line(error)}).",
            hint="use a drafter whose rope scaling mlx-lm knows",
        ) from error
    wanted = {name: list(value.shape) for name, value in tree_flatten(model.parameters())}  # type: ignore
    compare_shapes(path, wanted, found)
