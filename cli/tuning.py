"""What `/set` changes during a chat: names, meanings, and how a word becomes a value.

Knows the engine's parameters, not the engine.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from dflash_mlx.errors import UsageError
from dflash_mlx.types import SamplingParams

Drafting = Literal["dflash", "ddtree", "auto"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """How answers are made; `max_tokens` None is up to the end of the context."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    block_size: int | None = None
    accept: str = "match"
    stop: tuple[str, ...] = ()
    think: bool | None = None
    effort: str | None = None
    mode: Drafting = "auto"
    tree_budget: int | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One name of `/set`: the field behind it, how it is read, and what it does."""

    name: str
    field: str
    read: Callable[[str], Any]
    help: str
    off: str = ""  # the word for the field's default, where a number would not say it


def whole(word: str) -> int:
    """A whole number, also written 4,096 or 4_096."""
    return int(word.replace(",", "").replace("_", ""))


def drafting(word: str) -> str:
    """A mode in which something is drafted."""
    if word.lower() not in get_args(Drafting):
        raise ValueError(word)
    return word.lower()


SETTINGS = (
    Setting("temp", "temperature", float, "temperature; 0 takes the likeliest token"),
    Setting("top-p", "top_p", float, "keep the likeliest tokens up to this mass; 1 is off"),
    Setting("top-k", "top_k", whole, "keep the K likeliest tokens; 0 is off"),
    Setting("min-p", "min_p", float, "drop tokens below this share of the likeliest; 0 is off"),
    Setting("repetition-penalty", "repetition_penalty", float, "divide scores of recent tokens"),
    Setting("presence-penalty", "presence_penalty", float, "subtract once from recent tokens"),
    Setting("frequency-penalty", "frequency_penalty", float, "subtract for each recent use"),
    Setting("seed", "seed", whole, "the same seed gives the same tokens", off="none"),
    Setting("max-tokens", "max_tokens", whole, "longest answer", off="context"),
    Setting("block", "block_size", whole, "tokens a block has, anchor included", off="auto"),
    Setting(
        "mode", "mode", drafting, "dflash drafts a chain, ddtree a tree, auto what measures best"
    ),
    Setting(
        "tree-budget", "tree_budget", whole, "drafts a tree has, in the mode ddtree", off="auto"
    ),
)
KINDS = {float: "a number", whole: "a whole number", drafting: "dflash, ddtree or auto"}
BOUNDS = {"max_tokens": (1, 1 << 30), "block_size": (2, 256), "tree_budget": (1, 1024)}
OF_SAMPLING = {f.name for f in fields(SamplingParams)}


def setting(name: str) -> Setting | None:
    """The setting of that name; underscores do for dashes."""
    name = name.replace("_", "-").lower()
    return next((s for s in SETTINGS if s.name == name), None)


def changed(tuning: Tuning, which: Setting, word: str) -> Tuning:
    """The tuning with one setting changed; UsageError for a word that is no value of it."""
    if which.off and word.lower() in (which.off, "off"):
        value = None
    else:
        try:
            value = which.read(word)
        except ValueError:
            kind = KINDS[which.read]
            or_off = f" or {which.off}" if which.off else ""
            raise UsageError(
                f"{which.name} cannot be '{word}'.", hint=f"give {kind}{or_off}"
            ) from None
    if which.field in OF_SAMPLING:
        return replace(tuning, sampling=replace(tuning.sampling, **{which.field: value}))
    if isinstance(value, str):
        return replace(tuning, **{which.field: value})
    least, most = BOUNDS[which.field]
    if value is not None and not least <= value <= most:
        raise UsageError(
            f"{which.name} cannot be {value:,}.", hint=f"give {least} to {most:,}, or {which.off}"
        )
    return replace(tuning, **{which.field: value})


def shown(tuning: Tuning, which: Setting) -> str:
    """A setting's value as it could be typed."""
    place: Any = tuning.sampling if which.field in OF_SAMPLING else tuning
    value = getattr(place, which.field)
    return which.off if value is None else f"{value:g}" if isinstance(value, float) else str(value)
