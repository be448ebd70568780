"""What a run leaves on disk: checkpoints to resume from, and the drafter in Z Lab's format.

Files appear whole or not at all: each is written beside its place and then renamed. Does not know
what is trained, or how.
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

KEPT = 2
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}


def save_state(folder: Path, model: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> Path:
    """Write `folder`/step-NNNNNN with weights, optimiser and `state`; keep the last two.

    `state` holds JSON values, among them "step". The order of the data needs no more than that.
    """
    name = f"step-{state['step']:06d}"
    work, place = folder / f".{name}", folder / name
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    arrays = dict(tree_flatten(model.parameters(), prefix=".model"))
    arrays |= dict(tree_flatten(optimizer.state, prefix=".optimizer"))
    mx.save_safetensors(str(work / "state.safetensors"), arrays)
    (work / "state.json").write_text(json.dumps(state, indent=2) + "\n")
    shutil.rmtree(place, ignore_errors=True)
    work.rename(place)
    for old in found(folder)[:-KEPT]:
        shutil.rmtree(old)
    return place


def found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(p for p in folder.glob("step-*") if (p / "state.json").is_file())


def read_state(folder: Path) -> dict[str, Any]:
    """The JSON values of a checkpoint."""
    return json.loads((folder / "state.json").read_text())


def load_state(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Put a checkpoint's weights and optimiser state back."""
    try:
        arrays = mx.load(str(folder / "state.safetensors"))
        parts: dict[str, list[tuple[str, mx.array]]] = {"model": [], "optimizer": []}
        for name, array in arrays.items():  # type: ignore
            part, _, rest = name.partition(".")
            parts[part].append((rest, array))
        model.load_weights(parts["model"])
        optimizer.state = tree_unflatten(parts["optimizer"])
        mx.eval(model.parameters(), optimizer.state)
    except (RuntimeError, ValueError, KeyError) as error:
        raise DFlashError(
            f"the checkpoint '{folder}' does not fit this run ({str(error).splitlines()[0]}).",
            hint="give the flags of the first start, or another --out",
        ) from None


def export(folder: Path, raw: dict[str, Any], model: nn.Module, dtype: str) -> None:
    """Write `config.json` and `model.safetensors` as Z Lab's checkpoints name them."""
    work = folder / ".partial"
    work.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, mx.array] = dict(tree_flatten(model.parameters()))  # type: ignore
    weights = {name: array.astype(DTYPES[dtype]) for name, array in arrays.items()}
    mx.save_safetensors(str(work / "model.safetensors"), weights, metadata={"format": "pt"})
    (work / "config.json").write_text(json.dumps({**raw, "dtype": dtype}, indent=2) + "\n")
    for name in ("model.safetensors", "config.json"):
        os.replace(work / name, folder / name)
    work.rmdir()
