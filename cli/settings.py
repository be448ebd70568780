"""The options of the next answer as `/set` and `/think` show and change them."""

import shlex
from dataclasses import replace
from typing import Any

from dflash_mlx.errors import UsageError
from dflash_mlx.options import Declared, GenerationOptions, declared

from .backend.base import ThinkingSwitches
from .resolve import check_thinking

SETTINGS = tuple(one for one in declared(GenerationOptions) if one.option.setting)
# What a chat drafts with: the mode baseline is /draft off.
CHOICES = {"mode": ("dflash", "ddtree", "auto")}


def find_setting(name: str) -> Declared | None:
    """The setting with this name; underscores count as dashes."""
    name = name.replace("_", "-").lower()
    return next((one for one in SETTINGS if one.option.setting == name), None)


def setting_help(one: Declared) -> str:
    """What a setting does, for the list of `/set`."""
    text = one.option.help
    if one.name == "stop":
        return 'end the answer before this text; several in quotes: "a" "b"'
    return text[0].lower() + text[1:].rstrip(".")


def parse(one: Declared, text: str) -> Any:
    """A setting's value from what was typed; ValueError for a text that is none."""
    if one.choices:
        if text.lower() not in CHOICES.get(one.name, one.choices):
            raise ValueError(text)
        return text.lower()
    if one.type is int:
        return int(text.replace(",", "").replace("_", ""))
    if one.type is float:
        return float(text)
    parts = shlex.split(text) if text[:1] in "\"'" else [text]
    return tuple(part.replace("\\n", "\n") for part in parts if part)


def describe_values(one: Declared) -> str:
    """What values a setting takes, to stand after "give"."""
    if one.choices:
        *others, last = CHOICES.get(one.name, one.choices)
        return f"{', '.join(others)} or {last}"
    if one.type is int:
        return "a whole number"
    return "a number" if one.type is float else "a text, or several in quotes"


def with_value(options: GenerationOptions, one: Declared, text: str) -> GenerationOptions:
    """The options with one value changed; UsageError when the text is not a valid value."""
    name, unset = one.option.setting, one.option.unset
    if unset and text.lower() in (unset, "off"):
        value = one.default
    else:
        try:
            value = parse(one, text)
        except ValueError:
            or_unset = f" or {unset}" if unset else ""
            raise UsageError(
                f"{name} cannot be '{text}'.", hint=f"give {describe_values(one)}{or_unset}"
            ) from None
        if one.optional and not one.sampling and not one.option.holds(value):
            raise UsageError(
                f"{name} cannot be {value:,}.", hint=f"give {one.option.range_text}, or {unset}"
            )
    return with_values(options, {one.name: value})


def with_values(options: GenerationOptions, values: dict[str, Any]) -> GenerationOptions:
    """The options with these values, by the names of options; UsageError for one out of range."""
    sampling = {
        one.name: values[one.name] for one in SETTINGS if one.sampling and one.name in values
    }
    others = {name: value for name, value in values.items() if name not in sampling}
    return replace(options, sampling=replace(options.sampling, **sampling), **others)


def value_of(options: GenerationOptions, one: Declared) -> Any:
    """A setting's value."""
    return getattr(options.sampling if one.sampling else options, one.name)


def format_value(options: GenerationOptions, one: Declared) -> str:
    """A setting's value in the form that `/set` accepts."""
    value = value_of(options, one)
    if isinstance(value, tuple):
        text = " ".join(f'"{part}"' for part in value).replace("\n", "\\n")
        return text or one.option.unset
    if value is None:
        return one.option.unset
    return f"{value:g}" if isinstance(value, float) else str(value)


# `/think`


def with_thinking(
    template: ThinkingSwitches, options: GenerationOptions, argument: str
) -> GenerationOptions:
    """The options with thinking on or off, or with an effort; UsageError if unsupported."""
    if argument in ("on", "off"):
        effort = options.reasoning_effort if argument == "on" else None
        changed = replace(options, think=argument == "on", reasoning_effort=effort)
    else:
        think = True if options.think is False else options.think
        changed = replace(options, think=think, reasoning_effort=argument)
    check_thinking(template, changed)
    return changed


def describe_thinking(options: GenerationOptions) -> str:
    """The thinking settings in a few words."""
    parts = [{True: "on", False: "off"}[options.think]] if options.think is not None else []
    parts += [f"effort {options.reasoning_effort}"] if options.reasoning_effort else []
    return " · ".join(parts) or "as the template has it"
