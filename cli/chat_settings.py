"""The settings that `/set` changes during a chat: their names, help texts and parsers."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from dflash_mlx.errors import UsageError
from dflash_mlx.types import SamplingParams

ACCEPT_RULES = ("match", "token", "block")
DraftingMode = Literal["dflash", "ddtree", "auto"]


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The settings of the next answer; `max_tokens` None means up to the end of the context."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    block_size: int | None = None
    accept: str = "match"
    stop: tuple[str, ...] = ()
    think: bool | None = None
    effort: str | None = None
    mode: DraftingMode = "auto"
    tree_budget: int | None = None


@dataclass(frozen=True, slots=True)
class SettingSpec:
    """One name of `/set`: its field, its parser and its help text."""

    name: str
    field: str
    parse: Callable[[str], Any]
    help: str
    unset: str = ""  # the word for None


def parse_int(text: str) -> int:
    """A whole number; also accepts 4,096 and 4_096."""
    return int(text.replace(",", "").replace("_", ""))


def parse_stop(text: str) -> tuple[str, ...]:
    """One text, or several in quotes; \\n is a new line. ValueError for an open quotation mark."""
    parts = shlex.split(text) if text[:1] in "\"'" else [text]
    return tuple(part.replace("\\n", "\n") for part in parts if part)


def parse_accept(text: str) -> str:
    """A rule of acceptance."""
    if text.lower() not in ACCEPT_RULES:
        raise ValueError(text)
    return text.lower()


def parse_mode(text: str) -> str:
    """A mode that drafts."""
    if text.lower() not in get_args(DraftingMode):
        raise ValueError(text)
    return text.lower()


SETTINGS = (
    SettingSpec("temp", "temperature", float, "temperature; 0 takes the likeliest token"),
    SettingSpec("top-p", "top_p", float, "keep the likeliest tokens up to this mass; 1 is off"),
    SettingSpec("top-k", "top_k", parse_int, "keep the K likeliest tokens; 0 is off"),
    SettingSpec("min-p", "min_p", float, "drop tokens below this share of the likeliest; 0 is off"),
    SettingSpec(
        "repetition-penalty", "repetition_penalty", float, "divide scores of recent tokens"
    ),
    SettingSpec("presence-penalty", "presence_penalty", float, "subtract once from recent tokens"),
    SettingSpec("frequency-penalty", "frequency_penalty", float, "subtract for each recent use"),
    SettingSpec("seed", "seed", parse_int, "the same seed gives the same tokens", unset="none"),
    SettingSpec("max-tokens", "max_tokens", parse_int, "longest answer", unset="context"),
    SettingSpec(
        "block", "block_size", parse_int, "tokens a block has, anchor included", unset="auto"
    ),
    SettingSpec(
        "mode", "mode", parse_mode, "dflash drafts a chain, ddtree a tree, auto what measures best"
    ),
    SettingSpec(
        "tree-budget",
        "tree_budget",
        parse_int,
        "drafts a tree has, in the mode ddtree",
        unset="auto",
    ),
    SettingSpec("accept", "accept", parse_accept, "acceptance rule above temp 0"),
    SettingSpec(
        "stop",
        "stop",
        parse_stop,
        'answers end before it; several in quotes: "a" "b"',
        unset="none",
    ),
)
VALUE_KINDS = {
    float: "a number",
    parse_int: "a whole number",
    parse_mode: "dflash, ddtree or auto",
    parse_accept: "match, token or block",
    parse_stop: "a text, or several in quotes",
}
LIMITS = {"max_tokens": (1, 1 << 30), "block_size": (2, 256), "tree_budget": (1, 1024)}
SAMPLING_FIELDS = {f.name for f in fields(SamplingParams)}


def find_setting(name: str) -> SettingSpec | None:
    """The setting with this name; underscores count as dashes."""
    name = name.replace("_", "-").lower()
    return next((s for s in SETTINGS if s.name == name), None)


def with_value(settings: ChatSettings, spec: SettingSpec, text: str) -> ChatSettings:
    """The settings with one value changed; UsageError when the text is not a valid value."""
    if spec.unset and text.lower() in (spec.unset, "off"):
        value = None
    else:
        try:
            value = spec.parse(text)
        except ValueError:
            kind = VALUE_KINDS[spec.parse]
            or_off = f" or {spec.unset}" if spec.unset else ""
            raise UsageError(
                f"{spec.name} cannot be '{text}'.", hint=f"give {kind}{or_off}"
            ) from None
    if spec.field in SAMPLING_FIELDS:
        return replace(settings, sampling=replace(settings.sampling, **{spec.field: value}))
    if spec.field == "stop":
        return replace(settings, stop=value or ())
    if isinstance(value, str):
        return replace(settings, **{spec.field: value})
    least, most = LIMITS[spec.field]
    if value is not None and not least <= value <= most:
        raise UsageError(
            f"{spec.name} cannot be {value:,}.",
            hint=f"give {least} to {most:,}, or {spec.unset}",
        )
    return replace(settings, **{spec.field: value})


def format_value(settings: ChatSettings, spec: SettingSpec) -> str:
    """A setting's value in the form that `/set` accepts."""
    owner: Any = settings.sampling if spec.field in SAMPLING_FIELDS else settings
    value = getattr(owner, spec.field)
    if isinstance(value, tuple):
        return " ".join(f'"{part}"' for part in value).replace("\n", "\\n") or spec.unset
    return spec.unset if value is None else f"{value:g}" if isinstance(value, float) else str(value)
