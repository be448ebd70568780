"""The tensors of an EAGLE-3 head's folder, from either kind of file, by the authors' names.

The authors publish what torch.save wrote, others safetensors; the `speculators` format names the
layer as the first of several.
"""

from pathlib import Path

import mlx.core as mx

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import TORCH_FILE, check_weights, header
from dflash_mlx.files.torch_file import UNREADABLE, read_torch_file

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
