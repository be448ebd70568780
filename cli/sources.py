"""Where the value of an option comes from."""

from enum import IntEnum

import typer


class ValueSource(IntEnum):
    """Where a value comes from. A higher source overrides a lower one: the order of precedence."""

    DEFAULT = 0
    FILE = 1  # the config file
    TARGET = 2  # [models."ID"] in it
    VARIABLE = 3
    PRESET = 4
    FLAG = 5


CLICK_SOURCES = {
    "COMMANDLINE": ValueSource.FLAG,
    "ENVIRONMENT": ValueSource.VARIABLE,
    "DEFAULT_MAP": ValueSource.FILE,
}


def source_of(ctx: typer.Context, name: str) -> ValueSource:
    source = ctx.get_parameter_source(name)
    return CLICK_SOURCES.get(source.name if source else "", ValueSource.DEFAULT)


def sources_of(ctx: typer.Context) -> dict[str, ValueSource]:
    return {name: source_of(ctx, name) for name in ctx.params}
