"""The config file: one option per line, named like its flag without the leading dashes.

    model = "Qwen/Qwen3-4B"
    temp = 0.7

Its tables hold presets and defaults of single models (see `presets`), and MCP servers:

    [mcp.notes]
    command = "npx"
    args = ["-y", "notes-server"]
"""

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from typer.core import TyperGroup

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.gone import gone
from dflash_mlx.text import did_you_mean

if TYPE_CHECKING:
    from dflash_mlx.tools.mcp import ServerConfig

TABLES = ("preset", "models", "mcp")


def config_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "dflash" / "config.toml"


def read_config(path: Path) -> dict[str, Any]:
    """The settings of the file; empty without a file. DFlashError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise DFlashError(
            f"the config file '{path}' cannot be read ({file_error_reason(error)}).",
            hint="it must be a TOML file in UTF-8 that you may read",
        ) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DFlashError(
            f"the config file '{path}' is not valid TOML: {error}.",
            hint='write one setting per line, such as temp = 0.7 or model = "Qwen/Qwen3-4B"',
        ) from None


def apply_config(ctx: typer.Context) -> None:
    """Make the settings of the file the defaults of the commands that have these options."""
    path = config_path()
    settings = read_config(path)
    if not settings:
        return
    for kind in TABLES:
        tables_of(settings, kind, path)
    known_keys: set[str] = set()
    defaults = command_defaults(cast(TyperGroup, ctx.command), settings, known_keys)
    for key in settings:
        if key not in known_keys and key not in TABLES:
            near = did_you_mean(key.replace("_", "-"), sorted(known_keys))
            raise DFlashError(
                f"the config file '{path}' has an unknown setting '{key}'.",
                hint=gone(f"--{key}") or near or "settings are named as flags are",
            )
    ctx.default_map = defaults


def tables_of(settings: dict[str, Any], kind: str, path: Path) -> dict[str, Any]:
    """The tables of one kind by name, unchecked; DFlashError if they are not tables."""
    tables = settings.get(kind, {})
    if not isinstance(tables, dict):
        raise DFlashError(
            f"the setting '{kind}' in '{path}' must be tables.", hint=f'write [{kind}."NAME"]'
        )
    return tables


def command_defaults(
    group: TyperGroup, settings: dict[str, Any], known_keys: set[str]
) -> dict[str, dict[str, Any]]:
    """The settings that apply to each command of a group, nested groups included.

    Adds every option name of these commands to `known_keys`.
    """
    defaults: dict[str, dict[str, Any]] = {}
    for command_name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            defaults[command_name] = command_defaults(command, settings, known_keys)
            continue
        parameters = {
            flag_key(parameter): parameter
            for parameter in command.params
            if parameter.param_type_name == "option" and parameter.envvar
        }
        for table in TABLES:
            parameters.pop(table, None)
        known_keys.update(parameters)
        defaults[command_name] = {
            parameter.name: flag_value(key, settings[key], parameter)
            for key, parameter in parameters.items()
            if key in settings and parameter.name
        }
    return defaults


def flag_key(parameter: Any) -> str:
    return max(parameter.opts, key=len).removeprefix("--")


def flag_value(key: str, value: Any, parameter: Any) -> Any:
    """A setting as the value of its flag: a list if the flag is repeatable.

    DFlashError for true or false if the flag is not a switch, for a list or table if it takes one
    value, and for a list of anything but texts.
    """
    expected = ""
    if parameter.multiple:
        value = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in value):
            expected = 'a text in quotes, or a list of them: ["a", "b"]'
    elif isinstance(value, (list, dict)):
        expected = "one value"
        if key == "model":
            expected += '; defaults of a model stand in [models."ID"]'
    elif isinstance(value, bool) and not parameter.is_flag:
        expected = f"a value, as --{key} has one"
    if expected:
        raise DFlashError(
            f"the setting '{key}' in '{config_path()}' cannot be {settings_text(value)}.",
            hint=f"give it {expected}",
        )
    return value


def settings_text(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return str(value).lower() if isinstance(value, bool) else str(value)


def file_error_reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "not UTF-8 text"


# MCP servers


def configured_servers(files: Sequence[Path] = ()) -> list["ServerConfig"]:
    """The servers of [mcp.NAME], then those of files in the format of Claude Desktop.

    Starts nothing. DFlashError for a wrong entry, UsageError for a name that occurs twice.
    """
    from dflash_mlx.tools.mcp import read_server_file, read_servers

    path = config_path()
    servers = read_servers(tables_of(read_config(path), "mcp", path), f"in '{path}'")
    for file in files:
        for server in read_server_file(file):
            if server.name in [known.name for known in servers]:
                raise UsageError(
                    f"the MCP server '{server.name}' of '{file}' is there already.",
                    hint="rename one of the two",
                )
            servers.append(server)
    return servers
