"""The settings of a chat: the options of the next answer, as `/set` and `/think` change them."""

import shlex
from dataclasses import replace
from typing import Any

from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions, Option, declared

from ..passes import MARK, shows_colours
from ..presets import DECLARED, MODEL_KEYS, PRESET_KEYS
from ..resolve import (
    RECOMMENDED,
    THINKING,
    describe_recommendation,
    drop_unknown_thinking,
    no_recommendation,
    only_recommended,
    sampling_note,
)
from ..sources import ValueSource
from .dialogue import Dialogue
from .state import ChatState

SETTINGS = tuple(setting for setting in declared(GenerationOptions) if setting.setting)
# The values of a setting that `/set` takes; /draft off stands for the mode baseline.
CHOICES = {"mode": ("dflash", "ddtree", "auto")}


def find_setting(name: str) -> Option | None:
    """The setting of this name, or None; underscores count as dashes."""
    name = name.replace("_", "-").lower()
    return next((setting for setting in SETTINGS if setting.setting == name), None)


def setting_help(setting: Option) -> str:
    text = setting.help
    if setting.name == "stop":
        return 'end the answer before this text; several in quotes: "a" "b"'
    return text[0].lower() + text[1:].rstrip(".")


def parse(setting: Option, text: str) -> Any:
    """A setting's value from the typed text; ValueError if it is not a value."""
    if setting.choices:
        if text.lower() not in CHOICES.get(setting.name, setting.choices):
            raise ValueError(text)
        return text.lower()
    if setting.type is int:
        return int(text.replace(",", "").replace("_", ""))
    if setting.type is float:
        return float(text)
    parts = shlex.split(text) if text[:1] in "\"'" else [text]
    return tuple(part.replace("\\n", "\n") for part in parts if part)


def describe_values(setting: Option) -> str:
    """The values of a setting in words, for a hint that begins with "give"."""
    if setting.choices:
        *first, last = CHOICES.get(setting.name, setting.choices)
        return f"{', '.join(first)} or {last}"
    if setting.type is int:
        return "a whole number"
    return "a number" if setting.type is float else "a text, or several in quotes"


def with_value(options: GenerationOptions, setting: Option, text: str) -> GenerationOptions:
    """The options with a setting changed; UsageError if the text is not a valid value."""
    name = setting.setting
    unset = setting.unset
    if unset and text.lower() in (unset, "off"):
        value = setting.default
    else:
        try:
            value = parse(setting, text)
        except ValueError:
            if setting.name == "mode" and text.lower() == "baseline":
                hint = "/draft off stops drafting"
                raise UsageError(f"{name} cannot be '{text}'.", hint=hint) from None
            or_unset = f" or {unset}" if unset else ""
            raise UsageError(
                f"{name} cannot be '{text}'.", hint=f"give {describe_values(setting)}{or_unset}"
            ) from None
        ranged = setting.type in (int, float)
        if ranged and setting.optional and not setting.sampling and not setting.in_range(value):
            raise UsageError(
                f"{name} cannot be {value:,}.", hint=f"give {setting.range_text}, or {unset}"
            )
    return with_values(options, {setting.name: value})


def with_values(options: GenerationOptions, values: dict[str, Any]) -> GenerationOptions:
    """The options with these values, by option name; UsageError for a value out of range."""
    sampling = {
        setting.name: values[setting.name]
        for setting in SETTINGS
        if setting.sampling and setting.name in values
    }
    rest = {name: value for name, value in values.items() if name not in sampling}
    return replace(options, sampling=replace(options.sampling, **sampling), **rest)


def value_of(options: GenerationOptions, setting: Option) -> Any:
    return getattr(options.sampling if setting.sampling else options, setting.name)


def format_value(options: GenerationOptions, setting: Option) -> str:
    """A setting's value in the form that `/set` accepts."""
    value = value_of(options, setting)
    if isinstance(value, tuple):
        text = " ".join(f'"{part}"' for part in value).replace("\n", "\\n")
        return text or setting.unset
    if value is None:
        return setting.unset
    return f"{value:g}" if isinstance(value, float) else str(value)


# `/think`


def describe_thinking(options: GenerationOptions) -> str:
    parts = []
    if options.think is not None:
        parts.append("on" if options.think else "off")
    if options.reasoning_effort:
        parts.append(f"effort {options.reasoning_effort}")
    return " · ".join(parts) or "as the template has it"


# The sampling that a model's authors recommend


def chat_sampling_note(dialogue: Dialogue) -> str:
    """The line below the header and below the list of `/set`; empty without a recommendation."""
    return sampling_note(dialogue.info, dialogue.settings.sampling, "/set recommended")


def use_recommended(state: ChatState) -> None:
    """`/set recommended`: replaces all sampling options but the seed; DFlashError without any."""
    dialogue = state.dialogue
    recommended = dialogue.info.recommended
    if not recommended:
        raise no_recommendation(dialogue.info)
    dialogue.settings = with_values(dialogue.settings, only_recommended(recommended))
    state.print_line(f"  sampling as recommended: {describe_recommendation(recommended)}", "dim")


# `/watch`


def watch(state: ChatState, argument: str) -> None:
    dialogue = state.dialogue
    on = argument == "on" or (not argument and not dialogue.display.passes)
    dialogue.display = replace(dialogue.display, passes=on)
    if not on:
        state.print_line("  answers are shown as Markdown again", "dim")
        return
    how = "a colour for each pass of the target, and struck out the drafts that it rejects"
    if not shows_colours(state.out):
        how = f"a {MARK} between two passes of the target, and how many drafts it rejected"
    state.print_line(f"  the next answers have {how}; /retry shows the last one again", "dim")


# Values of several options, by option name


NAMES = PRESET_KEYS & MODEL_KEYS  # what both a preset and a target may set


def present_values(state: ChatState) -> dict[str, Any]:
    dialogue = state.dialogue
    values = {setting.name: value_of(dialogue.settings, setting) for setting in DECLARED.values()}
    return values | {
        "mode": dialogue.info.used(dialogue.settings).mode,
        "system": dialogue.chat.system,
        "show_thinking": dialogue.display.show_thinking,
    }


def chat_values(settings: GenerationOptions, values: dict[str, Any]) -> GenerationOptions:
    """The settings with these values, those of other groups ignored; UsageError if out of range."""
    changed = {name: value for name, value in values.items() if name in DECLARED}
    if changed.get("mode") == "baseline":
        del changed["mode"]
    if changed.get("think") is False:
        changed.setdefault("reasoning_effort", None)
    elif changed.get("reasoning_effort") and settings.think is False:
        changed.setdefault("think", True)
    return with_values(settings, changed)


def apply_values(state: ChatState, values: dict[str, Any]) -> None:
    """Answer with these values from now on. UsageError for a wrong value; then nothing changes."""
    dialogue = state.dialogue
    template = dialogue.info.thinking
    settings = chat_values(dialogue.settings, values)
    switches = [name for name in THINKING if name in values]
    settings = drop_unknown_thinking(settings, template, state.out, switches)
    template.check(settings.think, settings.reasoning_effort)
    dialogue.settings = settings
    if "show_thinking" in values:
        dialogue.display = replace(dialogue.display, show_thinking=values["show_thinking"])
    if "mode" in values and dialogue.info.local:
        drafting = values["mode"] != "baseline" and dialogue.pair.drafts
        if drafting != dialogue.info.drafting:
            dialogue.set_pair(dialogue.pair, drafting=drafting)
    if "system" in values and values["system"] != dialogue.chat.system:
        dialogue.replace_chat(replace(dialogue.chat, system=values["system"]))


def defaults_of(state: ChatState, target: str | None) -> dict[str, Any]:
    """The defaults of a target in the config file that nothing overrides.

    DFlashError for a wrong value.
    """
    table = state.tables.of_model(target)
    return {name: value for name, value in table.items() if follows_target(state, name)}


def follows_target(state: ChatState, name: str) -> bool:
    """Whether a target may set an option: neither a flag, a preset nor a variable has."""
    return name in NAMES and state.options.source(name) < ValueSource.VARIABLE


def recommended_defaults(state: ChatState, defaults: dict[str, Any]) -> dict[str, Any]:
    """The defaults of the loaded target, with its recommended sampling if that is asked for.

    It is used if the defaults or `--sampling` ask for it, or if nothing sets the sampling.
    """
    defaults = {**defaults}
    source = defaults.pop("sampling_by", state.sampling_by)
    if source is None and not defaults.keys() & only_recommended({}).keys():
        source = RECOMMENDED
    if source != RECOMMENDED:
        return defaults
    recommended = state.dialogue.info.recommended
    return {n: v for n, v in recommended.items() if follows_target(state, n)} | defaults


def change_defaults(state: ChatState, defaults: dict[str, Any]) -> None:
    """Replace one target's defaults by another's; keep the values that were changed in the chat."""
    defaults = recommended_defaults(state, defaults)
    present = present_values(state)
    values = {}
    for name in (*state.defaults, *defaults):
        general = state.options[name]
        before = state.defaults.get(name, general)
        if follows_target(state, name) and present[name] == before:
            values[name] = defaults.get(name, general)
    state.defaults = defaults
    apply_values(state, values)
