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
from dataclasses import fields
from typing import Annotated, Any

import typer

from dflash_mlx.errors import DFlashError
from dflash_mlx.options import GenerationOptions, declared

from .config_file import config_path, flag_key, flag_value, read_config, settings_text, tables_of
from .options import BUNDLED, PromptOptions, option

DECLARED = {one.name: one for one in declared(GenerationOptions) if one.option.flag}
# The keys of a table by the names of the options; a command may have only some of them.
KEYS = {
    name: one.option.flag.partition("/")[0].removeprefix("--") for name, one in DECLARED.items()
}
KEYS |= {field.name: field.name.replace("_", "-") for field in fields(PromptOptions)}
KEYS |= {"sampling_by": "sampling", "model": "model"}
PRESET_KEYS = set(KEYS)
MODEL_KEYS = PRESET_KEYS - {"model"}


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
            elif key not in {KEYS[name] for name in allowed}:
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
            if parameter.name in DECLARED and not parameter.multiple:
                DECLARED[parameter.name].check(found)
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
