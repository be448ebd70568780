"""The options that exclude each other. `without_excluded` is the one loop over its tables.

Those in `AT_START` are refused before a command runs, those in `WHEN_RESOLVED` once presets, and
again once the defaults of the target are known, those in `FOR_ANSWER` once the target is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dflash_mlx.address import is_address
from dflash_mlx.errors import UsageError

from .config_file import flag_key
from .sources import ValueSource

if TYPE_CHECKING:
    from .options import Options

PLAIN = "plain"  # stands for --no-draft or --mode baseline, whichever has the higher source


def is_given(options: "Options", name: str) -> bool:
    """Whether an option is set, or a flag says that it is not."""
    return bool(options[name]) or options.source(name) is ValueSource.FLAG


def is_missing(options: "Options", name: str) -> bool:
    return not is_given(options, name)


def is_plain(options: "Options", _: str = "") -> bool:
    """Whether nothing is drafted."""
    return options["no_draft"] or options["mode"] == "baseline"


def has_another_source(options: "Options", name: str) -> bool:
    """Whether --no-draft is set, and not where --draft is."""
    return bool(options[name]) and options.source(name) != options.source("draft")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """An option that is refused beside another one.

    when: whether the other one, by its name, excludes it. least: the lowest source of the option
    that counts. weaker: what becomes of the one with the lower source: it is refused as well, or
    the option, or either of the two, is left out. In the texts {option} and {other} are the flags,
    {place} and {other_place} what set the values, and {value} is the other's.
    """

    option: str
    other: str
    message: str
    hint: str = "leave one of them out"
    when: Callable[["Options", str], bool] = is_given
    least: ValueSource = ValueSource.DEFAULT
    weaker: Literal["refused", "option left out", "left out"] = "refused"


NEEDS = "{option} needs {other}."
EXCLUDE = "{option} and {other} exclude each other."
UNUSED = (
    "{option} has no effect with {other}, which takes its prompts from a file and writes the "
    "answers to another one."
)
CONTRADICT = "a drafter and no_draft contradict each other."
FLAG = ValueSource.FLAG

LOG_TEXT = Exclusion("log_text", "log", NEEDS, "say where: --log FILE", is_missing)

AT_START = {  # by command
    "generate": (
        *(
            Exclusion(
                name, "batch", "{option} needs {other}.", "add --batch FILE", is_missing, FLAG
            )
            for name in ("answers", "max_sequences")
        ),
        *(
            Exclusion(name, "batch", UNUSED, "leave {option} out", least=FLAG)
            for name in (
                *("prompt", "file", "latest", "json", "jsonl", "stats", "compare", "watch"),
                *("show_thinking", "log_text"),
            )
        ),
        Exclusion(
            "batch",
            "answers",
            "--batch needs a file for the answers.",
            "add --out FILE",
            is_missing,
        ),
        Exclusion("raw", "latest", "{other} and {option} do not go together."),
        Exclusion("compare", "latest", "{other} and {option} do not go together."),
        Exclusion("json", "jsonl", EXCLUDE),
        Exclusion("watch", "json", EXCLUDE),
        Exclusion("watch", "jsonl", EXCLUDE),
        LOG_TEXT,
    ),
    "chat": (
        Exclusion("resume", "latest", "{option} and {other} name different chats."),
        Exclusion("model", "demo", "{other} and {option} name different models.", least=FLAG),
        Exclusion("draft", "demo", "{other} and {option} name different models.", least=FLAG),
        LOG_TEXT,
    ),
    "serve": (
        *(
            Exclusion(
                "allow_pull",
                name,
                "{option} is for a server of many models, and this one has a single one.",
                "leave {option} out, or --model, --draft and --adapter",
            )
            for name in ("model", "draft", "adapter")
        ),
        Exclusion(
            "api_key",
            "api_key_file",
            "the API key is given twice.",
            "leave out --api-key, or its file",
            weaker="left out",
        ),
    ),
    "bench": tuple(
        Exclusion(
            name,
            "drafts",
            "{other} and {option} exclude each other.",
            "leave one of them out; --drafts dflash:ID,model:ID names models",
            least=ValueSource.DEFAULT if name == "modes" else FLAG,
        )
        for name in ("draft", "no_draft", "lookup", "modes")
    ),
}

WHEN_RESOLVED = (
    Exclusion(
        "no_draft",
        "mode",
        "{option} decodes plainly, and {other} {value} does not.",
        when=lambda options, name: bool(options.source(name)) and options[name] != "baseline",
        weaker="left out",
    ),
    Exclusion(
        "draft",
        "no_draft",
        CONTRADICT,
        when=lambda options, name: (
            options[name] and options.source(name) != options.source("draft")
        ),
        weaker="left out",
    ),
    Exclusion(
        "draft",
        "mode",
        "--mode baseline needs no drafter, and --draft names one.",
        when=lambda options, name: options[name] == "baseline",
        weaker="option left out",
    ),
    Exclusion(
        "lookup",
        PLAIN,
        "{option} has no effect without drafting.",
        "remove {other_place} or {place}",
        is_plain,
        weaker="option left out",
    ),
    Exclusion(
        "lookup",
        "mode",
        "{option} has no effect outside the mode auto.",
        "remove {other_place} or {place}",
        lambda options, name: options[name] != "auto",
        weaker="option left out",
    ),
    # A value of the config file is kept for the mode ddtree.
    Exclusion(
        "tree_budget",
        PLAIN,
        "{option} has no effect in the mode baseline.",
        "remove {other_place} and add --mode ddtree",
        is_plain,
        ValueSource.VARIABLE,
        "option left out",
    ),
    Exclusion(
        "tree_budget",
        "mode",
        "{option} has no effect in the mode {value}.",
        "add --mode ddtree",
        lambda options, name: options[name] != "ddtree",
        ValueSource.VARIABLE,
        "option left out",
    ),
    Exclusion("draft", "no_draft", CONTRADICT),
)

FOR_ANSWER = (
    Exclusion(
        "compare", PLAIN, "{option} needs a drafter, and {other} leaves it out.", when=is_plain
    ),
    Exclusion(
        "watch",
        "model",
        "{option} needs a model on this machine, and {other} names a server.",
        "leave it out",
        lambda options, name: is_address(options[name]),
    ),
)


def without_excluded(options: "Options", table: Sequence[Exclusion]) -> "Options":
    """The options without those that a higher source excludes; UsageError for the others.

    Only options that the command has are looked at.
    """
    parameters = {parameter.name: parameter for parameter in options.ctx.command.params}
    for rule in table:
        needed = ("no_draft", "mode") if rule.other == PLAIN else (rule.other,)
        if not parameters.keys() >= {rule.option, *needed}:
            continue
        other = max(needed, key=options.source)
        if not is_given(options, rule.option) or not rule.when(options, other):
            continue
        mine, others = options.source(rule.option), options.source(other)
        gives_way = rule.weaker != "refused"
        if mine < (max(rule.least, others) if gives_way else rule.least):
            options = options.without(rule.option) if gives_way else options
        elif rule.weaker == "left out" and others < mine:
            options = options.without(other)
        else:
            texts = {
                "option": flag_text(parameters[rule.option]),
                "other": flag_text(parameters[other]),
                "place": options.place(rule.option),
                "other_place": options.place(other),
                "value": options[other],
            }
            if rule.other == PLAIN and other == "mode":
                texts["other"] += " baseline"
            raise UsageError(rule.message.format(**texts), hint=rule.hint.format(**texts))
    return options


def flag_text(parameter: Any) -> str:
    """How help texts name an option or an argument."""
    is_option = parameter.param_type_name == "option"
    return f"--{flag_key(parameter)}" if is_option else parameter.metavar
