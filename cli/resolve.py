"""From flags, variables and tables to the options of a run, in one order for all commands.

    the command's values, its preset  ->  contradictions  ->  target  ->  the target's defaults

What a loaded model recommends or cannot have comes last: `Resolved.fitted`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions, SamplingParams, declared
from dflash_mlx.remote.client import is_address

from .backend.base import Backend, ThinkingSwitches
from .config_file import flag_key
from .loading import with_known_target
from .options import BUNDLED, CacheOptions, ModelOptions, OptionValues, Origin, PromptOptions
from .presets import OptionTables
from .terminal.output import Output

# What needs a model on this machine, besides the options of an answer that are declared so.
LOCAL_NAMES = {
    "draft",
    "no_draft",
    "lookup",
    "draft_bits",
    "exact",
    "force",
    "trust_remote_code",
    "offline",
    "cache_ram",
    "cache_disk",
    "sampling_by",
    "raw",
    "grammar",
    "compare",
    "demo",
}
LOCAL_NAMES |= {one.name for one in declared(GenerationOptions) if one.option.scope == "local"}
THINKING = {"think": "switch for thinking", "reasoning_effort": "reasoning effort"}
RECOMMENDED = "recommended"  # a value of --sampling
TargetChoice = Callable[[OptionValues], OptionValues]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The options of a run. general: the values before the target's own defaults."""

    model: ModelOptions
    generation: GenerationOptions
    prompt: PromptOptions
    cache: CacheOptions
    values: OptionValues
    general: OptionValues

    @staticmethod
    def of(values: OptionValues, general: OptionValues) -> "Resolved":
        """The groups of these values; UsageError for one outside its range."""
        return Resolved(
            values.group(ModelOptions),
            values.generation(),
            values.group(PromptOptions),
            values.group(CacheOptions),
            values,
            general,
        )

    @property
    def remote(self) -> bool:
        """Whether the model is a server's."""
        return is_address(self.model.model)

    def fitted(self, backend: Backend, out: Output, *, raw: bool = False) -> "Resolved":
        """The options for a model that is loaded: with the sampling that it recommends, where that
        is asked for, and without switches of thinking that its template does not know.

        A note for each value that is dropped. UsageError where a flag asks for what it cannot have;
        with `raw` there is no template.
        """
        values = with_recommended(self.values, backend, out)
        values = with_known_thinking(values, backend.template, out, raw=raw)
        fitted = Resolved.of(values, self.general)
        if not raw:
            check_thinking(backend.template, fitted.generation)
        return fitted


def resolve(
    values: OptionValues,
    out: Output,
    *,
    choose: TargetChoice = lambda values: values,
    keep_system: bool = False,
) -> Resolved:
    """The options of a command.

    `choose` may put another target in the place of none. With `keep_system` the target's defaults
    set no system prompt. Raises DFlashError for wrong values in the config file, and UsageError for
    values that contradict each other.
    """
    values = without_contradictions(values)
    values = choose(values)
    values = with_target_id(values, out)
    if is_address(values["model"]):
        values = without_local(values, out)
    general = values
    values = with_target_defaults(values, keep_system=keep_system)
    return Resolved.of(values, general)


def with_preset(values: OptionValues, name: str | None) -> OptionValues:
    """The values with those of a preset where no flag is given; DFlashError where there is none."""
    if name is None:
        return values
    return values.layered(
        OptionTables(values.ctx).preset(name), Origin.PRESET, f"of the preset '{name}'"
    )


def with_target_id(values: OptionValues, out: Output) -> OptionValues:
    """The values with the Hub id of a short name, and None for the bundled pair."""
    model = with_known_target(values.group(ModelOptions), out).model
    return values if model == values["model"] else values.changed(model=model)


def with_target_defaults(values: OptionValues, *, keep_system: bool = False) -> OptionValues:
    """The values with the defaults of their target, [models."ID"] in the config file."""
    target = values["model"]
    table = OptionTables(values.ctx).of_model(target)
    if keep_system:
        table.pop("system", None)
    if not table:
        return values
    place = f"of the defaults of '{target or BUNDLED}'"
    return without_contradictions(values.layered(table, Origin.MODEL_DEFAULTS, place))


# Options that contradict each other


def without_contradictions(values: OptionValues) -> OptionValues:
    """The values where --mode, --tree-budget, --draft, --no-draft and --lookup agree.

    Of two that contradict each other the one from the higher origin counts. UsageError where both
    have the same. The mode baseline means no drafter.
    """
    origin = values.origin
    mode = values["mode"]
    baseline = mode == "baseline"
    if values["no_draft"] and not baseline and origin("mode"):
        if origin("mode") == origin("no_draft"):
            raise UsageError(
                f"--no-draft decodes plainly, and --mode {mode} does not.",
                hint="leave one of them out",
            )
        values = values.changed(no_draft=origin("mode") < origin("no_draft"))
    values = without_overridden_draft(values)
    if baseline and values["draft"] is not None:
        if origin("draft") >= origin("mode"):
            raise UsageError(
                "--mode baseline needs no drafter, and --draft names one.",
                hint="leave one of them out",
            )
        values = values.changed(draft=None)
    if values["no_draft"] or baseline:
        values = values.changed(mode="baseline", no_draft=True)
    mode = values["mode"]
    if values["lookup"] and mode != "auto":
        if origin("lookup") >= origin("mode"):
            raise UsageError(
                f"--lookup says nothing to the mode {mode}.",
                hint="leave out --mode, or take copies alone: --draft lookup",
            )
        values = values.changed(lookup=False)
    if values["tree_budget"] is not None and mode != "ddtree":
        # The config file may set it for the times when the mode is ddtree.
        if origin("tree_budget") >= max(origin("mode"), Origin.ENVIRONMENT):
            raise UsageError(
                f"--tree-budget says nothing to the mode {mode}.", hint="add --mode ddtree"
            )
        values = values.changed(tree_budget=None)
    return values


def without_overridden_draft(values: OptionValues) -> OptionValues:
    """The values without --draft or --no-draft where the other has the higher origin."""
    draft, no_draft = values.origin("draft"), values.origin("no_draft")
    if values["draft"] is None or not values["no_draft"] or draft == no_draft:
        return values
    return values.changed(no_draft=False) if draft > no_draft else values.changed(draft=None)


def without_local(values: OptionValues, out: Output) -> OptionValues:
    """The values for a server's model.

    UsageError for flags and keys of a preset that need a model here. What variables and the config
    file say for all models is left out, and a note says so.
    """
    left_out = []
    for parameter in values.ctx.command.params:
        name = parameter.name or ""
        origin = values.origin(name) if name in LOCAL_NAMES else Origin.DEFAULT
        if origin >= Origin.PRESET:
            raise UsageError(
                f"--{flag_key(parameter)} needs a model on this machine, and --model names a "
                "server.",
                hint="leave it out: it is chosen where the server is started",
            )
        if origin is not Origin.DEFAULT:
            left_out.append(parameter)
    if left_out:
        names = ", ".join(flag_key(parameter) for parameter in left_out)
        out.note(f"  the server's affair, and left out: {names}")
    groups = (ModelOptions, CacheOptions, PromptOptions)
    defaults = {one.name: one.default for group in groups for one in fields(group)}
    defaults |= {one.name: one.command_default for one in declared(GenerationOptions)}
    local = [name for name in defaults if name in LOCAL_NAMES and name in values]
    return values.changed(**{name: defaults[name] for name in local})


# What a loaded model recommends, and what it cannot have


def with_recommended(values: OptionValues, backend: Backend, out: Output) -> OptionValues:
    """The values with the recommended sampling, where `--sampling recommended` is given.

    What is set in the same place as that, or in one that counts before it, stays. DFlashError for a
    flag that the model has no values for; a variable or the file, which is for all models, gets a
    note.
    """
    if "sampling_by" not in values or values["sampling_by"] != RECOMMENDED:
        return values
    origin = values.origin("sampling_by")
    recommended = backend.recommended_sampling()
    if not recommended:
        error = no_recommendation(backend)
        if origin is Origin.FLAG:
            raise error
        out.note(f"  {error.message}")
        return values
    taken = {name: value for name, value in recommended.items() if values.origin(name) < origin}
    values = values.changed(**taken)
    out.note(f"  sampling as recommended: {described({n: values[n] for n in recommended})}")
    return values


def described(values: Mapping[str, float]) -> str:
    """The values as `/set` names them, and where they are from."""
    named = [one for one in declared(SamplingParams) if one.name in values]
    texts = [f"{one.option.setting} {values[one.name]:g}" for one in named]
    return f"{', '.join(texts)} (generation_config.json)"


def no_recommendation(backend: Backend) -> DFlashError:
    """The error for a model that recommends nothing."""
    return DFlashError(
        f"'{backend.target_name}' recommends no sampling: no generation_config.json of it says "
        "how.",
        hint="give --temp and --top-p, in a chat /temp and /top-p",
    )


def only_recommended(values: Mapping[str, float]) -> dict[str, Any]:
    """The fields of `SamplingParams` that make sampling just that; the seed is not among them."""
    names = [one for one in declared(SamplingParams) if one.name != "seed"]
    return {one.name: values.get(one.name, one.default) for one in names}


def with_known_thinking(
    values: OptionValues, template: ThinkingSwitches, out: Output, *, raw: bool
) -> OptionValues:
    """The values without switches of thinking that the template does not know.

    Variables and the config file are for all models, so theirs are dropped, with a note. Flags stay
    as they are, and override both.
    """
    names = [name for name in THINKING if name in values]
    inherited = [name for name in names if values.origin(name) is not Origin.FLAG]
    contradictory = values["think"] is False and values["reasoning_effort"] is not None
    if raw or (contradictory and len(inherited) == 1):
        return values.changed(**dict.fromkeys(inherited))
    unknown = unknown_thinking({name: values[name] for name in inherited}, template)
    note_unknown_thinking(unknown, out)
    return values.changed(**dict.fromkeys(unknown)) if unknown else values


def unknown_thinking(values: dict[str, Any], template: ThinkingSwitches) -> list[str]:
    """Which of the switches of thinking are set, and the template does not know them."""
    known = {
        "think": template.think_switch is not None,
        "reasoning_effort": values.get("reasoning_effort") in template.efforts,
    }
    return [name for name, value in values.items() if value is not None and not known[name]]


def note_unknown_thinking(names: Iterable[str], out: Output) -> None:
    """Say which switches were dropped."""
    for name in names:
        out.note(f"  this model's template knows no {THINKING[name]}: it goes its own way")


def drop_unknown_thinking(
    options: GenerationOptions,
    template: ThinkingSwitches,
    out: Output,
    names: Iterable[str] = THINKING,
) -> GenerationOptions:
    """The options without those of `names` that the template does not know; a note for each."""
    unknown = unknown_thinking({name: getattr(options, name) for name in names}, template)
    note_unknown_thinking(unknown, out)
    return replace(options, **dict.fromkeys(unknown))


def check_thinking(template: ThinkingSwitches, options: GenerationOptions) -> None:
    """UsageError for switches of thinking that the template does not know."""
    template.check(options.think, options.reasoning_effort)
