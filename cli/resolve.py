"""Resolves the options of a command. All commands share this order:

1. values of flags, variables and the config file, and the preset (`Origin` says which one wins)
2. contradictions between them
3. the target: a short name becomes a Hub id, a server loses the options of local models
4. the defaults of that target, [models."ID"] in the config file
5. once the model is loaded: its recommended sampling and its thinking switches (`fitted`)
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dflash_mlx.address import is_address
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions, SamplingParams, declared

from .backend.base import ModelInfo, ThinkingSwitches
from .config_file import flag_key
from .loading import with_known_target
from .options import BUNDLED, CacheOptions, ModelOptions, OptionValues, Origin, PromptOptions
from .presets import OptionTables
from .terminal.output import Output

# Options that need a model on this machine, besides those declared with the scope "local".
LOCAL_NAMES = {
    "adapter",
    "draft",
    "no_draft",
    "lookup",
    "draft_bits",
    "kv_bits",
    "exact",
    "force",
    "trust_remote_code",
    "models",
    "offline",
    "cache_ram",
    "cache_disk",
    "sampling_by",
    "raw",
    "grammar",
    "compare",
    "batch",
    "demo",
}
LOCAL_NAMES |= {entry.name for entry in declared(GenerationOptions) if entry.scope == "local"}
THINKING = {"think": "switch for thinking", "reasoning_effort": "reasoning effort"}
RECOMMENDED = "recommended"  # a value of --sampling
TargetChoice = Callable[[OptionValues], OptionValues]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The resolved options in groups.

    values: the same, ungrouped, with their origins. general: the values without the defaults of the
    target.
    """

    model: ModelOptions
    generation: GenerationOptions
    prompt: PromptOptions
    cache: CacheOptions
    values: OptionValues
    general: OptionValues

    @staticmethod
    def of(values: OptionValues, general: OptionValues) -> "Resolved":
        """Put the values into groups; UsageError for a value outside its range."""
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
        return is_address(self.model.model)

    def fitted(
        self, info: ModelInfo, out: Output, *, raw: bool = False, recommended: bool = False
    ) -> "Resolved":
        """The options for the loaded model.

        `--sampling recommended` takes its recommended sampling; `recommended` does so if no
        sampling option is given. Thinking switches that its template does not know are dropped
        with a note; UsageError if a flag gave them. `raw`: the template is not used.
        """
        values = self.values
        if recommended and sampling_is_open(values):
            values = values.changed(**info.recommended)
        else:
            values = with_recommended(values, info, out)
        values = with_known_thinking(values, info.thinking, out, raw=raw)
        fitted = Resolved.of(values, self.general)
        if not raw:
            generation = fitted.generation
            info.thinking.check(generation.think, generation.reasoning_effort)
        return fitted


def resolve(
    values: OptionValues,
    out: Output,
    *,
    choose: TargetChoice = lambda values: values,
    keep_system: bool = False,
) -> Resolved:
    """The options of a command.

    choose: fills in the target if none is given. keep_system: the defaults of the target do not
    change the system prompt. Raises DFlashError for a wrong value in the config file, UsageError
    for values that contradict each other.
    """
    values = without_contradictions(values)
    check_folders(values, out)
    values = choose(values)
    values = with_target_id(values, out)
    if is_address(values["model"]):
        values = without_local(values, out)
    general = values
    values = with_target_defaults(values, keep_system=keep_system)
    return Resolved.of(values, general)


def with_preset(values: OptionValues, name: str | None) -> OptionValues:
    """The values with those of a preset, which flags override; DFlashError for an unknown one."""
    if name is None:
        return values
    return values.layered(
        OptionTables(values.ctx).preset(name), Origin.PRESET, f"of the preset '{name}'"
    )


def check_folders(values: OptionValues, out: Output) -> None:
    """Raise UsageError for a folder of --models that does not exist.

    Only a warning if a variable or the config file names it: its disk may be unplugged.
    """
    for folder in values.group(ModelOptions).folders:
        if folder.is_dir():
            continue
        missing = f"the folder '{folder}' of {values.place('models')} does not exist"
        if values.origin("models") is Origin.FLAG:
            raise UsageError(
                f"{missing}.", hint="give a folder that holds models, or folders of them"
            )
        out.warn(missing)


def with_target_id(values: OptionValues, out: Output) -> OptionValues:
    """The values with a short name replaced by the Hub id, and "bundled" by None."""
    model = with_known_target(values.group(ModelOptions), out).model
    return values if model == values["model"] else values.changed(model=model)


def with_target_defaults(values: OptionValues, *, keep_system: bool = False) -> OptionValues:
    """The values with the target's defaults, [models."ID"] in the config file."""
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
    """The values of --mode, --tree-budget, --draft, --no-draft and --lookup without contradictions.

    Of two contradictory values the one with the higher origin wins; UsageError if both have the
    same origin. The mode baseline and --no-draft imply each other.
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
    plain = mode == "baseline"
    other = "no_draft" if plain and origin("no_draft") >= origin("mode") else "mode"
    if values["lookup"] and mode != "auto":
        if origin("lookup") >= origin(other):
            where = "without drafting" if plain else "outside the mode auto"
            raise UsageError(
                f"--lookup has no effect {where}.",
                hint=f"remove {values.place(other)} or {values.place('lookup')}",
            )
        values = values.changed(lookup=False)
    if values["tree_budget"] is not None and mode != "ddtree":
        # A value of the config file is kept for the mode ddtree.
        if origin("tree_budget") >= max(origin("mode"), Origin.ENVIRONMENT):
            remove = f"remove {values.place(other)} and " if plain else ""
            raise UsageError(
                f"--tree-budget has no effect in the mode {mode}.",
                hint=f"{remove}add --mode ddtree",
            )
        values = values.changed(tree_budget=None)
    return values


def without_overridden_draft(values: OptionValues) -> OptionValues:
    """The values without --draft or --no-draft if the other has a higher origin."""
    draft = values.origin("draft")
    no_draft = values.origin("no_draft")
    if values["draft"] is None or not values["no_draft"] or draft == no_draft:
        return values
    return values.changed(no_draft=False) if draft > no_draft else values.changed(draft=None)


def without_local(values: OptionValues, out: Output) -> OptionValues:
    """The values for a model of a server.

    Options that need a local model raise UsageError if a flag or preset set them. If a variable or
    the config file did, they are dropped with a note.
    """
    given = given_local(values)
    for parameter, origin in given:
        if origin >= Origin.PRESET:
            raise UsageError(
                f"--{flag_key(parameter)} needs a model on this machine, and --model names a "
                "server.",
                hint="leave it out; some options can be given to `dflash serve` instead",
            )
    if given:
        names = ", ".join(flag_key(parameter) for parameter, _ in given)
        out.note(f"  left out, because the server decides: {names}")
    groups = (ModelOptions, CacheOptions, PromptOptions)
    defaults = {member.name: member.default for group in groups for member in fields(group)}
    defaults |= {entry.name: entry.command_default for entry in declared(GenerationOptions)}
    local = [name for name in defaults if name in LOCAL_NAMES and name in values]
    return values.changed(**{name: defaults[name] for name in local})


def given_local(values: OptionValues) -> list[tuple[Any, Origin]]:
    """The options that need a local model and are given, each with its origin."""
    parameters = [p for p in values.ctx.command.params if p.name in LOCAL_NAMES]
    origins = [(parameter, values.origin(parameter.name or "")) for parameter in parameters]
    return [(parameter, origin) for parameter, origin in origins if origin is not Origin.DEFAULT]


# Recommendations and limits of the loaded model


def with_recommended(values: OptionValues, info: ModelInfo, out: Output) -> OptionValues:
    """The values with the recommended sampling, if `--sampling recommended` is given.

    Sampling options of the same or a higher origin stay. If the model recommends nothing,
    DFlashError for a flag, else a note.
    """
    if "sampling_by" not in values or values["sampling_by"] != RECOMMENDED:
        return values
    origin = values.origin("sampling_by")
    recommended = info.recommended
    if not recommended:
        error = no_recommendation(info)
        if origin is Origin.FLAG:
            raise error
        out.note(f"  {error.message}")
        return values
    changes = {name: value for name, value in recommended.items() if values.origin(name) < origin}
    values = values.changed(**changes)
    out.note(
        f"  sampling as recommended: {describe_recommendation({n: values[n] for n in recommended})}"
    )
    return values


def sampling_is_open(values: OptionValues) -> bool:
    """Whether neither `--sampling` nor any sampling option but the seed is given."""
    names = ["sampling_by", *(e.name for e in declared(SamplingParams) if e.name != "seed")]
    return all(values.origin(name) is Origin.DEFAULT for name in names)


def describe_recommendation(values: Mapping[str, float]) -> str:
    entries = [entry for entry in declared(SamplingParams) if entry.name in values]
    texts = [f"{entry.setting} {values[entry.name]:g}" for entry in entries]
    return f"{', '.join(texts)} (generation_config.json)"


def sampling_note(info: ModelInfo, sampling: SamplingParams, take: str) -> str:
    """A line on the recommended sampling, empty if there is none.

    take: what the user enters to sample as recommended.
    """
    recommended = info.recommended
    if not recommended:
        return ""
    described = describe_recommendation(recommended)
    if replace(sampling, seed=None) == SamplingParams(**only_recommended(recommended)):
        return f"sampling as recommended: {described}"
    return f"recommended sampling: {described} · {take} takes it"


def no_recommendation(info: ModelInfo) -> DFlashError:
    return DFlashError(
        f"'{info.name}' recommends no sampling in a generation_config.json.",
        hint="give --temp and --top-p; in a chat /temp 0 always takes the most likely token",
    )


def only_recommended(values: Mapping[str, float]) -> dict[str, Any]:
    """All fields of `SamplingParams` but the seed: the recommended values, else the defaults."""
    entries = [entry for entry in declared(SamplingParams) if entry.name != "seed"]
    return {entry.name: values.get(entry.name, entry.default) for entry in entries}


def with_known_thinking(
    values: OptionValues, template: ThinkingSwitches, out: Output, *, raw: bool
) -> OptionValues:
    """The values without thinking switches that the template does not know.

    Only those that no flag set are dropped, with a note; `check` of the template refuses others.
    All are dropped without a note if `raw`, or if a flag contradicts one.
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
    """The names of the switches that are set and that the template does not know."""
    known = {
        "think": template.think_switch is not None,
        "reasoning_effort": values.get("reasoning_effort") in template.efforts,
    }
    return [name for name, value in values.items() if value is not None and not known[name]]


def note_unknown_thinking(names: Iterable[str], out: Output) -> None:
    for name in names:
        out.note(f"  this model's template knows no {THINKING[name]}: it goes its own way")


def drop_unknown_thinking(
    options: GenerationOptions,
    template: ThinkingSwitches,
    out: Output,
    names: Iterable[str] = THINKING,
) -> GenerationOptions:
    """The options without switches that the template does not know; a note for each."""
    unknown = unknown_thinking({name: getattr(options, name) for name in names}, template)
    note_unknown_thinking(unknown, out)
    return replace(options, **dict.fromkeys(unknown))
