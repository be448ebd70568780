"""The values of a command's options, and where each comes from."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, TypeVar

import typer

from dflash_mlx.options import GenerationOptions, SamplingParams, declared

from .config_file import config_path, flag_key

GroupT = TypeVar("GroupT")
LATEST = "dflash.option_values"  # key of a context's `meta`


class Origin(IntEnum):
    """Where a value comes from; a higher origin counts before a lower one."""

    DEFAULT = 0
    CONFIG_FILE = 1
    MODEL_DEFAULTS = 2  # [models."ID"] in the config file
    ENVIRONMENT = 3
    PRESET = 4
    FLAG = 5


TYPER_SOURCES = {
    "COMMANDLINE": Origin.FLAG,
    "ENVIRONMENT": Origin.ENVIRONMENT,
    "DEFAULT_MAP": Origin.CONFIG_FILE,
}


def origin_of(ctx: typer.Context, name: str) -> Origin:
    """Where Typer has the value of a parameter from."""
    source = ctx.get_parameter_source(name)
    return TYPER_SOURCES.get(source.name if source else "", Origin.DEFAULT)


@dataclass(frozen=True, slots=True)
class OptionValue:
    """One value. place: which table of the config file set it, in words; empty for others."""

    value: Any
    origin: Origin = Origin.DEFAULT
    place: str = ""


@dataclass(frozen=True, slots=True)
class OptionValues:
    """All values of a command by the names of its parameters; changes give a new object."""

    ctx: typer.Context
    values: Mapping[str, OptionValue]

    @staticmethod
    def of(ctx: typer.Context) -> "OptionValues":
        """The values of flags, variables and the config file, and the defaults."""
        return OptionValues(
            ctx,
            MappingProxyType(
                {
                    name: OptionValue(value, origin_of(ctx, name))
                    for name, value in ctx.params.items()
                }
            ),
        )

    @staticmethod
    def latest(ctx: typer.Context) -> "OptionValues":
        """What the values of a command became last."""
        return ctx.meta.get(LATEST) or OptionValues.of(ctx)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def origin(self, name: str) -> Origin:
        """Where a value comes from; DEFAULT for an option that the command does not have."""
        return self.values[name].origin if name in self.values else Origin.DEFAULT

    def changed(self, **values: Any) -> "OptionValues":
        """The values with these in place of others, which keep their origins."""
        changes = {name: replace(self.values[name], value=value) for name, value in values.items()}
        return self._with(changes)

    def layered(self, values: Mapping[str, Any], origin: Origin, place: str = "") -> "OptionValues":
        """The values with those of a layer, except where a value comes from a higher origin."""
        return self._with(
            {
                name: OptionValue(value, origin, place)
                for name, value in values.items()
                if self.origin(name) <= origin
            }
        )

    def _with(self, changes: Mapping[str, OptionValue]) -> "OptionValues":
        found = OptionValues(self.ctx, MappingProxyType({**self.values, **changes}))
        self.ctx.meta[LATEST] = found
        return found

    def group(self, kind: type[GroupT]) -> GroupT:
        """A group of options; those that the command does not have keep their defaults."""
        names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
        return kind(**{name: self[name] for name in names if name in self})

    def generation(self) -> GenerationOptions:
        """The options of an answer; UsageError for a value outside its range."""
        sampling: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for one in declared(GenerationOptions):
            if one.name in self:
                (sampling if one.sampling else others)[one.name] = self[one.name]
        return GenerationOptions(sampling=SamplingParams(**sampling), **others)

    def places(self, message: str) -> Iterator[str]:
        """Where the values that a message names were set, if not on the command line."""
        message = message.replace(str(config_path()), "")  # folders may be called as values are
        for parameter in self.ctx.command.params:
            one = self.values.get(parameter.name or "")
            if one is None or one.origin in (Origin.FLAG, Origin.DEFAULT):
                continue
            if names_value(message, str(one.value)):
                table = f"{one.place} " if one.place else ""
                in_file = f"'{flag_key(parameter)}' {table}in {config_path()}"
                place = parameter.envvar if one.origin is Origin.ENVIRONMENT else in_file
                yield f"it is set by {place}"


def names_value(message: str, value: str) -> bool:
    """Whether a message names a value, as a word of its own."""
    return bool(re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", message))
