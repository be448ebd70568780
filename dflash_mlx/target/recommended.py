"""How a model's makers would sample it: generation_config.json of its folder. Applies nothing."""

from pathlib import Path
from typing import Any

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.files.checkpoint import json_object
from dflash_mlx.types import SamplingParams

FILE = "generation_config.json"
FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def recommended_sampling(folder: Path) -> dict[str, float]:
    """The fields of `SamplingParams` that a model's folder names; empty where it names none.

    As transformers reads the file: with do_sample false, or without it and a temperature, a model
    is decoded greedily, and the rest says nothing; with do_sample true alone the temperature is 1.
    (Its default of 50 for a top_k that is not there is not taken.) Raises DFlashError for a file
    that is not JSON, or has a value that cannot be.
    """
    try:
        raw = json_object(folder / FILE)
    except FileNotFoundError:
        return {}
    if raw.get("do_sample") is False:
        return {}
    found = {n: value_of(n, raw[n], folder) for n in FIELDS if raw.get(n) is not None}
    if raw.get("do_sample"):
        found.setdefault("temperature", 1.0)
    return found if found.get("temperature") else {}


def value_of(name: str, value: Any, folder: Path) -> float:
    """A value as `SamplingParams` takes it; DFlashError for what cannot be one."""
    try:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(value)
        found: Any = {name: int(value) if name == "top_k" else float(value)}
        SamplingParams(**found)
    except (UsageError, ValueError, OverflowError):
        raise DFlashError(
            f"'{folder / FILE}' recommends a {name} that cannot be: {value!r:.40}.",
            hint="mend the file, or remove it",
        ) from None
    return found[name]
