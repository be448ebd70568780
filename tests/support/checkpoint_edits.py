"""Edits of checkpoints on disk, and loads that must fail."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.pair import load


def refused(match: str, *args: Any, **options: Any) -> DFlashError:
    """Load and return the DFlashError; its message and its hint must be one sentence each."""
    with pytest.raises(DFlashError, match=match) as caught:
        load(*args, **options)
    error = caught.value
    assert error.message.endswith(".")
    assert "\n" not in error.message + error.hint
    assert error.hint
    assert error.hint != error.message
    return error


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None removes a key. `dflash_config` is merged."""
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
    loaded: Any = mx.load(str(folder / "model.safetensors"))
    weights: dict[str, mx.array] = dict(loaded)
    mx.eval(weights)
    change(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
