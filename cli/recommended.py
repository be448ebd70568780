"""The sampling that a model's makers recommend: offered, and taken where it is asked for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from dflash_mlx.errors import DFlashError
from dflash_mlx.remote.session import Server
from dflash_mlx.types import SamplingParams

from .chat_settings import SAMPLING_FIELDS, SETTINGS
from .option_sources import SOURCES, option_source
from .options import SamplingOptions
from .terminal.output import Output

if TYPE_CHECKING:
    from dflash_mlx import Pair

RECOMMENDED = "recommended"


def recommended_by(pair: "Pair | Server") -> dict[str, float]:
    """The values by the names of options; empty where the model names none, as a server's."""
    if isinstance(pair, Server):
        return {}
    from dflash_mlx.models.target import recommended_sampling

    found = recommended_sampling(pair.target.path)
    if "temperature" in found:
        found["temp"] = found.pop("temperature")
    return found


def described(values: Mapping[str, float]) -> str:
    """The values as `/set` names them, and where they are from."""
    named = {"temp": values["temp"], **values}
    texts = [f"{name.replace('_', '-')} {value:g}" for name, value in named.items()]
    return f"{', '.join(texts)} (generation_config.json)"


def no_recommendation(pair: "Pair | Server") -> DFlashError:
    """The error for a model that recommends nothing."""
    return DFlashError(
        f"'{pair.target_name}' recommends no sampling: no generation_config.json of it says how.",
        hint="give --temp and --top-p, in a chat /temp and /top-p",
    )


def with_recommended(
    ctx: typer.Context, options: SamplingOptions, pair: "Pair | Server", out: Output
) -> SamplingOptions:
    """The options with the recommended values, where `--sampling recommended` is given.

    What is set in the same place as that, or in one that counts before it, stays. DFlashError for a
    flag that the model has no values for; from elsewhere, which is said for all models, a note.
    """
    if options.sampling_by != RECOMMENDED:
        return options
    source = option_source(ctx, "sampling_by")
    found = recommended_by(pair)
    if not found:
        error = no_recommendation(pair)
        if source == "COMMANDLINE":
            raise error
        out.note(f"  {error.message}")
        return options
    weaker = SOURCES[SOURCES.index(source) + 1 :]
    taken = {name: value for name, value in found.items() if option_source(ctx, name) in weaker}
    options = replace(options, **taken)
    used = {name: getattr(options, name) for name in found}
    out.note(f"  sampling as recommended: {described(used)}")
    return options


def only_recommended(values: Mapping[str, float]) -> dict[str, Any]:
    """The fields of `SamplingParams` that make sampling just that; the seed is not among them."""
    fields = {spec.field for spec in SETTINGS if spec.field in SAMPLING_FIELDS} - {"seed"}
    own = {("temperature" if name == "temp" else name): value for name, value in values.items()}
    plain = SamplingParams()
    return {name: own.get(name, getattr(plain, name)) for name in fields}
