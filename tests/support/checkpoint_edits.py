"""Edits of a checkpoint on disk, and loads that must be refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.pair import load


def refused(match: str, *args: Any, **options: Any) -> DFlashError:
    """Load; the error that comes has a message with `match` in it and a hint, one sentence each."""
    with pytest.raises(DFlashError, match=match) as caught:
        load(*args, **options)
    error = caught.value
    assert error.message.endswith(".")
    assert "\n" not in error.message + error.hint
    assert error.hint
    assert error.hint != error.message
    return error


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of a config.json; None takes one out. dflash_config is merged."""
    config = json.loads((folder / "config.json").read_text())
    nested = changes.pop("dflash_config", {})
    config = {k: v for k, v in {**config, **changes}.items() if v is not None}
    if "dflash_config" in config and isinstance(nested, dict):
        config["dflash_config"] = {
            k: v for k, v in {**config["dflash_config"], **nested}.items() if v is not None
        }
    elif nested:
        config["dflash_config"] = nested
    (folder / "config.json").write_text(json.dumps(config))


def edit_weights(folder: Path, change: Callable[[dict[str, mx.array]], None]) -> None:
    """Change the tensors of a folder."""
    loaded: Any = mx.load(str(folder / "model.safetensors"))
    weights: dict[str, mx.array] = dict(loaded)
    mx.eval(weights)
    change(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
