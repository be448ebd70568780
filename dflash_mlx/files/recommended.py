"""The sampling options that a model's authors recommend."""

from pathlib import Path
from typing import Any

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import SamplingParams, declared

from .checkpoint import Checkpoint

FILE = "generation_config.json"
FIELDS = tuple(option.name for option in declared(SamplingParams) if option.name != "seed")


def recommended_sampling(checkpoint: Checkpoint) -> dict[str, float]:
    """The fields of `SamplingParams` that generation_config.json sets; empty for greedy decoding.

    As in transformers, decoding is greedy if do_sample is false, or if there is neither do_sample
    nor a temperature; then the other fields have no effect. With do_sample alone the
    temperature is 1. transformers' default top_k of 50 is not used. Raises DFlashError for a file
    that is not JSON, or has an invalid value.
    """
    raw = checkpoint.generation_config
    if raw.get("do_sample") is False:
        return {}
    given = [name for name in FIELDS if raw.get(name) is not None]
    values = {name: value_of(name, raw[name], checkpoint.path) for name in given}
    if raw.get("do_sample"):
        values.setdefault("temperature", 1.0)
    return values if values.get("temperature") else {}


def value_of(name: str, value: Any, folder: Path) -> float:
    """A number that `SamplingParams` accepts. Raises DFlashError for any other value."""
    try:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(value)
        number: Any = int(value) if name == "top_k" else float(value)
        SamplingParams(**{name: number})
    except (UsageError, ValueError, OverflowError):
        raise DFlashError(
            f"'{folder / FILE}' recommends a {name} that is out of range: {value!r:.40}.",
            hint="repair the file, or remove it",
        ) from None
    return number
