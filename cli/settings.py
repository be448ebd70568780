"""The config file: one option a line, named as its flag without dashes in front.

    model = "Qwen/Qwen3-4B"
    temp = 0.7

Knows which options the commands have, not what they mean.
"""

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any, cast

import typer
from typer.core import TyperGroup

from dflash_mlx.errors import DFlashError


def config_path() -> Path:
    """Where the config file is looked for; it need not exist."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "dflash" / "config.toml"


def read_config(path: Path) -> dict[str, Any]:
    """The file's settings; none when there is no file. DFlashError when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise DFlashError(
            f"the config file '{path}' cannot be read ({reason(error)}).",
            hint="it must be a TOML file in UTF-8 that you may read",
        ) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DFlashError(
            f"the config file '{path}' is not valid TOML: {error}.",
            hint='write one setting a line, such as temp = 0.7 or model = "Qwen/Qwen3-4B"',
        ) from None


def apply_config(ctx: typer.Context) -> None:
    """Make the file's settings the defaults of the commands that have such an option."""
    path = config_path()
    settings = read_config(path)
    if not settings:
        return
    names: set[str] = set()
    defaults = group_defaults(cast(TyperGroup, ctx.command), settings, names)
    for key, value in settings.items():
        if key not in names:
            close = difflib.get_close_matches(key.replace("_", "-"), sorted(names), n=1)
            raise DFlashError(
                f"the config file '{path}' has an unknown setting '{key}'.",
                hint=f"did you mean '{close[0]}'?" if close else "settings are named as flags are",
            )
        if isinstance(value, dict):
            raise DFlashError(
                f"the setting '{key}' in '{path}' cannot be a table.", hint="give it one value"
            )
    ctx.default_map = defaults


def group_defaults(
    group: TyperGroup, settings: dict[str, Any], names: set[str]
) -> dict[str, dict[str, Any]]:
    """The settings that each command of a group has, groups in it included.

    Adds to `names` the keys that its commands know.
    """
    defaults: dict[str, dict[str, Any]] = {}
    for command_name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            defaults[command_name] = group_defaults(command, settings, names)
            continue
        own = {
            max(parameter.opts, key=len).removeprefix("--"): parameter.name
            for parameter in command.params
            if parameter.param_type_name == "option" and parameter.envvar
        }
        names.update(own)
        defaults[command_name] = {
            name: settings[key] for key, name in own.items() if key in settings and name
        }
    return defaults


def reason(error: Exception) -> str:
    """Why a file could not be read, in a few words."""
    return (error.strerror if isinstance(error, OSError) else None) or "not UTF-8 text"
