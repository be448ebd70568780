"""Many settings of a chat at once, by the names of options: of a preset, and a target's defaults.

Knows what `/set`, `/system`, `/think` and `/draft` change, not the config file.
"""

from dataclasses import asdict, replace
from typing import Any

from ..chat_settings import SAMPLING_FIELDS, ChatSettings
from ..options import ModelOptions, PromptOptions, SamplingOptions
from ..recommended import RECOMMENDED, recommended_by
from ..thinking import FIELD_LABELS, check_thinking, drop_unsupported
from .state import ChatState

Options = tuple[ModelOptions, SamplingOptions, PromptOptions]


def settings_of(options: Options) -> ChatSettings:
    """The settings that a chat begins with."""
    model_options, sampling_options, prompt_options = options
    return ChatSettings(
        sampling_options.params(),
        sampling_options.max_tokens,
        model_options.block_size,
        model_options.accept,
        tuple(sampling_options.stop or ()),
        prompt_options.think,
        prompt_options.effort,
        "auto" if model_options.mode == "baseline" else model_options.mode,
        model_options.tree_budget,
    )


def values_of(options: Options) -> dict[str, Any]:
    """The values that a chat with these options begins with."""
    model_options, sampling_options, prompt_options = options
    return setting_values(settings_of(options)) | {
        "sampling_by": sampling_options.sampling_by,
        "mode": model_options.mode,
        "system": prompt_options.system,
        "show_thinking": prompt_options.show_thinking,
    }


def present_values(state: ChatState) -> dict[str, Any]:
    """The values that the next answer has."""
    dialogue = state.dialogue
    return setting_values(dialogue.settings) | {
        "mode": dialogue.mode,
        "system": dialogue.chat.system,
        "show_thinking": dialogue.display.show_thinking,
    }


def setting_values(settings: ChatSettings) -> dict[str, Any]:
    """The settings by the names of options."""
    values = asdict(settings)
    sampling = values.pop("sampling")
    return {**values, **sampling, "temp": sampling["temperature"]}


def with_values(settings: ChatSettings, values: dict[str, Any]) -> ChatSettings:
    """The settings with those of the values that are theirs; UsageError for one out of range."""
    values = {**values, "stop": tuple(values.get("stop", settings.stop) or ())}
    if "temp" in values:
        values["temperature"] = values["temp"]
    if values.get("mode") == "baseline":
        del values["mode"]
    if values.get("think") is False:
        values.setdefault("effort", None)
    elif values.get("effort") and settings.think is False:
        values.setdefault("think", True)
    own = asdict(settings).keys() & values.keys()
    sampling = {name: values[name] for name in SAMPLING_FIELDS & values.keys()}
    return replace(
        settings,
        sampling=replace(settings.sampling, **sampling),
        **{name: values[name] for name in own},
    )


def apply_values(state: ChatState, values: dict[str, Any]) -> None:
    """Answer with these values from now on; UsageError, and nothing changed, for wrong ones."""
    dialogue = state.dialogue
    template = dialogue.model.template
    settings = with_values(dialogue.settings, values)
    named = [name for name in FIELD_LABELS if name in values]
    settings = drop_unsupported(settings, template, state.out, named)
    check_thinking(template, settings)
    dialogue.settings = settings
    if "show_thinking" in values:
        dialogue.display = replace(dialogue.display, show_thinking=values["show_thinking"])
    if "mode" in values and dialogue.server is None:
        drafting = values["mode"] != "baseline" and dialogue.pair.drafts
        if drafting != dialogue.drafting:
            dialogue.set_pair(dialogue.pair, drafting=drafting)
    dialogue.use_mode()
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
    found = recommended_by(state.dialogue.model.source)
    return {name: value for name, value in found.items() if name in state.general} | defaults


def change_defaults(state: ChatState, defaults: dict[str, Any]) -> None:
    """Go over to the defaults of another target, but for what was changed in the chat."""
    defaults = recommended_defaults(state, defaults)
    present, before = present_values(state), {**state.general, **state.defaults}
    after = {**state.general, **defaults}
    names = [name for name in (*state.defaults, *defaults) if present[name] == normal(before[name])]
    state.defaults = defaults
    apply_values(state, {name: after[name] for name in names})


def normal(value: Any) -> Any:
    """A value as the settings hold it."""
    return tuple(value) if isinstance(value, list) else value
