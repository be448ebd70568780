"""The options of the next answer as `/set` and `/think` show and change them."""

import shlex
from dataclasses import replace
from typing import Any

from dflash_mlx.errors import UsageError
from dflash_mlx.options import Declared, GenerationOptions, SamplingParams, declared

from ..backend.base import ThinkingSwitches
from ..presets import DECLARED, KEYS
from ..resolve import (
    RECOMMENDED,
    THINKING,
    Resolved,
    check_thinking,
    described,
    drop_unknown_thinking,
    no_recommendation,
    only_recommended,
)
from .dialogue import Dialogue
from .state import ChatState

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


# A model's recommended sampling in a chat


def recommendation_offer(dialogue: Dialogue) -> str:
    """The line that offers it; empty where there is none, or somebody has said how to sample."""
    recommended = dialogue.backend.recommended_sampling()
    if not recommended or replace(dialogue.settings.sampling, seed=None) != SamplingParams():
        return ""
    return f"recommended: {described(recommended)} · /set recommended takes it"


def recommendation_line(state: ChatState) -> str:
    """The line of `/set`; empty where there is none."""
    recommended = state.dialogue.backend.recommended_sampling()
    if not recommended:
        return ""
    return f"  recommended: {described(recommended)}; /set recommended takes it"


def use_recommended(state: ChatState) -> None:
    """`/set recommended`: just that, the seed apart; DFlashError where there is none."""
    dialogue = state.dialogue
    recommended = dialogue.backend.recommended_sampling()
    if not recommended:
        raise no_recommendation(dialogue.backend)
    sampling = replace(dialogue.settings.sampling, **only_recommended(recommended))
    dialogue.settings = replace(dialogue.settings, sampling=sampling)
    state.print_line(f"  sampling as recommended: {described(recommended)}", "dim")


# Many settings of a chat at once, by the names of options


def chat_settings(options: GenerationOptions) -> GenerationOptions:
    """The settings that a chat begins with; that nothing is drafted is not one of them."""
    return replace(options, mode="auto") if options.mode == "baseline" else options


def values_of(resolved: Resolved) -> dict[str, Any]:
    """The values that a chat with these options begins with, before the target's defaults."""
    names = [name for name in KEYS if name != "model" and name in resolved.general]
    values = {name: resolved.general[name] for name in names}
    return values | {"stop": tuple(values["stop"] or ())}


def present_values(state: ChatState) -> dict[str, Any]:
    """The values that the next answer has."""
    dialogue = state.dialogue
    values = {one.name: value_of(dialogue.settings, one) for one in DECLARED.values()}
    return values | {
        "mode": dialogue.backend.options(dialogue.settings).mode,
        "system": dialogue.chat.system,
        "show_thinking": dialogue.display.show_thinking,
    }


def chat_values(settings: GenerationOptions, values: dict[str, Any]) -> GenerationOptions:
    """The settings with those of the values that are theirs; UsageError for one out of range."""
    own = {name: value for name, value in values.items() if name in DECLARED}
    if own.get("mode") == "baseline":
        del own["mode"]
    if own.get("think") is False:
        own.setdefault("reasoning_effort", None)
    elif own.get("reasoning_effort") and settings.think is False:
        own.setdefault("think", True)
    return with_values(settings, own)


def apply_values(state: ChatState, values: dict[str, Any]) -> None:
    """Answer with these values from now on; UsageError, and nothing changed, for wrong ones."""
    dialogue = state.dialogue
    template = dialogue.backend.template
    settings = chat_values(dialogue.settings, values)
    named = [name for name in THINKING if name in values]
    settings = drop_unknown_thinking(settings, template, state.out, named)
    check_thinking(template, settings)
    dialogue.settings = settings
    if "show_thinking" in values:
        dialogue.display = replace(dialogue.display, show_thinking=values["show_thinking"])
    if "mode" in values and dialogue.backend.local:
        drafting = values["mode"] != "baseline" and dialogue.pair.drafts
        if drafting != dialogue.backend.drafting:
            dialogue.set_pair(dialogue.pair, drafting=drafting)
    if "system" in values and values["system"] != dialogue.chat.system:
        dialogue.replace_chat(replace(dialogue.chat, system=values["system"]))


def defaults_of(state: ChatState, target: str | None) -> dict[str, Any]:
    """A target's defaults that nothing overrides; DFlashError for a wrong one in the file."""
    table = state.tables.of_model(target)
    return {name: value for name, value in table.items() if name in state.general}


def recommended_defaults(state: ChatState, defaults: dict[str, Any]) -> dict[str, Any]:
    """A target's defaults with what it recommends, where they or the options ask for that.

    The target must be loaded.
    """
    defaults = {**defaults}
    if defaults.pop("sampling_by", state.sampling_by) != RECOMMENDED:
        return defaults
    recommended = state.dialogue.backend.recommended_sampling()
    return {n: value for n, value in recommended.items() if n in state.general} | defaults


def change_defaults(state: ChatState, defaults: dict[str, Any]) -> None:
    """Go over to the defaults of another target, but for what was changed in the chat."""
    defaults = recommended_defaults(state, defaults)
    present = present_values(state)
    before = {**state.general, **state.defaults}
    after = {**state.general, **defaults}
    names = [name for name in (*state.defaults, *defaults) if present[name] == normal(before[name])]
    state.defaults = defaults
    apply_values(state, {name: after[name] for name in names})


def normal(value: Any) -> Any:
    """A value as the settings hold it."""
    return tuple(value) if isinstance(value, list) else value
