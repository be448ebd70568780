"""The flags that commands share, and how a command takes them.

Each option is a flag, a variable `DFLASH_<NAME>` and a key of the config file, in this order of
precedence. A dataclass groups related options; those of an answer are made from the declarations
in `dflash_mlx.options`. `option_groups` lets a command take a group as one argument, or all options
that are still to be resolved as one `OptionValues`.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import IntEnum
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from dflash_mlx.errors import DFlashError
from dflash_mlx.options import Declared, GenerationOptions, SamplingParams, declared

from .config_file import config_path, flag_key

GroupT = TypeVar("GroupT")
LATEST = "dflash.option_values"  # key of a context's `meta`
BUNDLED = "bundled"  # the name of the pair that needs none


def option(*names: str, help: str, **details: Any) -> Any:
    """A Typer option; its environment variable is named after its first long flag."""
    variable = "DFLASH_" + names[0].partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(*names, help=help, envvar=variable, show_envvar=False, **details)


def parse_bits(value: str | int) -> int:
    """Bits of a drafter, 0 for "none"; ValueError, which Typer reports, for what is no number."""
    if value == "none":
        return 0
    if not str(value).isdecimal():
        raise ValueError(f"'{value}' is not 4, 8 or none")
    return int(value)


def parse_size(value: str | int) -> int:
    """Bytes: a number, with a unit of 1000 (kB, MB, GB, TB) or 1024 (KiB, ...); ValueError else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", str(value).strip().lower())
    if not match:
        raise ValueError(f"'{value}' is not a size such as 500MB or 4GB")
    number, unit, binary = match.groups()
    power = " kmgt".index(unit) if unit else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which pair to load, and how to run it."""

    model: Annotated[
        str | None,
        option(
            "--model",
            "-m",
            metavar="ID",
            help="Target: qwen3:4b, a Hub id or a folder. [bundled pair]",
        ),
    ] = None
    draft: Annotated[
        str | None,
        option(
            "--draft",
            "-d",
            metavar="ID",
            help="Drafter, or lookup: copies of the text. [the target's known one, else lookup]",
        ),
    ] = None
    no_draft: Annotated[bool, option("--no-draft", help="Decode plainly, without a drafter.")] = (
        False
    )
    lookup: Annotated[
        bool,
        option(
            "--lookup", help="Beside a drafter copies of the text too, where auto prefers them."
        ),
    ] = False
    draft_bits: Annotated[
        int | None,
        option(
            "--draft-bits",
            metavar="4|8|none",
            parser=parse_bits,
            help="Quantise the drafter in memory. [8 if the target is quantised, else none]",
        ),
    ] = None
    exact: Annotated[
        bool,
        option("--exact", help="The very bits of plain decoding, also at 16 bits or quantised."),
    ] = False
    force: Annotated[bool, option("--force", help="Load a pair that does not fit the memory.")] = (
        False
    )
    trust_remote_code: Annotated[
        bool,
        option("--trust-remote-code", help="Run the Python code that some tokenizers are made of."),
    ] = False
    offline: Annotated[
        bool, option("--offline", help="Use only what is on this machine; never ask the Hub.")
    ] = False


SAMPLING_BY = Annotated[
    Literal["given", "recommended"],
    option(
        "--sampling",
        help="As these options say, or as generation_config.json of the target recommends.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """What goes before the prompt, what is shown beside the answer, and whose sampling it is."""

    system: Annotated[
        str | None, option("--system", "-s", metavar="TEXT", help="System prompt.")
    ] = None
    show_thinking: Annotated[
        bool, option("--show-thinking", help="Print the thinking on stderr.")
    ] = False
    sampling_by: SAMPLING_BY = "given"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """How much of what was read of prompts is kept, so that it need not be read again."""

    cache_ram: Annotated[
        int | None,
        option(
            "--cache-ram",
            metavar="SIZE",
            parser=parse_size,
            help="Memory for beginnings of prompts, 0: none. [a quarter of what models leave]",
        ),
    ] = None
    cache_disk: Annotated[
        int,
        option(
            "--cache-disk",
            metavar="SIZE",
            parser=parse_size,
            help="Keep them on disk too, for the next start; see `dflash cache`. [0: do not]",
        ),
    ] = 0


NO_CACHE = CacheOptions(cache_ram=0)
KEY_VARIABLE = "DFLASH_REMOTE_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """How to speak to a server that --model names."""

    remote_key_file: Annotated[
        Path | None,
        option(
            "--remote-key-file",
            metavar="FILE",
            help=f"Key of the server that --model names; or set {KEY_VARIABLE}.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayOptions:
    """How much to print, and with which effects."""

    quiet: Annotated[bool, option("--quiet", "-q", help="Only the answer and errors.")] = False
    plain: Annotated[
        bool, option("--plain", help="No colours, no moving lines, no special characters.")
    ] = False


def flag_of(one: Declared, *, variables: bool = True) -> inspect.Parameter:
    """A declared option as a parameter of a command, see `Flags`."""
    details = one.option
    kind = Literal[one.choices] if one.choices else one.type  # type: ignore[valid-type]
    default = one.command_default
    if get_origin(one.type) is tuple:
        kind = list[get_args(one.type)[0]]
        default = None
    limits: dict[str, Any] = {}
    if (
        one.type is int and variables and not one.sampling
    ):  # the others are checked where they are declared
        limits = {"min": details.low, "max": details.high}
        limits = {name: int(limit) for name, limit in limits.items() if abs(limit) < 1e9}
    text = f"{details.help} [{details.unless_given}]" if details.unless_given else details.help
    make = option if variables else typer.Option
    flag = make(details.flag, help=text, metavar=details.metavar, **limits)
    annotation = Annotated[kind | None if default is None else kind, flag]
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


@dataclass(frozen=True, slots=True)
class Flags:
    """Groups whose options a command takes as one `OptionValues`.

    Of declared options only those in `only` are taken, if it names any. Without `variables` they
    have no environment variables, and only their dataclass checks their ranges.
    """

    groups: tuple[type, ...]
    only: tuple[str, ...] = ()
    variables: bool = True

    def parameters(self) -> Iterator[inspect.Parameter]:
        """The parameters of all groups."""
        for group in self.groups:
            options = declared(group)
            if not options:
                yield from inspect.signature(group).parameters.values()
            for one in options:
                if one.option.flag and (not self.only or one.name in self.only):
                    yield flag_of(one, variables=self.variables)


# Values and their origins


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


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Expand a command's parameters that are groups of options.

    A parameter annotated with a dataclass becomes its fields. One that is an `OptionValues`,
    annotated with `Flags`, becomes all options of these groups. If the command has a parameter
    `ctx`, its DFlashErrors get a hint at the variable or the file that set a value which they name.
    """
    groups: dict[str, type] = {}
    unresolved = ""
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        annotation = parameter.annotation
        if isinstance(annotation, type) and is_dataclass(annotation):
            groups[parameter.name] = annotation
            parameters += inspect.signature(annotation).parameters.values()
        elif get_origin(annotation) is Annotated and get_args(annotation)[0] is OptionValues:
            unresolved = parameter.name
            parameters += get_args(annotation)[1].parameters()
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        if unresolved:
            own = inspect.signature(command).parameters
            values = {name: value for name, value in values.items() if name in own}
            values[unresolved] = OptionValues.of(values["ctx"])
        try:
            command(**values)
        except DFlashError as error:
            places = (
                OptionValues.latest(values["ctx"]).places(error.message) if "ctx" in values else ()
            )
            error.hint = "; ".join(filter(None, (error.hint, *places)))
            raise

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
