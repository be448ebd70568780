"""The options of an answer, each declared once: name, type, default, range, and help.

`SamplingParams` says how a token is chosen, `GenerationOptions` all else about an answer. The
flags, variables and keys of the config file, `/set`, the fields that a server is sent and those
that it reads are made from these declarations. A new option is a field here, and its use.
"""

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import UsageError
from .grammar import Grammar, asked_grammar

Mode = Literal["auto", "dflash", "ddtree", "baseline"]
MODES: tuple[Mode, ...] = get_args(Mode)
AcceptanceRule = Literal["match", "token", "block"]
# How hard to think, where a chat template knows it: low, medium and high, and what some add.
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
MAX_TOKENS = 512  # of an answer, where nobody says
TREE_BUDGET = 32  # drafts of a tree, where nobody says
MAX_BLOCK_SIZE = 256  # rows of a verify that checks a chain, the anchor's included


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option besides its name, type and default.

    help: one sentence. flag: its long flag, empty where only Python has it. low, high: the range of
    a number; with `above`, `low` itself is outside. scope: "local" needs a model on this machine.
    metavar: the value in help texts. unless_given: what holds where nobody says, in words. setting:
    its name for `/set`, empty where `/set` does not have it; unset: the word there for None. noun:
    what an error calls it where it is one of several words. command_default: the default of the
    commands, where it is another. choices: the words that it may be, where the type does not say.
    """

    help: str = ""
    flag: str = ""
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    scope: Literal["any", "local"] = "any"
    metavar: str | None = None
    unless_given: str = ""
    setting: str = ""
    unset: str = ""
    noun: str = ""
    command_default: Any = None
    choices: tuple[str, ...] = ()

    @property
    def range_text(self) -> str:
        """The range in words, to stand after "give"."""
        low = f"{self.low:,g}" if abs(self.low) < 1e6 else f"{self.low:,}"
        high = f"{self.high:,g}" if abs(self.high) < 1e6 else f"{self.high:,}"
        if math.isinf(self.high):
            return f"a value above {low}" if self.above else f"{low} or more"
        return f"a value above {low}, {high} at most" if self.above else f"{low} to {high}"

    def holds(self, value: Any) -> bool:
        """Whether a number is in the range; NaN never is. Large integers compare exactly."""
        return (self.low < value if self.above else self.low <= value) and value <= self.high


def option(default: Any, help: str = "", **details: Any) -> Any:
    """A dataclass field with an `Option`."""
    return field(default=default, metadata={"option": Option(help, **details)})


@dataclass(frozen=True, slots=True)
class Declared:
    """One declared option: its field's name, its type without None, and its default."""

    name: str
    type: Any
    optional: bool
    default: Any
    option: Option
    sampling: bool

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it may be; none where it is no choice."""
        return get_args(self.type) if get_origin(self.type) is Literal else self.option.choices

    @property
    def command_default(self) -> Any:
        """The default of the commands."""
        own = self.option.command_default
        return self.default if own is None else own

    def check(self, value: Any) -> None:
        """Raise UsageError for a value that the type or the range does not allow."""
        if value is None and self.optional:
            return
        if get_origin(self.type) is Literal:
            if value not in self.choices:
                raise UsageError(
                    f"there is no {self.option.noun} '{value}'.",
                    hint=f"use one of {', '.join(self.choices)}",
                )
        elif self.type in (int, float):
            number = isinstance(value, Integral if self.type is int else Real)
            if not number or not self.option.holds(value):
                raise UsageError(
                    f"{self.name} cannot be {value}.", hint=f"give {self.option.range_text}"
                )


@cache
def declared(cls: type) -> tuple[Declared, ...]:
    """The options of a dataclass, those of the dataclasses in it included."""
    return tuple(walk(cls, sampling=cls is SamplingParams))


def walk(cls: type, *, sampling: bool) -> Iterator[Declared]:
    """The options of a dataclass in the order of its fields."""
    hints = get_type_hints(cls)
    for one in fields(cls):
        kind, optional = without_none(hints[one.name])
        if "option" in one.metadata:
            details = one.metadata["option"]
            yield Declared(one.name, kind, optional, one.default, details, sampling)
        elif is_dataclass(kind) and isinstance(kind, type):
            yield from walk(kind, sampling=kind is SamplingParams)


def without_none(hint: Any) -> tuple[Any, bool]:
    """A type without None, and whether None was in it."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    optional = len(kinds) < len(get_args(hint))
    return (kinds[0] if len(kinds) == 1 else hint), optional


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's next token is chosen; every field as mlx-lm's `make_sampler` and
    `make_logits_processors` mean it, in their order: penalties, top-p, min-p, top-k, temperature.

    `temperature` 0 takes the likeliest token. `top_p` 1, `top_k` 0, `min_p` 0,
    `repetition_penalty` 1 and the other penalties 0 are off. Penalties look at the last 20 tokens.
    `logit_bias` adds to the scores of tokens: pairs of id and bias. With a `seed` the same call
    gives the same tokens. Raises UsageError for a value outside its range.
    """

    temperature: float = option(
        0.0,
        "Temperature; 0 takes the likeliest token.",
        flag="--temp",
        setting="temp",
        metavar="T",
        low=0,
        high=100,
    )
    top_p: float = option(
        1.0,
        "Keep the likeliest tokens up to this mass; 1 is off.",
        flag="--top-p",
        setting="top-p",
        metavar="P",
        low=0,
        high=1,
        above=True,
    )
    top_k: int = option(
        0,
        "Keep the K likeliest tokens; 0 is off.",
        flag="--top-k",
        setting="top-k",
        metavar="K",
        low=0,
    )
    min_p: float = option(
        0.0,
        "Drop tokens below this share of the likeliest; 0 is off.",
        flag="--min-p",
        setting="min-p",
        metavar="P",
        low=0,
        high=1,
    )
    repetition_penalty: float = option(
        1.0,
        "Divide scores of recent tokens; 1 is off.",
        flag="--repetition-penalty",
        setting="repetition-penalty",
        metavar="X",
        low=0,
        above=True,
    )
    presence_penalty: float = option(
        0.0,
        "Subtract once from recent tokens.",
        flag="--presence-penalty",
        setting="presence-penalty",
        metavar="X",
        low=-100,
        high=100,
    )
    frequency_penalty: float = option(
        0.0,
        "Subtract for each recent use.",
        flag="--frequency-penalty",
        setting="frequency-penalty",
        metavar="X",
        low=-100,
        high=100,
    )
    seed: int | None = option(
        None,
        "The same seed gives the same tokens.",
        flag="--seed",
        setting="seed",
        metavar="N",
        low=0,
        high=2**64 - 1,
        unset="none",
    )
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Check all ranges."""
        check_values(self)

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn at random."""
        return self.temperature == 0

    @property
    def filtered(self) -> bool:
        """Whether some tokens can never be drawn."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change the distribution of the next one."""
        off = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) == (1, 0, 0)
        return not off


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """What is asked of one answer, besides its prompt.

    max_tokens: a stop token included; None is 512, or what the program sets. stop: texts that end
    the answer and are no part of it. think, reasoning_effort: switches of the chat template, which
    refuses what it does not know; None is its own default. block_size: the anchor and the drafts of
    a block; None is the drafter's own. tree_budget: the drafts of a tree, in the mode ddtree;
    with chain_seed the greedy chain is in it. accept: the acceptance rule above temperature 0.
    logprobs: how many of the likeliest tokens come with each token's log-probability; None gives
    no log-probabilities.

    tools: JSON schemas of functions, written where the chat template has a place for them. schema:
    a JSON schema, as an object or its text; grammar: a `Grammar`, or a text in llguidance's dialect
    of Lark. The text of the answer, after its thinking, follows it in all modes, exactly as if each
    token had been chosen by plain decoding among those that are allowed; it ends where nothing can
    follow, or at `max_tokens`. The model is not told. raw: a string is sent without the template.

    Raises UsageError for a value outside its range. Values that contradict each other are refused
    when an answer begins, so that one of them may be changed after the other.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = option(
        None,
        "Longest answer.",
        flag="--max-tokens",
        setting="max-tokens",
        metavar="N",
        low=1,
        unset="context",
        unless_given="512; served 4,096; in a chat what the context holds",
    )
    stop: tuple[str, ...] = option(
        (),
        "End the answer before this text; repeatable.",
        flag="--stop",
        setting="stop",
        metavar="TEXT",
        unset="none",
    )
    think: bool | None = option(
        None,
        "Thinking in the chat template.",
        flag="--think/--no-think",
        unless_given="the template's own",
    )
    reasoning_effort: str | None = option(
        None,
        "How hard to think, where the template knows it: low, medium, high.",
        flag="--effort",
        metavar="LEVEL",
        choices=EFFORTS,
    )
    mode: Mode = option(
        "dflash",
        "Drafts as a chain, as a tree, what measures best, or none.",
        flag="--mode",
        setting="mode",
        noun="mode",
        scope="local",
        command_default="auto",
    )
    block_size: int | None = option(
        None,
        "Tokens a verify, anchor included.",
        flag="--block-size",
        setting="block",
        metavar="N",
        low=2,
        high=MAX_BLOCK_SIZE,
        unset="auto",
        unless_given="the drafter's own",
        scope="local",
    )
    tree_budget: int | None = option(
        None,
        "Drafts a tree has, in the mode ddtree.",
        flag="--tree-budget",
        setting="tree-budget",
        metavar="N",
        low=1,
        high=1024,
        unset="auto",
        unless_given=str(TREE_BUDGET),
        scope="local",
    )
    accept: AcceptanceRule = option(
        "match",
        "Acceptance rule above temperature 0.",
        flag="--accept",
        setting="accept",
        noun="acceptance rule",
        scope="local",
    )
    chain_seed: bool = option(False)
    logprobs: int | None = option(None, low=0, high=20)  # at most as many as OpenAI's API gives
    tools: Sequence[dict[str, Any]] = ()
    schema: dict[str, Any] | str | None = None
    grammar: Grammar | str | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        """Take what stands for a value, and check all values."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "tools", tuple(self.tools or ()))
        if self.sampling is None:
            object.__setattr__(self, "sampling", SamplingParams())
        check_values(self)

    @property
    def structure(self) -> Grammar | None:
        """The grammar that `schema` or `grammar` asks for; UsageError where both are given."""
        return asked_grammar(self.schema, self.grammar)

    @property
    def token_limit(self) -> int:
        """The most tokens of the answer."""
        return MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def tree_nodes(self) -> int:
        """The drafts of a tree in the mode ddtree."""
        return TREE_BUDGET if self.tree_budget is None else self.tree_budget


def check_values(options: Any) -> None:
    """Raise UsageError for the first value of a dataclass that its declaration does not allow."""
    for one in declared(type(options)):
        if hasattr(options, one.name):  # those of dataclasses in it have checked themselves
            one.check(getattr(options, one.name))


# Options as keywords

P = ParamSpec("P")
T = TypeVar("T")
SAMPLING_NAMES = {one.name for one in declared(SamplingParams)} | {"logit_bias"}


def takes_options(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose `**keywords` are the fields of `GenerationOptions`.

    Its signature, which help and notebooks show, has them by name. UsageError instead of TypeError
    for a name that it does not have.
    """
    own = [one for one in signature(function).parameters.values() if one.kind != one.VAR_KEYWORD]
    names = {one.name for one in own}
    hints = get_type_hints(GenerationOptions)
    shape = signature(function).replace(
        parameters=[
            *own,
            *(
                Parameter(
                    one.name,
                    Parameter.KEYWORD_ONLY,
                    default=SamplingParams() if one.name == "sampling" else one.default,
                    annotation=hints[one.name],
                )
                for one in fields(GenerationOptions)
                if one.name not in names
            ),
        ]
    )

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> T:
        for name in keywords:
            if name not in shape.parameters:
                raise UsageError(
                    f"{function.__name__} has no argument '{name}'.",
                    hint=meant(name, [known for known in shape.parameters if known != "self"]),
                )
        return function(*args, **keywords)

    call.__signature__ = shape  # type: ignore[attr-defined]
    return call


def meant(name: str, known: list[str]) -> str:
    """What to write instead of an unknown name."""
    sampling = {"temp": "temperature"}.get(name, name)
    if sampling in SAMPLING_NAMES:
        return f"give sampling=SamplingParams({sampling}=...)"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"it has {', '.join(known)}"


def options_of(
    options: GenerationOptions | None, keywords: dict[str, Any], mode: Mode
) -> GenerationOptions:
    """The options of a call, which gives an object or keywords; `mode` holds for keywords."""
    if options is None:
        return GenerationOptions(**{"mode": mode, **keywords})
    if keywords:
        raise UsageError(
            f"{next(iter(keywords))} was given beside a GenerationOptions.",
            hint="give it in there: dataclasses.replace(options, ...)",
        )
    return options
