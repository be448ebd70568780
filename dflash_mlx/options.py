"""The options of an answer. Each is declared once: name, type, default, range and help.

Flags, variables, keys of the config file, `/set` and the engine's `Request` come from the fields;
of `SamplingParams` (what chooses the next token) also `--json` and the fields of requests that a
server reads and those that it is sent. The others, in `GenerationOptions`, are named once more in
`OptionKeywords`, `serve/body.py` (`RULES`), `remote/session.py` and `sampling_json`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import UsageError
from .grammar import Grammar, asked_grammar

Mode = Literal["auto", "dflash", "ddtree", "baseline"]
MODES: tuple[Mode, ...] = get_args(Mode)
AcceptanceRule = Literal["match", "token", "block"]
# How hard to think. Most chat templates that have it know low, medium and high; some know more.
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
MAX_TOKENS = 512  # default length limit of an answer
TREE_BUDGET = 32  # default number of draft tokens in a tree
MAX_FLOAT32 = 3.4e38
MIN_NUMBER = 1e-30  # of an option that logits are divided by or that is a share of something
MAX_BLOCK_SIZE = 256  # tokens of a chain that one pass verifies, the anchor included


@dataclass(frozen=True, slots=True)
class Option:
    """One declared option.

    name, type, default: of the dataclass field; `optional`: the type may also be None. sampling:
    whether it is a field of `SamplingParams`. help: one sentence. flag: empty if no command has the
    option, "--" if it has the field's name. low, high: the range of a number; `above` excludes
    `low` itself. scope: "local" needs a model on this machine. metavar: the value in help texts.
    unless_given: the default in words. setting: its name for `/set`, if any; unset: the word for
    None there. noun: what an error calls it. words: its values, unless the type is a Literal.
    default_of_commands: if they have another. panel: the heading that `--help` lists it under.
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
    words: tuple[str, ...] = ()
    default_of_commands: Any = None
    panel: str = ""
    name: str = ""
    type: Any = None
    optional: bool = False
    default: Any = None
    sampling: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it can take; empty if they cannot be listed."""
        return get_args(self.type) if get_origin(self.type) is Literal else self.words

    @property
    def command_default(self) -> Any:
        return self.default if self.default_of_commands is None else self.default_of_commands

    @property
    def range_text(self) -> str:
        """The range in words, to stand after "give"."""
        low = format_limit(self.low)
        high = format_limit(self.high)
        if math.isinf(self.high):
            return f"a value above {low}" if self.above else f"{low} or more"
        return f"a value above {low}, {high} at most" if self.above else f"{low} to {high}"

    def in_range(self, value: Any) -> bool:
        """Whether a number is in the range; NaN never is. Large integers are compared exactly."""
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def check(self, value: Any) -> None:
        """Raise UsageError for a value that the type or the range does not allow."""
        if value is None and self.optional:
            return
        if get_origin(self.type) is Literal:
            if value not in self.choices:
                raise UsageError(
                    f"there is no {self.noun} '{value}'.",
                    hint=f"use one of {', '.join(self.choices)}",
                )
        elif self.type in (int, float):
            is_number = isinstance(value, Integral if self.type is int else Real)
            if not is_number or not self.in_range(value):
                raise UsageError(
                    f"{self.name} cannot be {value!r}.", hint=f"give {self.range_text}"
                )


def format_limit(limit: float) -> str:
    """One end of a range in digits; all digits of a large one."""
    return f"{limit:,g}" if abs(limit) < 1e6 else f"{limit:,}"


def option(
    default: Any, help: str = "", *, flag: str = "", setting: str | None = None, **details: Any
) -> Any:
    """A declared field. flag: also with the value as help texts have it, behind a blank.

    setting: by default the flag without its dashes.
    """
    flag, _, metavar = flag.partition(" ")
    name = flag.removeprefix("--") if setting is None else setting
    details = {"metavar": metavar or None, **details}
    declaration = Option(help, flag=flag, setting=name, **details)
    return field(default=default, metadata={"option": declaration})


@cache
def declared(cls: type) -> tuple[Option, ...]:
    """The options of a dataclass and of the dataclasses in it, in the order of the fields."""
    return tuple(walk_options(cls))


def walk_options(cls: type) -> Iterator[Option]:
    """Complete the option of each field with the field's name, type and default."""
    hints = get_type_hints(cls)
    for member in fields(cls):
        kind, optional = without_none(hints[member.name])
        if declaration := member.metadata.get("option"):
            flag = declaration.flag
            sampling = cls is SamplingParams
            yield replace(
                declaration,
                flag="--" + member.name.replace("_", "-") if flag == "--" else flag,
                name=member.name,
                type=kind,
                optional=optional,
                default=member.default,
                sampling=sampling,
                panel=declaration.panel or ("Sampling" if sampling else ""),
            )
        elif is_dataclass(kind) and isinstance(kind, type):
            yield from walk_options(kind)


def without_none(hint: Any) -> tuple[Any, bool]:
    """A type without None, and whether None was in it."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    optional = len(kinds) < len(get_args(hint))
    return (kinds[0] if len(kinds) == 1 else hint), optional


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's next token is chosen.

    All fields mean the same as in mlx-lm's `make_sampler` and `make_logits_processors`, and are
    applied in the same order: penalties, top-p, min-p, XTC, top-k, temperature.

    `temperature` 0 takes the most likely token. `top_p` 1, `top_k` 0, `min_p` 0,
    `xtc_probability` 0, `repetition_penalty` 1 and the other penalties 0 are off. Penalties look at
    the last 20 tokens. `logit_bias`, pairs of token id and bias, is added to the logits. The same
    call with the same `seed` gives the same tokens.

    Raises UsageError for a value outside its range.
    """

    temperature: float = option(
        0.0, "Randomness; 0 always takes the likeliest token.", flag="--temp T", low=0, high=100
    )
    top_p: float = option(
        1.0,
        "Keep the likeliest tokens that add up to this probability; 1 is off.",
        flag="--top-p P",
        low=0,
        high=1,
        above=True,
    )
    top_k: int = option(0, "Keep the K likeliest tokens; 0 is off.", flag="--top-k K", low=0)
    min_p: float = option(
        0.0,
        "Drop tokens below this share of the likeliest one; 0 is off.",
        flag="--min-p P",
        low=0,
        high=1,
    )
    repetition_penalty: float = option(
        1.0,
        "Make the last 20 tokens less likely; 1 is off.",
        flag="--repetition-penalty X",
        low=0,
        above=True,
    )
    presence_penalty: float = option(
        0.0,
        "Subtract this from the score of each recent token; 0 is off.",
        flag="--presence-penalty X",
        low=-100,
        high=100,
    )
    frequency_penalty: float = option(
        0.0,
        "Subtract this for each recent use of a token; 0 is off.",
        flag="--frequency-penalty X",
        low=-100,
        high=100,
    )
    seed: int | None = option(
        None,
        "The same seed gives the same text.",
        flag="--seed N",
        low=0,
        high=2**64 - 1,
        unset="none",
        unless_given="a new one for each answer",
    )
    logit_bias: tuple[tuple[int, float], ...] = ()
    xtc_probability: float = option(
        0.0,
        "How often to leave out all likely tokens but the least likely one; 0 is off.",
        flag="--xtc-probability P",
        low=0,
        high=1,
    )
    xtc_threshold: float = option(
        0.1,
        "The probability from which on a token is likely, for --xtc-probability.",
        flag="--xtc-threshold P",
        low=0,
        high=0.5,
    )

    def __post_init__(self) -> None:
        """Check the ranges, and that 32 bits can hold what the sampler computes with."""
        check_values(self)
        biases = [bias for _, bias in self.logit_bias]
        if not all(abs(bias) <= MAX_FLOAT32 for bias in biases):
            raise UsageError(
                "a bias of logit_bias is no number of 32 bits.", hint="give -100 to 100"
            )
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            value = getattr(self, name)
            if value and not MIN_NUMBER <= value <= 1 / MIN_NUMBER:
                raise UsageError(
                    f"{name} cannot be {value!r}: it is beyond 32 bits.",
                    hint=f"give {MIN_NUMBER:g} to {1 / MIN_NUMBER:g}",
                )

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    @property
    def filtered(self) -> bool:
        """Whether some tokens get the probability 0."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.excludes_top

    @property
    def excludes_top(self) -> bool:
        """Whether XTC may leave out the likeliest tokens."""
        return self.xtc_probability > 0

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change the distribution of the next one."""
        off = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) == (1, 0, 0)
        return not off


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """The options of one answer.

    max_tokens: limit with the stop token; None is 512, or the limit of the program. stop: texts
    that end the answer; they are not part of it. think, reasoning_effort: switches of the chat
    template, which refuses those it does not know; None leaves them to the template. block_size:
    anchor and drafts of a block; None is the drafter's own size. tree_budget: draft tokens in a
    tree, in the mode ddtree; with chain_seed the greedy chain is one of its paths. accept: the
    acceptance rule above temperature 0; None is `match` with a seed, and in trees and with XTC,
    else the drafter's own. logprobs: how many of the most likely tokens to report with
    each token's log-probability; None reports none.

    tools: JSON schemas of functions, which the chat template describes to the model. schema: a JSON
    schema, as an object or as text. grammar: a `Grammar`, or text in llguidance's dialect of Lark.
    min_tokens: tokens before one that ends the answer; texts in `stop` may end it earlier.
    ignore_eos: the answer has no token that ends it. stop_token_ids: more tokens that end it.
    allowed_token_ids: the only tokens that the answer may have, those that end it included; empty
    for all. bad_words: texts that the answer must not have, as far as they are written in the
    tokens of the text alone. Where these rules leave no token, a grammar comes first, then
    `allowed_token_ids`.

    Schema and grammar constrain the answer after its thinking. In all modes the tokens are those
    that plain decoding would choose among the allowed ones. The answer ends when no token is
    allowed any more, or at `max_tokens`. The prompt does not mention the constraint. raw: send a
    string without the chat template. chat_template_kwargs: more variables that it reads, by name.

    Raises UsageError for a value outside its range. Values that contradict each other are refused
    when an answer begins, so that they can be changed one after the other.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = option(
        None,
        "Maximum length of the answer in tokens.",
        flag="--max-tokens N",
        low=1,
        unset="context",
        unless_given="512; serve: 4,096; chat: the rest of the context",
        panel="Prompt and answer",
    )
    stop: tuple[str, ...] = option(
        (),
        "End the answer before this text; repeatable.",
        flag="--stop TEXT",
        unset="none",
        panel="Prompt and answer",
    )
    think: bool | None = option(
        None,
        "Switch thinking on or off.",
        flag="--think/--no-think",
        setting="",
        unless_given="the model's own",
        panel="Prompt and answer",
    )
    reasoning_effort: str | None = option(
        None,
        "How hard to think, if the model knows it: low, medium, high.",
        flag="--effort LEVEL",
        setting="",
        words=EFFORTS,
        panel="Prompt and answer",
    )
    mode: Mode = option(
        "dflash",
        "How to draft: auto (fastest measured), dflash (chain), ddtree (tree), baseline (not).",
        flag="--mode",
        noun="mode",
        scope="local",
        default_of_commands="auto",
        panel="Drafting",
    )
    block_size: int | None = option(
        None,
        "Tokens checked per pass: the last token and its drafts.",
        flag="--block-size N",
        setting="block",
        low=2,
        high=MAX_BLOCK_SIZE,
        unset="auto",
        unless_given="as the drafter was trained",
        scope="local",
        panel="Advanced",
    )
    tree_budget: int | None = option(
        None,
        "Drafts in a tree, with --mode ddtree.",
        flag="--tree-budget N",
        low=1,
        high=1024,
        unset="auto",
        unless_given=str(TREE_BUDGET),
        scope="local",
        panel="Advanced",
    )
    accept: AcceptanceRule | None = option(
        None,
        "How drafts are accepted when sampling; see `dflash help exact`.",
        flag="--accept",
        noun="acceptance rule",
        unset="auto",
        unless_given="match with a seed, else the drafter's own",
        scope="local",
        panel="Advanced",
    )
    chain_seed: bool = option(False)
    logprobs: int | None = option(None, low=0, high=20)  # at most as many as OpenAI's API gives
    min_tokens: int = option(0, low=0)
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    tools: Sequence[dict[str, Any]] = ()
    schema: dict[str, Any] | str | None = None
    grammar: Grammar | str | None = None
    raw: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Turn a single stop text and None into values, and check all values."""
        texts = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        stop = tuple(texts) if isinstance(texts, Iterable) else (texts,)
        if not all(isinstance(text, str) for text in stop):
            raise UsageError(f"stop cannot be {self.stop!r:.60}.", hint="give a text, or several")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "tools", tuple(self.tools or ()))
        for name in ("stop_token_ids", "allowed_token_ids", "bad_words"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        if not all(isinstance(word, str) and word.strip() for word in self.bad_words):
            raise UsageError(f"bad_words cannot be {self.bad_words!r:.60}.", hint="give texts")
        if self.sampling is None:
            object.__setattr__(self, "sampling", SamplingParams())
        if not isinstance(self.sampling, SamplingParams):
            raise UsageError(
                f"sampling cannot be {self.sampling!r:.60}.",
                hint="give SamplingParams(temperature=0.7, ...)",
            )
        check_values(self)

    @property
    def structure(self) -> Grammar | None:
        """The grammar of `schema` or `grammar`; UsageError if both are given."""
        return asked_grammar(self.schema, self.grammar)

    @property
    def needs_template(self) -> bool:
        """Whether an option is for the chat template."""
        switches = (self.think, self.reasoning_effort)
        return switches != (None, None) or bool(self.tools or self.chat_template_kwargs)

    @property
    def draws_drafts(self) -> bool:
        """Whether a rule was chosen that draws drafts: its answers depend on them, seed or not."""
        return self.accept in ("token", "block")

    @property
    def token_limit(self) -> int:
        """`max_tokens`, or its default."""
        return MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def tree_nodes(self) -> int:
        """`tree_budget`, or its default."""
        return TREE_BUDGET if self.tree_budget is None else self.tree_budget


def check_values(options: Any) -> None:
    """Raise UsageError for the first value of a dataclass that its declaration does not allow."""
    for declaration in declared(type(options)):
        if hasattr(options, declaration.name):  # dataclasses in it have checked their own values
            declaration.check(getattr(options, declaration.name))
