"""The options that exclude each other. `without_excluded` is the one loop over its tables.

Those in `AT_START` are refused before a command runs, those in `WHEN_RESOLVED` once presets, and
again once the defaults of the target are known, those in `FOR_ANSWER` once the target is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from dflash_mlx.address import is_address
from dflash_mlx.errors import UsageError

from .config_file import flag_key
from .sources import ValueSource

Options = Any  # those of `options`, which uses this module
T = TypeVar("T")
FLAG, VARIABLE = ValueSource.FLAG, ValueSource.VARIABLE


def is_given(options: Options, name: str) -> bool:
    """Whether an option is set, or a flag says that it is not."""
    return bool(options[name]) or options.source(name) is FLAG


def is_missing(options: Options, name: str) -> bool:
    return not is_given(options, name)


def is_plain(options: Options, _: str = "") -> bool:
    return options["no_draft"] or options["mode"] == "baseline"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Options of which each is refused beside one of the others.

    options, others: names with blanks between them. when: whether one of the others, by its name,
    excludes them. least: the lowest source that counts. weaker: what becomes of the one with the
    lower source: it is refused as well, or the option, or either of the two, is left out. In the
    texts {option} and {other} are the flags, {place} and {other_place} what set the values, and
    {value} is the other's.
    """

    options: str
    others: str
    message: str
    hint: str = "leave one of them out"
    when: Callable[[Options, str], bool] = is_given
    least: ValueSource = ValueSource.DEFAULT
    weaker: Literal["refused", "option left out", "left out"] = "refused"


EXCLUDE = "{option} and {other} exclude each other."
NEEDS = "{option} needs {other}."
ADD_BATCH = "add --batch FILE"
NOT_WITH_BATCH = "prompt file latest json jsonl stats compare watch show_thinking log_text"
UNUSED = (
    "{option} has no effect with {other}, which takes its prompts from a file and writes the "
    "answers to another one."
)
NO_FILE = "{option} needs a file for the answers."
LOG_TEXT = Exclusion("log_text", "log", NEEDS, "say where: --log FILE", is_missing)
OTHER_MODELS = "{other} and {option} name different models."
ONE_MODEL = "{option} is for a server of many models, and this one has a single one."
OF_MANY = "leave {option} out, or --model, --draft and --adapter"
TWO_KEYS = "the API key is given twice."
NAMED_MODELS = "leave one of them out; --drafts dflash:ID,model:ID names models"

AT_START = {  # by command
    "generate": (
        Exclusion("answers max_sequences", "batch", NEEDS, ADD_BATCH, is_missing, FLAG),
        Exclusion(NOT_WITH_BATCH, "batch", UNUSED, "leave {option} out", least=FLAG),
        Exclusion("batch", "answers", NO_FILE, "add --out FILE", is_missing),
        Exclusion("raw compare", "latest", "{other} and {option} do not go together."),
        Exclusion("json", "jsonl", EXCLUDE),
        Exclusion("watch", "json jsonl", EXCLUDE),
        LOG_TEXT,
    ),
    "chat": (
        Exclusion("resume", "latest", "{option} and {other} name different chats."),
        Exclusion("model draft", "demo", OTHER_MODELS, least=FLAG),
        LOG_TEXT,
    ),
    "serve": (
        Exclusion("allow_pull", "model draft adapter", ONE_MODEL, OF_MANY),
        Exclusion(
            "api_key",
            "api_key_file",
            TWO_KEYS,
            "leave out --api-key, or its file",
            weaker="left out",
        ),
    ),
    "bench": (
        Exclusion(
            "draft no_draft lookup",
            "drafts",
            "{other} and {option} exclude each other.",
            NAMED_MODELS,
            least=FLAG,
        ),
        Exclusion("drafts", "modes", EXCLUDE, NAMED_MODELS),
    ),
}


def is_drafting(options: Options, name: str) -> bool:
    """Whether a mode is given that drafts, by no lower source than --no-draft."""
    source = options.source(name)
    return options[name] != "baseline" and options.source("no_draft") <= source > 0


def is_stronger(options: Options, name: str) -> bool:
    """Whether --no-draft is given, and by another source than --draft."""
    return options[name] and options.source(name) != options.source("draft")


PLAIN = "no_draft mode"
PLAINLY = "{option} decodes plainly, and {other} {value} does not."
CONTRADICT = "a drafter and no_draft contradict each other."
NO_DRAFTER = "--mode baseline needs no drafter, and --draft names one."
NO_DRAFTS = "{option} has no effect without drafting."
NOT_AUTO = "{option} has no effect outside the mode auto."
NO_TREE = "{option} has no effect in the mode {value}."
NO_TREES = "{option} has no effect in the mode baseline."
REMOVE = "remove {other_place} or {place}"
TREES = "remove {other_place} and add --mode ddtree"
GIVES_WAY: Literal["option left out"] = "option left out"


def is_not(mode: str) -> Callable[[Options, str], bool]:
    return lambda options, name: options[name] != mode


WHEN_RESOLVED = (
    Exclusion("no_draft", "mode", PLAINLY, when=is_drafting, weaker=GIVES_WAY),
    Exclusion("draft", "no_draft", CONTRADICT, when=is_stronger, weaker="left out"),
    Exclusion(
        "draft",
        "mode",
        NO_DRAFTER,
        when=lambda options, name: options[name] == "baseline",
        weaker=GIVES_WAY,
    ),
    Exclusion("lookup", PLAIN, NO_DRAFTS, REMOVE, is_plain, weaker=GIVES_WAY),
    Exclusion("lookup", "mode", NOT_AUTO, REMOVE, is_not("auto"), weaker=GIVES_WAY),
    # A value of the config file is kept for the mode ddtree.
    Exclusion("tree_budget", PLAIN, NO_TREES, TREES, is_plain, VARIABLE, GIVES_WAY),
    Exclusion(
        "tree_budget", "mode", NO_TREE, "add --mode ddtree", is_not("ddtree"), VARIABLE, GIVES_WAY
    ),
    Exclusion("draft", "no_draft", CONTRADICT),
)

FOR_ANSWER = (
    Exclusion(
        "compare",
        "mode",
        "{option} needs a drafter, and --mode baseline leaves it out.",
        when=lambda options, name: is_plain(options) and not options.source("no_draft"),
    ),
    Exclusion(
        "compare", "no_draft", "{option} needs a drafter, and {other} leaves it out.", when=is_plain
    ),
    Exclusion(
        "watch",
        "model",
        "{option} needs a model on this machine, and {other} names a server.",
        "leave it out",
        lambda options, name: is_address(options[name]),
    ),
)


def without_excluded(given: T, table: Sequence[Exclusion]) -> T:
    """The options without those that a higher source excludes; UsageError for the others.

    Only options that the command has are looked at.
    """
    options: Any = given
    parameters = {parameter.name: parameter for parameter in options.ctx.command.params}
    for rule, name in [(each, name) for each in table for name in each.options.split()]:
        names = rule.others.split()
        if not parameters.keys() >= {name, *names} or not is_given(options, name):
            continue
        excluding = [other for other in names if rule.when(options, other)]
        if not excluding:
            continue
        other = max(excluding, key=options.source)
        mine, others = options.source(name), options.source(other)
        gives_way = rule.weaker != "refused"
        if mine < (max(rule.least, others) if gives_way else rule.least):
            options = options.without(name) if gives_way else options
        elif rule.weaker == "left out" and others < mine:
            options = options.without(other)
        else:
            texts = {
                "option": flag_text(parameters[name]),
                "other": flag_text(parameters[other]),
                "place": options.place(name),
                "other_place": options.place(other),
                "value": options[other],
            }
            raise UsageError(rule.message.format(**texts), hint=rule.hint.format(**texts))
    return options


def flag_text(parameter: Any) -> str:
    """How help texts name an option or an argument."""
    is_option = parameter.param_type_name == "option"
    return f"--{flag_key(parameter)}" if is_option else parameter.metavar
