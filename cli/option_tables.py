"""Sets of options in the config file: presets, and the defaults of single models.

    [preset.review]
    model = "qwen3:8b"
    system = "You review code."
    temp = 0.3

    [models."mlx-community/Qwen3-8B-4bit"]
    think = false

A table's keys are named like flags and checked like them.
"""

import difflib
from dataclasses import fields, replace
from typing import Annotated, Any, TypeVar

import typer

from dflash_mlx.errors import DFlashError

from .config_file import config_path, flag_key, flag_value, read_config, settings_text, tables_of
from .model_names import BUNDLED
from .modes import resolve_models
from .option_sources import is_fixed, option_source, set_source
from .options import ModelOptions, PromptOptions, SamplingOptions, option

SAMPLING = {field.name for field in fields(SamplingOptions)}
MODE_KEYS = {"mode", "tree_budget"}  # what `resolve_models` weighs against other options
MODEL_KEYS = {*MODE_KEYS, *SAMPLING, "block_size", "accept"}
MODEL_KEYS |= {field.name for field in fields(PromptOptions)}
PRESET_KEYS = MODEL_KEYS | {"model"}
GroupT = TypeVar("GroupT", ModelOptions, SamplingOptions, PromptOptions)


class OptionTables:
    """The tables of the config file, checked as a command's flags; read anew at each question.

    Without a context there are none.
    """

    def __init__(self, ctx: typer.Context | None = None):
        self.ctx = ctx

    def presets(self) -> dict[str, Any]:
        """The presets as they stand in the file, unchecked."""
        return self._tables("preset")

    def preset(self, name: str) -> dict[str, Any]:
        """A preset's values by the names of the options' fields; DFlashError for a wrong one."""
        tables = self._tables("preset")
        if name not in tables:
            near = difflib.get_close_matches(name, tables, n=1)
            known = f"did you mean '{near[0]}'?" if near else f"presets: {', '.join(tables)}"
            raise DFlashError(
                f"there is no preset '{name}' in '{config_path()}'.",
                hint=known if tables else f"write one there: [preset.{name}] and temp = 0.3",
            )
        return self._checked(f"the preset '{name}'", tables[name], PRESET_KEYS)

    def of_model(self, target: str | None) -> dict[str, Any]:
        """The defaults of a target by its id, folder, or None for the bundled pair; likewise."""
        name = target or BUNDLED
        for known, table in self._tables("models").items():
            if known.lower() == name.lower():
                return self._checked(f"the defaults of '{known}'", table, MODEL_KEYS)
        return {}

    def check(self) -> None:
        """DFlashError for the first wrong value of any table."""
        for name in self._tables("preset"):
            self.preset(name)
        for target in self._tables("models"):
            self.of_model(target)

    def _tables(self, kind: str) -> dict[str, Any]:
        path = config_path()
        return {} if self.ctx is None else tables_of(read_config(path), kind, path)

    def _checked(self, place: str, table: Any, allowed: set[str]) -> dict[str, Any]:
        """The values as the command gets them from its flags, without those that it has not."""
        assert self.ctx is not None
        known = {flag_key(p): p for p in self.ctx.command.params if p.name in allowed}
        place = f"{place} in '{config_path()}'"
        if not isinstance(table, dict):
            raise DFlashError(f"{place} must be a table.", hint="write a line for each key")
        values = {}
        for key, value in table.items():
            if key in known:
                values[str(known[key].name)] = self._value(place, key, value, known[key])
            elif key not in {name.replace("_", "-") for name in allowed}:
                near = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
                raise DFlashError(
                    f"{place}: there is no key '{key}'.",
                    hint=f"did you mean '{near[0]}'?" if near else f"keys: {', '.join(known)}",
                )
        return values

    def _value(self, place: str, key: str, value: Any, parameter: Any) -> Any:
        """One value as the command gets it from its flag."""
        try:
            found = parameter.process_value(self.ctx, flag_value(key, value, parameter))
            if parameter.name in SAMPLING:
                SamplingOptions(**{parameter.name: found}).params()
        except (typer.BadParameter, DFlashError) as error:
            raise DFlashError(
                f"{place}: '{key}' cannot be {settings_text(value)}.",
                hint=error.hint if isinstance(error, DFlashError) else in_short(error.message),
            ) from None
        return found


def in_short(message: str) -> str:
    """What Typer says of a wrong value, without its way of talking."""
    message = message.replace("Value error, ", "").replace("Input should be", "it must be")
    return " ".join(message.split()).rstrip(".")


def with_preset(
    ctx: typer.Context,
    name: str | None,
    model_options: ModelOptions,
    sampling_options: SamplingOptions,
    prompt_options: PromptOptions,
) -> tuple[ModelOptions, SamplingOptions, PromptOptions]:
    """The options with a preset's values where no flag is given."""
    if name is None:
        return model_options, sampling_options, prompt_options
    values = OptionTables(ctx).preset(name)
    values = {n: v for n, v in values.items() if option_source(ctx, n) != "COMMANDLINE"}
    set_source(ctx, values, "PRESET", f"of the preset '{name}'")
    model_options = with_values(model_options, values)
    return model_options, with_values(sampling_options, values), with_values(prompt_options, values)


def with_model_defaults(
    ctx: typer.Context,
    model_options: ModelOptions,
    sampling_options: SamplingOptions,
    prompt_options: PromptOptions,
    *,
    system: bool = True,
) -> tuple[ModelOptions, SamplingOptions, PromptOptions]:
    """The options with the defaults of their target where only the rest of the file says otherwise.

    Without `system`, the system prompt stays as it is.
    """
    values = OptionTables(ctx).of_model(model_options.model)
    values = {n: v for n, v in values.items() if not is_fixed(ctx, n)}
    if not system:
        values.pop("system", None)
    set_source(ctx, values, "MODEL_TABLE", f"of the defaults of '{model_options.model or BUNDLED}'")
    model_options = with_values(model_options, values)
    if values.keys() & MODE_KEYS:
        model_options = resolve_models(ctx, model_options)
    return model_options, with_values(sampling_options, values), with_values(prompt_options, values)


def with_values(group: GroupT, values: dict[str, Any]) -> GroupT:
    """A group of options with those of the values that are its own."""
    own = {field.name for field in fields(group)}
    return replace(group, **{name: value for name, value in values.items() if name in own})


def complete_preset(incomplete: str) -> list[str]:
    """Shell completion of a preset's name."""
    try:
        names = read_config(config_path()).get("preset", {})
    except DFlashError:
        return []
    return [name for name in names if name.startswith(incomplete)]


PresetName = Annotated[
    str | None,
    option(
        "--preset",
        "-p",
        metavar="NAME",
        help="Options of [preset.NAME] in the config file; flags count before them.",
        autocompletion=complete_preset,
    ),
]
