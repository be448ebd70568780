"""The sampling that a model's makers recommend: offered, and taken where it is asked for."""

from collections.abc import Mapping
from typing import Any

from dflash_mlx.errors import DFlashError
from dflash_mlx.options import SamplingParams, declared

from .backend import Backend

RECOMMENDED = "recommended"


def described(values: Mapping[str, float]) -> str:
    """The values as `/set` names them, and where they are from."""
    named = [one for one in declared(SamplingParams) if one.name in values]
    texts = [f"{one.option.setting} {values[one.name]:g}" for one in named]
    return f"{', '.join(texts)} (generation_config.json)"


def no_recommendation(backend: Backend) -> DFlashError:
    """The error for a model that recommends nothing."""
    return DFlashError(
        f"'{backend.target_name}' recommends no sampling: no generation_config.json of it says "
        "how.",
        hint="give --temp and --top-p, in a chat /temp and /top-p",
    )


def only_recommended(values: Mapping[str, float]) -> dict[str, Any]:
    """The fields of `SamplingParams` that make sampling just that; the seed is not among them."""
    names = [one for one in declared(SamplingParams) if one.name != "seed"]
    return {one.name: values.get(one.name, one.default) for one in names}
