"""Presets, and the defaults of single models: tables of options in the config file.

    [preset.review]
    model = "qwen3:8b"
    system = "You review code."
    temp = 0.3

    [models."mlx-community/Qwen3-8B-4bit"]
    think = false

The keys of a table are named and checked like flags.
"""

from dataclasses import fields
from typing import Annotated, Any

import typer

from dflash_mlx.errors import DFlashError
from dflash_mlx.options import GenerationOptions, SamplingParams, declared
from dflash_mlx.text import did_you_mean

from .config_file import config_path, flag_key, flag_value, read_config, settings_text, tables_of
from .options import BUNDLED, PromptOptions, option, wanted_number

DECLARED = {entry.name: entry for entry in declared(GenerationOptions) if entry.flag}
# The keys of a table by option name; a command may have only some of these options.
KEYS = {name: entry.flag.partition("/")[0].removeprefix("--") for name, entry in DECLARED.items()}
KEYS |= {field.name: field.name.replace("_", "-") for field in fields(PromptOptions)}
KEYS |= {"sampling_by": "sampling", "model": "model", "adapter": "adapter"}
PRESET_KEYS = set(KEYS) - {"adapter"}
MODEL_KEYS = set(KEYS) - {"model"}


class OptionTables:
    """The tables of the config file, checked like the flags of a command.

    Each call reads the file again.
    """

    def __init__(self, ctx: typer.Context):
        self.ctx = ctx

    def presets(self) -> dict[str, Any]:
        return self._tables("preset")

    def preset(self, name: str) -> dict[str, Any]:
        """The values of a preset by option name; DFlashError for a wrong value."""
        tables = self._tables("preset")
        if name not in tables:
            known = did_you_mean(name, tables) or f"presets: {', '.join(tables)}"
            raise DFlashError(
                f"there is no preset '{name}' in '{config_path()}'.",
                hint=known if tables else f"write one there: [preset.{name}] and temp = 0.3",
            )
        return self._checked(f"the preset '{name}'", tables[name], PRESET_KEYS)

    def of_model(self, target: str | None) -> dict[str, Any]:
        """The defaults of a target (Hub id, folder, None for the bundled pair), by option name."""
        name = target or BUNDLED
        for known, table in self._tables("models").items():
            if known.lower() == name.lower():
                return self._checked(f"the defaults of '{known}'", table, MODEL_KEYS)
        return {}

    def check(self) -> None:
        """Raise DFlashError for the first wrong value of any table."""
        for name in self._tables("preset"):
            self.preset(name)
        for target in self._tables("models"):
            self.of_model(target)

    def _tables(self, kind: str) -> dict[str, Any]:
        path = config_path()
        return tables_of(read_config(path), kind, path)

    def _checked(self, place: str, table: Any, allowed: set[str]) -> dict[str, Any]:
        """The values as from flags, without those of options that the command does not have."""
        known = {flag_key(p): p for p in self.ctx.command.params if p.name in allowed}
        place = f"{place} in '{config_path()}'"
        if not isinstance(table, dict):
            raise DFlashError(f"{place} must be a table.", hint="write a line for each key")
        values = {}
        for key, value in table.items():
            if key in known:
                values[str(known[key].name)] = self._value(place, key, value, known[key])
            elif key not in {KEYS[name] for name in allowed}:
                raise DFlashError(
                    f"{place}: there is no key '{key}'.",
                    hint=did_you_mean(key.replace("_", "-"), known) or f"keys: {', '.join(known)}",
                )
        return values

    def _value(self, place: str, key: str, value: Any, parameter: Any) -> Any:
        try:
            parsed = parameter.process_value(self.ctx, flag_value(key, value, parameter))
            if entry := DECLARED.get(parameter.name):
                kind = SamplingParams if entry.sampling else GenerationOptions
                parsed = getattr(kind(**{entry.name: parsed}), entry.name)
        except (typer.BadParameter, DFlashError) as error:
            if isinstance(error, DFlashError):
                hint = error.hint
            elif wanted := wanted_number(parameter):
                hint = f"give {wanted}"
            else:
                text = error.message.replace("Value error, ", "")
                text = text.replace("Input should be", "it must be")
                hint = " ".join(text.split()).rstrip(".")
            raise DFlashError(
                f"{place}: '{key}' cannot be {settings_text(value)}.", hint=hint
            ) from None
        return parsed


def complete_preset(incomplete: str) -> list[str]:
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
        help="Use the options of this preset from the config file; flags override them.",
        autocompletion=complete_preset,
        panel="Prompt and answer",
    ),
]
