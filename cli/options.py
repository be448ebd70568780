"""The options of the commands: flags, their values, and where each value comes from.

Each option is a flag, a variable `DFLASH_<NAME>` and a key of the config file. Options that belong
together are a dataclass; those of an answer are generated from the declarations in
`dflash_mlx.options`. `option_groups` lets a command take a dataclass as one argument, or several
groups as `Options`.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.bits import CHOICES
from dflash_mlx.options import GenerationOptions, Option, declared

from .config_file import config_path, flag_key
from .environment import KEY_VARIABLE, PREFIX
from .exclusions import AT_START, without_excluded
from .sources import ValueSource, sources_of

LATEST = "dflash.options"  # key of a context's `meta`: the options after their latest change
COMMAND_DEFAULTS = GenerationOptions(mode="auto")
BUNDLED = "bundled"  # name of the bundled pair in config files and chats
TOY_NOTE = "toy model for trying dflash; run `dflash models list` for real ones"


def option(*names: str, help: str, panel: str = "", variable: bool = True, **details: Any) -> Any:
    """A Typer option; its variable is named after its first long flag. panel: its heading."""
    name = PREFIX + names[0].partition("/")[0].removeprefix("--").replace("-", "_").upper()
    if variable:
        details |= {"envvar": name, "show_envvar": False}
    return typer.Option(*names, help=help, rich_help_panel=panel, **details)


def flag(default: Any, spelled: str, help: str, panel: str, **details: Any) -> Any:
    """A field of a group of options. spelled: its flags, and the value as help texts have it."""
    words = spelled.split()
    names = [word for word in words if word.startswith("-")]
    metavar = words[-1] if len(names) < len(words) else None
    declared_option = option(*names, help=help, panel=panel, metavar=metavar, **details)
    return field(default=default, metadata={"flag": declared_option})


def command_group(help: str) -> typer.Typer:
    return typer.Typer(
        help=help,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def parse_bits(value: str | int) -> int:
    """Bits of quantisation, 0 for "none"; ValueError, which Typer reports, for other values."""
    bits = {"none": 0, **{str(choice): choice for choice in CHOICES}}
    if str(value) not in bits:
        raise ValueError(f"'{value}' is not 4, 8 or none")
    return bits[str(value)]


def parse_size(value: str | int) -> int:
    """Bytes from a text such as 500MB (units of 1000) or 4GiB (of 1024); ValueError for others."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", str(value).strip().lower())
    if not match:
        raise ValueError(f"'{value}' is not a size such as 500MB or 4GB")
    number, unit, binary = match.groups()
    power = " kmgt".index(unit) if unit else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    model: str | None = flag(
        None,
        "--model -m ID",
        "Target: a short name (qwen3:4b), a Hub id, a folder, or a server's URL. "
        "[bundled; chat and serve: the best you have]",
        "Model",
    )
    models: list[Path] | None = flag(
        None,
        "--models --model-folders FOLDER",
        "Also find models in this folder; repeatable.",
        "Model",
    )
    draft: str | None = flag(
        None,
        "--draft -d ID",
        "Drafter: a Hub id, a folder, mtp (the target's own head) or lookup. "
        "[the target's known one, else lookup]",
        "Model",
    )
    adapter: Path | None = flag(
        None,
        "--adapter FOLDER",
        "LoRA or DoRA adapter of the target, as mlx_lm.lora writes it.",
        "Model",
    )
    no_draft: bool = flag(False, "--no-draft", "Do not draft.", "Drafting")
    lookup: bool = flag(
        False,
        "--lookup",
        "Also draft by copying from the text so far, where auto expects more of it.",
        "Drafting",
    )
    draft_bits: int | None = flag(
        None,
        "--draft-bits 4|8|none",
        "Quantise the drafter in memory. [8 beside a quantised target, else none]",
        "Advanced",
        parser=parse_bits,
    )
    kv_bits: int | None = flag(
        None,
        "--kv-bits 4|8|none",
        "Quantise the KV cache: more context fits, answers may change. [none]",
        "Context and cache",
        parser=parse_bits,
    )
    exact: bool = flag(
        False,
        "--exact",
        "Make the output bit-identical to plain decoding, also in 16 bits. Slower.",
        "Advanced",
    )
    force: bool = flag(
        False, "--force", "Load a model even if it does not fit into memory.", "Advanced"
    )
    trust_remote_code: bool = flag(
        False, "--trust-remote-code", "Let a tokenizer run its own Python code.", "Advanced"
    )
    offline: bool = flag(
        False, "--offline", "Use only files on this machine; never ask the Hub.", "Model"
    )

    @property
    def folders(self) -> list[Path]:
        return [folder.expanduser() for folder in self.models or ()]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    system: str | None = flag(None, "--system -s TEXT", "System prompt.", "Prompt and answer")
    show_thinking: bool = flag(False, "--show-thinking", "Print the thinking on stderr.", "Output")
    sampling_by: Literal["given", "recommended"] = flag(
        "given",
        "--sampling",
        "Use the sampling options given here, or what the model's authors recommend. "
        "[chat and serve: recommended, if no option is given]",
        "Sampling",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Sizes of the prefix cache, in bytes."""

    cache_ram: int | None = flag(
        None,
        "--cache-ram SIZE",
        "Memory for the prefix cache; 0 turns it off. [a quarter of the free memory]",
        "Context and cache",
        parser=parse_size,
    )
    cache_disk: int = flag(
        0,
        "--cache-disk SIZE",
        "Keep the prefix cache on disk, too, up to this size; 0 does not.",
        "Context and cache",
        parser=parse_size,
    )


NO_CACHE = CacheOptions(cache_ram=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    remote_key_file: Path | None = flag(
        None,
        "--remote-key-file FILE",
        f"File with the key of the server that --model names; or set {KEY_VARIABLE}.",
        "Advanced",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayOptions:
    quiet: bool = flag(False, "--quiet -q", "Print only the answer and errors.", "Output")
    plain: bool = flag(False, "--plain", "No colours, no moving lines, only ASCII.", "Output")


# Declared options as flags


def flag_of(declaration: Option, *, variables: bool = True) -> inspect.Parameter:
    kind = declaration.type
    default = declaration.command_default
    if declaration.choices:
        kind = Literal[declaration.choices]  # type: ignore[valid-type]
    elif get_origin(kind) is tuple:
        kind = list[get_args(kind)[0]]
        default = None
    limits: dict[str, Any] = {}
    if kind is int and variables and not declaration.sampling:  # `Option.check` tests the others
        limits = {"min": declaration.low, "max": declaration.high}
        limits = {name: int(limit) for name, limit in limits.items() if abs(limit) < 1e9}
    text = declaration.help
    if declaration.unless_given:
        text += f" [{declaration.unless_given}]"
    info = option(
        declaration.flag,
        help=text,
        panel=declaration.panel,
        variable=variables,
        metavar=declaration.metavar,
        **limits,
    )
    annotation = Annotated[kind | None if default is None else kind, info]
    return inspect.Parameter(
        declaration.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def parameters_of(group: type) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            member.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=member.default,
            annotation=Annotated[member.type, member.metadata["flag"]]
            if "flag" in member.metadata
            else member.type,
        )
        for member in fields(group)
    ]


@dataclass(frozen=True, slots=True)
class Flags:
    """The groups of options that a command takes as `Options`.

    only: if not empty, the names of the declared options to take. without: options not to take.
    Without `variables` declared options have no environment variables, and only their dataclass
    checks their ranges.
    """

    groups: tuple[type, ...]
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    variables: bool = True

    def parameters(self) -> Iterator[inspect.Parameter]:
        for group in self.groups:
            options = declared(group)
            if not options:
                yield from (p for p in parameters_of(group) if p.name not in self.without)
            for declaration in options:
                if declaration.flag and (not self.only or declaration.name in self.only):
                    yield flag_of(declaration, variables=self.variables)


def wanted_number(parameter: Any) -> str:
    """The numbers that an option accepts, in words after "give"; empty for other options."""
    kind = parameter.type_descriptor.annotation
    if kind not in (int, float) or parameter.type_descriptor.parameter_info.parser:
        return ""
    text = "a whole number" if kind is int else "a number"
    if parameter.min is None:
        return text
    high = math.inf if parameter.max is None else parameter.max
    return f"{text}, {Option(low=parameter.min, high=high).range_text}"


# Values and their sources


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run, in groups. Changes return a new object.

    sources: of the values, by option name; DEFAULT for one that has none. tables: the table of the
    config file that set a value, in words. ctx: of the command, which names flags and variables.
    """

    ctx: typer.Context
    sources: Mapping[str, ValueSource]
    model: ModelOptions = ModelOptions()
    prompt: PromptOptions = PromptOptions()
    cache: CacheOptions = CacheOptions()
    generation: GenerationOptions = COMMAND_DEFAULTS
    tables: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(ctx: typer.Context) -> "Options":
        """The options of flags, variables and the config file; UsageError for a wrong value."""
        own = {name: value for name, value in ctx.params.items() if name in GROUP_OF}
        return Options(ctx, sources_of(ctx)).changed(**own)

    def __getitem__(self, name: str) -> Any:
        """The value of an option; of one that is in no group, as it was given."""
        group = GROUP_OF.get(name)
        if group is None:
            return self.ctx.params[name]
        owner = self.generation.sampling if group == SAMPLING else getattr(self, group)
        return getattr(owner, name)

    def source(self, name: str) -> ValueSource:
        """The source of a value; DEFAULT if the command does not have the option."""
        return self.sources.get(name, ValueSource.DEFAULT)

    def changed(self, **values: Any) -> "Options":
        """The options with these values, by name; UsageError for one outside its range."""
        by_group: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            by_group.setdefault(GROUP_OF[name], {})[name] = value
        sampling = by_group.pop(SAMPLING, {})
        if sampling:
            changed = replace(self.generation.sampling, **sampling)
            by_group.setdefault("generation", {})["sampling"] = changed
        groups = {group: replace(getattr(self, group), **own) for group, own in by_group.items()}
        changed = replace(self, **groups)
        self.ctx.meta[LATEST] = changed
        return changed

    def without(self, *names: str) -> "Options":
        """The options with the defaults of these; names of no group stand for nothing."""
        defaults = Options(self.ctx, {})
        return self.changed(**{name: defaults[name] for name in names if name in GROUP_OF})

    def layered(self, values: Mapping[str, Any], source: ValueSource, table: str) -> "Options":
        """The options with the values of a table, except where the present source is higher."""
        values = {name: value for name, value in values.items() if self.source(name) <= source}
        sources = {**self.sources, **dict.fromkeys(values, source)}
        tables = {**self.tables, **dict.fromkeys(values, table)}
        return replace(self, sources=sources, tables=tables).changed(**values)

    def place(self, name: str) -> str:
        """What set a value: its flag, its variable, or its key and the file."""
        parameter = next(p for p in self.ctx.command.params if p.name == name)
        if self.source(name) is ValueSource.FLAG:
            return f"--{flag_key(parameter)}"
        if self.source(name) is ValueSource.VARIABLE:
            return str(parameter.envvar)
        table = f"{self.tables[name]} " if name in self.tables else ""
        return f"'{flag_key(parameter)}' {table}in {config_path()}"


SAMPLING = "sampling"
# The group of each option.
GROUP_OF = {
    member.name: group
    for group, kind in (("model", ModelOptions), ("prompt", PromptOptions), ("cache", CacheOptions))
    for member in fields(kind)
}
GROUP_OF |= {
    entry.name: SAMPLING if entry.sampling else "generation"
    for entry in declared(GenerationOptions)
}


def places(ctx: typer.Context, message: str) -> Iterator[str]:
    """For each value in an error message: the variable or file that set it, if no flag did."""
    options = ctx.meta.get(LATEST)
    values = ctx.params if options is None else options
    options = options or Options(ctx, sources_of(ctx))
    message = message.replace(str(config_path()), "")  # its folders may have the name of a value
    for name, source in options.sources.items():
        if source not in (ValueSource.FLAG, ValueSource.DEFAULT) and names_value(
            message, str(values[name])
        ):
            yield f"it is set by {options.place(name)}"


def names_value(message: str, value: str) -> bool:
    return bool(re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", message))


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameters that are groups of options by the options themselves.

    A dataclass becomes one option per field. `Options` or a dictionary, annotated with `Flags`,
    becomes the options of these groups. Options that exclude each other are refused. The hint of a
    DFlashError names the variable or file that set the wrong value.
    """
    groups: dict[str, type] = {}
    container, kind = "", Options
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        annotation = parameter.annotation
        if isinstance(annotation, type) and is_dataclass(annotation):
            groups[parameter.name] = annotation
            parameters += parameters_of(annotation)
        elif get_origin(annotation) is Annotated and isinstance(get_args(annotation)[1], Flags):
            container, kind = parameter.name, get_args(annotation)[0]
            parameters += get_args(annotation)[1].parameters()
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    own = inspect.signature(command).parameters
    if "ctx" not in own:
        by_name = inspect.Parameter.KEYWORD_ONLY
        parameters.insert(0, inspect.Parameter("ctx", by_name, annotation=typer.Context))

    @wraps(command)
    def run(ctx: typer.Context, **values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        values["ctx"] = ctx
        try:
            known = container and kind is Options
            options = Options.of(ctx) if known else Options(ctx, sources_of(ctx))
            without_excluded(options, AT_START.get(ctx.command.name or "", ()))
            values[container] = options if kind is Options else ctx.params
            command(**{name: value for name, value in values.items() if name in own})
        except DFlashError as error:
            error.hint = "; ".join(filter(None, (error.hint, *places(ctx, error.message))))
            raise

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
