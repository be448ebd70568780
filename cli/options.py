"""The options that commands share.

Each option is a flag, a variable `DFLASH_<NAME>` and a key of the config file, in this order of
precedence. A dataclass groups related options; `option_groups` lets a command take a group as one
argument, and says of wrong values where they were set.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, Literal

import typer

from dflash_mlx.errors import DFlashError
from dflash_mlx.types import Effort, SamplingParams

from .option_sources import inherited_values


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
    block_size: Annotated[
        int | None,
        option(
            "--block-size",
            min=2,
            max=256,
            metavar="N",
            help="Tokens a verify, anchor included. [the drafter's own]",
        ),
    ] = None
    mode: Annotated[
        Literal["dflash", "ddtree", "auto", "baseline"],
        option("--mode", help="Drafts as a chain, as a tree, what measures best, or none."),
    ] = "auto"
    tree_budget: Annotated[
        int | None,
        option(
            "--tree-budget",
            min=1,
            max=1024,
            metavar="N",
            help="Drafts a tree has, in the mode ddtree. [32]",
        ),
    ] = None
    accept: Annotated[
        Literal["match", "token", "block"],
        option("--accept", help="Acceptance rule above temperature 0."),
    ] = "match"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How to sample tokens, and when to stop."""

    sampling_by: Annotated[
        Literal["given", "recommended"],
        option(
            "--sampling",
            help="As these options say, or as generation_config.json of the target recommends.",
        ),
    ] = "given"
    temp: Annotated[
        float, option("--temp", metavar="T", help="Temperature; 0 takes the likeliest token.")
    ] = 0.0
    top_p: Annotated[
        float, option("--top-p", metavar="P", help="Keep the likeliest tokens up to this mass.")
    ] = 1.0
    top_k: Annotated[
        int, option("--top-k", metavar="K", help="Keep the K likeliest tokens; 0 is off.")
    ] = 0
    min_p: Annotated[
        float, option("--min-p", metavar="P", help="Drop tokens below this share of the likeliest.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, option("--repetition-penalty", metavar="X", help="Divide scores of recent tokens.")
    ] = 1.0
    presence_penalty: Annotated[
        float, option("--presence-penalty", metavar="X", help="Subtract once from recent tokens.")
    ] = 0.0
    frequency_penalty: Annotated[
        float, option("--frequency-penalty", metavar="X", help="Subtract for each recent use.")
    ] = 0.0
    seed: Annotated[
        int | None, option("--seed", metavar="N", help="The same seed gives the same tokens.")
    ] = None
    max_tokens: Annotated[
        int | None,
        option(
            "--max-tokens",
            metavar="N",
            min=1,
            help="Longest answer. [512; served 4,096; in a chat what the context holds]",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        option("--stop", metavar="TEXT", help="End the answer before this text; repeatable."),
    ] = None

    def params(self) -> SamplingParams:
        """The engine's sampling parameters; UsageError for a value outside its range."""
        return SamplingParams(
            temperature=self.temp,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """System prompt and thinking."""

    system: Annotated[
        str | None, option("--system", "-s", metavar="TEXT", help="System prompt.")
    ] = None
    think: Annotated[
        bool | None,
        option("--think/--no-think", help="Thinking in the chat template. [the template's own]"),
    ] = None
    effort: Annotated[
        Effort | None,
        option(
            "--effort",
            help="How hard to think, where the template knows it: low, medium, high.",
            metavar="LEVEL",
        ),
    ] = None
    show_thinking: Annotated[
        bool, option("--show-thinking", help="Print the thinking on stderr.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayOptions:
    """How much to print, and with which effects."""

    quiet: Annotated[bool, option("--quiet", "-q", help="Only the answer and errors.")] = False
    plain: Annotated[
        bool, option("--plain", help="No colours, no moving lines, no special characters.")
    ] = False


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Expand a command's parameters that are option dataclasses into their fields.

    If the command has a parameter `ctx`, its DFlashErrors get a hint at the variable or the file
    that set a value which they name.
    """
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += inspect.signature(parameter.annotation).parameters.values()
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        try:
            command(**values)
        except DFlashError as error:
            places = inherited_values(values["ctx"], error.message) if "ctx" in values else ()
            error.hint = "; ".join(filter(None, (error.hint, *places)))
            raise

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
