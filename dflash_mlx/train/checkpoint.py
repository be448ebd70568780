"""Files of a training run: checkpoints to resume from, and the drafter in Z Lab's format.

A file or checkpoint folder is written under another name and then renamed.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.optimizers import Optimizer
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.folder import matching

from .settings import Dtype

MAX_CHECKPOINTS = 2


def save_state(folder: Path, model: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Write the checkpoint `folder`/step-NNNNNN; keep the last two.

    It has the weights, the optimiser state, and `state`: JSON values with an entry "step".
    """
    place = folder / f"step-{state['step']:06d}"
    work = place.with_name(f".{place.name}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    tree = {"model": model.parameters(), "optimizer": optimizer.state}
    mx.save_safetensors(str(work / "state.safetensors"), dict(tree_flatten(tree)))
    (work / "state.json").write_text(json.dumps(state, indent=2) + "\n")
    shutil.rmtree(place, ignore_errors=True)
    work.rename(place)
    for old in list_checkpoints(folder)[:-MAX_CHECKPOINTS]:
        shutil.rmtree(old)


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return [p for p in matching(folder, "step-*") if (p / "state.json").is_file()]


def load_state(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Load weights and optimiser state, in place. Raises DFlashError if they do not fit."""
    try:
        arrays: Any = mx.load(str(folder / "state.safetensors"))
        tree: Any = tree_unflatten(list(arrays.items()))
        model.load_weights(tree_flatten(tree["model"]))  # type: ignore[arg-type]
        optimizer.state = tree["optimizer"]
        mx.eval(model.parameters(), optimizer.state)
    except (RuntimeError, ValueError, KeyError) as error:
        raise DFlashError(
            f"the checkpoint '{folder}' does not fit this run ({str(error).splitlines()[0]}).",
            hint="give the flags of the first start, or another --out",
        ) from None


def export_drafter(folder: Path, raw: dict[str, Any], model: nn.Module, dtype: Dtype) -> None:
    """Write `config.json` (`raw`) and `model.safetensors` in Z Lab's format."""
    work = folder / ".partial"
    work.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, mx.array] = dict(tree_flatten(model.parameters()))  # type: ignore
    exported: mx.Dtype = getattr(mx, dtype)
    weights = {
        name: array.astype(exported) if mx.issubdtype(array.dtype, mx.floating) else array
        for name, array in arrays.items()
    }
    mx.save_safetensors(str(work / "model.safetensors"), weights, metadata={"format": "pt"})
    (work / "config.json").write_text(json.dumps({**raw, "dtype": dtype}, indent=2) + "\n")
    for name in ("model.safetensors", "config.json"):
        os.replace(work / name, folder / name)
    work.rmdir()
