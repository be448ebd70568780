"""Where values of options come from: a flag, a preset, a variable, the config file or nowhere."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from .config_file import config_path, flag_key

TABLE_SOURCES = "dflash.table_sources"  # key of a context's `meta`
# In the order of precedence; DEFAULT_MAP is the rest of the config file.
SOURCES = ("COMMANDLINE", "PRESET", "ENVIRONMENT", "MODEL_TABLE", "DEFAULT_MAP", "DEFAULT")


def inherited_values(ctx: typer.Context, message: str) -> Iterator[str]:
    """Where the values that a message names were set, if not on the command line."""
    message = message.replace(str(config_path()), "")  # folders may be called as values are
    for parameter in ctx.command.params:
        name = parameter.name or ""
        value_source = option_source(ctx, name)
        if value_source in ("COMMANDLINE", "DEFAULT"):
            continue
        if is_named(str(ctx.params.get(name)), message):
            table = "".join(f"{place} " for _, place in filter(None, [table_source(ctx, name)]))
            in_file = f"'{flag_key(parameter)}' {table}in {config_path()}"
            place = parameter.envvar if value_source == "ENVIRONMENT" else in_file
            yield f"it is set by {place}"


def is_named(value: str, message: str) -> bool:
    """Whether a message names a value, as a word of its own."""
    return bool(re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", message))


def option_source(ctx: typer.Context, name: str) -> str:
    """Where a value comes from: one of SOURCES."""
    if table := table_source(ctx, name):
        return table[0]
    value_source = ctx.get_parameter_source(name)
    return value_source.name if value_source else "DEFAULT"


def table_source(ctx: typer.Context, name: str) -> tuple[str, str] | None:
    """The source and the place of a value that a table of the config file set, else None."""
    return ctx.meta.get(TABLE_SOURCES, {}).get(name)


def set_source(ctx: typer.Context, values: dict[str, Any], source: str, place: str) -> None:
    """Note that a table set these values, for `option_source` and the hints of errors."""
    ctx.params.update(values)
    ctx.meta.setdefault(TABLE_SOURCES, {}).update(dict.fromkeys(values, (source, place)))


def is_fixed(ctx: typer.Context, name: str) -> bool:
    """Whether a flag, a preset or a variable set a value, which no target's defaults change."""
    return option_source(ctx, name) in ("COMMANDLINE", "PRESET", "ENVIRONMENT")
