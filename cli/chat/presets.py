"""`/preset`: lists the presets of the config file, and applies one."""

from contextlib import suppress

from dflash_mlx.errors import DFlashError

from ..config_file import config_path
from ..model_names import known_target
from ..recommended import RECOMMENDED, no_recommendation, recommended_by
from .actions import change_drafter, change_model
from .state import ChatState, shorten
from .values import apply_values, with_values

OPTION_NAMES = {"sampling_by": "sampling"}  # of fields that are named otherwise


def preset_names(state: ChatState) -> list[str]:
    """Completions of `/preset`."""
    with suppress(DFlashError):
        return list(state.tables.presets())
    return []


def use_preset(state: ChatState, name: str) -> None:
    """`/preset`: without a name the list."""
    if not name:
        show_presets(state)
        return
    values = state.tables.preset(name)
    keys = ", ".join(OPTION_NAMES.get(key, key).replace("_", "-") for key in values)
    model = values.pop("model", None)
    if model is not None:
        target = known_target(model, state.out)
        if target != state.dialogue.model.source.target_name:
            state.print_line(
                f"  the preset '{name}' is of another model: {target} is loaded", "dim"
            )
            change_model(state, target)
    dialogue = state.dialogue
    if values.pop("sampling_by", "") == RECOMMENDED:
        found = recommended_by(dialogue.model.source)
        if not found:
            state.print_line(f"  {no_recommendation(dialogue.model.source).message}", "warning")
        values = found | values
    dialogue.model.check(with_values(dialogue.settings, values))
    if values.get("mode", "baseline") != "baseline" and not dialogue.model.source.drafts:
        change_drafter(state, "on")
    apply_values(state, values)
    for field in values:  # the defaults of another target do not change them
        state.general.pop(field, None)
        state.defaults.pop(field, None)
    state.print_line(f"  preset {name}: {keys or 'it sets nothing'}", "dim")


def show_presets(state: ChatState) -> None:
    """The presets and what they set."""
    presets = state.tables.presets()
    width = max(map(len, presets), default=0) + 2
    for name, table in presets.items():
        values = table.items() if isinstance(table, dict) else ()
        text = " · ".join(f"{key} {value}" for key, value in values)
        state.print_line(f"  {name:{width}}{shorten(text, 70)}")
    if not presets:
        state.print_line(f"  no presets; [preset.NAME] in {config_path()} makes one")
