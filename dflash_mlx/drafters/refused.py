"""Published kinds of drafters that cannot be loaded. Each is refused by its name.

Without this they are taken for something else: for a language model that has no tokenizer, or for a
drafter with unknown tensors.
"""

import re
from typing import NoReturn

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.files.formats import SPLIT_MTP, TRAINED_MTP, is_drafter
from dflash_mlx.models.target import Target

# By a part of the architecture, the model type or the code's name in config.json, in lower case.
NAMES = {
    "domino": "Domino",
    "longspark": "LongSpark",
    "orthrus": "Orthrus",
    "d3d": "D3D",
    "dflare": "DFlare",
    "xpress": "xPress",
    "treeflash": "TreeFlash",
    "peagle": "P-EAGLE",
}
LAGUNA = "laguna"  # its DFlash has gates and norms of its own; the name is the target's, too


def matches(checkpoint: Checkpoint, target: Checkpoint) -> bool:
    """Whether a checkpoint is of a kind that is known and not supported."""
    return bool(kind_name(checkpoint))


def check(checkpoint: Checkpoint, target: Checkpoint) -> NoReturn:
    """Raise DFlashError with the kind."""
    raise DFlashError(
        f"the drafter '{checkpoint.name}' is of the kind {kind_name(checkpoint)}, which is not "
        "supported.",
        hint="`dflash models list --all` shows the drafters that run; or use --draft lookup",
    )


def load(
    checkpoint: Checkpoint,
    target: Target,
    tokenizer: TokenizerWrapper,
    *,
    bits: int = 0,
    trust_remote_code: bool = False,
) -> NoReturn:
    """As `check`."""
    check(checkpoint, target.checkpoint)


def kind_name(checkpoint: Checkpoint) -> str:
    """The name of a kind that is not supported; empty for others."""
    config = checkpoint.config
    model_type = str(config.get("model_type", ""))
    if model_type.endswith("_mtp") and model_type not in (SPLIT_MTP, TRAINED_MTP):
        return f"MTP head of {model_type.removesuffix('_mtp')}"
    if config.get("speculators_model_type") == "mtp":
        return "FastMTP"
    named = (
        *(config.get("architectures") or ()),
        model_type,
        str(config.get("speculators_model_type", "")),
        *(config.get("auto_map") or {}).values(),
    )
    text = " ".join(re.sub(r"[-_]", "", str(name)).lower() for name in named)
    if LAGUNA in text and is_drafter(config):
        return "DFlash of Laguna"
    return next((kind for part, kind in NAMES.items() if part in text), "")
