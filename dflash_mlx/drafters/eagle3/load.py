"""An EAGLE-3 head from its folder: held against its target before any weight is read; loaded."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash_mlx.cpu.modules import use_cpu_modules
from dflash_mlx.drafters.dflash.model import checked_distances
from dflash_mlx.errors import DFlashError, first_line
from dflash_mlx.files.checkpoint import (
    TORCH_FILE,
    WRONG_FILES,
    check_weights,
    compare_shapes,
    header,
)
from dflash_mlx.files.torch_file import UNREADABLE, read_torch_file
from dflash_mlx.hub.resolve import Names
from dflash_mlx.models.quantise import quantise
from dflash_mlx.models.target import Target

from .config import EagleConfig, parse
from .drafter import EagleDrafter
from .model import OWN, BoundHead, EagleModel

# The tensors of an EAGLE-3 head's folder, from either kind of file, by the authors' names.

LAYER, FIRST = "midlayer.", "layers.0."
# The map back, copies of the target's, and what rotary embeddings are computed from.
UNUSED = frozenset({"t2d", "verifier_norm.weight", "verifier_lm_head.weight"})


def plain_name(name: str) -> str:
    """The authors' name of a tensor."""
    name = name.removeprefix("model.")
    return LAYER + name.removeprefix(FIRST) if name.startswith(FIRST) else name


def is_used(name: str) -> bool:
    """Whether drafting reads a tensor."""
    return name not in UNUSED and not name.endswith("rotary_emb.inv_freq")


def read_shapes(folder: Path) -> dict[str, list[int]]:
    """The shape of every tensor that drafting reads. DFlashError for damaged or missing files."""
    found: dict[str, list[int]] = {}
    if (file := torch_file(folder)) is not None:
        found = load_torch(file, shapes=True)
    else:
        for part in check_weights(folder, "*.safetensors"):
            found.update(header(part))
    return {name: found[each] for each in found if is_used(name := plain_name(each))}


def read_tensors(folder: Path) -> dict[str, mx.array]:
    """Those tensors. DFlashError as `read_shapes`."""
    found: dict[str, mx.array] = {}
    if (file := torch_file(folder)) is not None:
        found = load_torch(file)
    else:
        for part in check_weights(folder, "*.safetensors"):
            found.update(mx.load(str(part)))  # type: ignore
    return {name: found[each] for each in found if is_used(name := plain_name(each))}


def torch_file(folder: Path) -> Path | None:
    """The file that torch.save wrote, where there are no safetensors."""
    file = folder / TORCH_FILE
    return file if file.exists() and not any(folder.glob("*.safetensors")) else None


def load_torch(file: Path, *, shapes: bool = False) -> dict:
    """The tensors of a file of torch.save, or their shapes; DFlashError for other contents."""
    try:
        found = read_torch_file(file, shapes=shapes)
    except UNREADABLE as error:
        raise DFlashError(
            f"'{file}' cannot be read ({error}).", hint="download the drafter again"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise DFlashError(f"'{file}' holds no weights.", hint="download the drafter again")
    return found


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
