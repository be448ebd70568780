"""The drafter that a run begins with: new weights, or those of another drafter. Knows no data."""

from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.cpu.modules import restore_modules
from dflash_mlx.drafter.config import load_config, parse
from dflash_mlx.drafter.drafter import Drafter
from dflash_mlx.drafter.model import DraftModel
from dflash_mlx.drafters import check_fit, check_tensors, load_drafter
from dflash_mlx.errors import DFlashError
from dflash_mlx.target.target import Target


def warm_config(folder: Path, target: Target) -> dict[str, Any]:
    """The config of a drafter to start from.

    DFlashError where it cannot be trained, or was made for another target.
    """
    raw = load_config(folder)
    config = parse(raw)
    if config.dflash2 or config.draft_vocab_size:
        kind = "DFlash 2 drafter" if config.dflash2 else "drafter with its own vocabulary"
        raise DFlashError(
            f"'{folder.name}' is a {kind}, which cannot be trained yet.",
            hint="start from a DFlash v1 drafter, or from nothing",
        )
    check_fit(config, target.config, folder.name, target.path.name)
    check_tensors(folder, config, target.hidden_size)
    return raw


def warm_drafter(folder: Path, raw: dict[str, Any], target: Target) -> Drafter:
    """The drafter in a folder whose config `warm_config` gave, in float32."""
    drafter = load_drafter(folder, parse(raw), target)
    drafter.model.set_dtype(mx.float32)
    restore_modules(drafter.model)
    mx.eval(drafter.model.parameters())
    return drafter


def new_drafter(raw: dict[str, Any], target: Target, seed: int) -> Drafter:
    """A drafter of random weights."""
    config = parse(raw)
    target.tap(config.target_layer_ids)
    mx.random.seed(seed)
    model = DraftModel(config, target.hidden_size)
    mx.eval(model.parameters())
    return Drafter(model, target.embed, target.head)
