"""Resolves the options of a command. All commands share this order:

1. flags, variables, the preset and the config file (`ValueSource` says which one wins)
2. contradictions between them
3. the target: a short name becomes a Hub id, a server loses the options of local models
4. the defaults of that target, [models."ID"] in the config file
5. once the model is loaded: its recommended sampling and its thinking switches (`fit`)
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from dflash_mlx.address import is_address
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import GenerationOptions, SamplingParams, declared

from .backend.base import ModelInfo, ThinkingSwitches
from .config_file import flag_key
from .exclusions import WHEN_RESOLVED, is_plain, without_excluded
from .loading import with_known_target
from .options import BUNDLED, Options
from .presets import OptionTables
from .sources import ValueSource
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
TargetChoice = Callable[[Options], Options]


def resolve(
    options: Options,
    out: Output,
    *,
    choose: TargetChoice = lambda options: options,
    keep_system: bool = False,
) -> Options:
    """The options of a command with its target's defaults.

    keep_system: these do not change the system prompt. Otherwise as `resolve_target`.
    """
    return with_target_defaults(resolve_target(options, out, choose), keep_system=keep_system)


def resolve_target(options: Options, out: Output, choose: TargetChoice) -> Options:
    """The options with the target's id, and without those that contradict each other.

    choose: fills in the target if none is given. Raises DFlashError for a wrong value in the config
    file, UsageError for values that contradict each other.
    """
    options = without_contradictions(options)
    check_folders(options, out)
    options = choose(options)
    options = with_target_id(options, out)
    return without_local(options, out) if is_address(options.model.model) else options


def with_target_id(options: Options, out: Output) -> Options:
    """The options with a short name replaced by the Hub id, and "bundled" by None."""
    model = with_known_target(options.model, out).model
    return options if model == options.model.model else options.changed(model=model)


def fit(
    options: Options, info: ModelInfo, out: Output, *, raw: bool = False, recommended: bool = False
) -> Options:
    """The options for the loaded model.

    `--sampling recommended` takes its recommended sampling; `recommended` does so if no sampling
    option is given. Thinking switches that its template does not know are dropped with a note;
    UsageError if a flag gave them. `raw`: the template is not used.
    """
    if recommended and sampling_is_open(options):
        options = options.changed(**info.recommended)
    else:
        options = with_recommended(options, info, out)
    options = with_known_thinking(options, info.thinking, out, raw=raw)
    if not raw:
        generation = options.generation
        info.thinking.check(generation.think, generation.reasoning_effort)
    return options


def with_preset(options: Options, name: str | None) -> Options:
    """The options with those of a preset, which flags override; DFlashError for an unknown one."""
    if name is None:
        return options
    return options.layered(
        OptionTables(options.ctx).preset(name), ValueSource.PRESET, f"of the preset '{name}'"
    )


def check_folders(options: Options, out: Output) -> None:
    """Raise UsageError for a folder of --models that does not exist.

    Only a warning if a variable or the config file names it: its disk may be unplugged.
    """
    for folder in options.model.folders:
        if folder.is_dir():
            continue
        missing = f"the folder '{folder}' of {options.place('models')} does not exist"
        if options.source("models") is ValueSource.FLAG:
            raise UsageError(
                f"{missing}.", hint="give a folder that holds models, or folders of them"
            )
        out.warn(missing)


def with_target_defaults(options: Options, *, keep_system: bool = False) -> Options:
    """The options with the target's defaults, [models."ID"] in the config file."""
    target = options["model"]
    table = OptionTables(options.ctx).of_model(target)
    if keep_system:
        table.pop("system", None)
    if not table:
        return options
    place = f"of the defaults of '{target or BUNDLED}'"
    return without_contradictions(options.layered(table, ValueSource.TARGET, place))


# Options that contradict each other


def without_contradictions(options: Options) -> Options:
    """The options without contradictions; the mode baseline and --no-draft imply each other."""
    options = without_excluded(options, WHEN_RESOLVED)
    return options.changed(mode="baseline", no_draft=True) if is_plain(options) else options


def without_local(options: Options, out: Output) -> Options:
    """The options for a model of a server.

    Options that need a local model raise UsageError if a flag or preset set them. If a variable or
    the config file did, they are dropped with a note.
    """
    given = given_local(options)
    for parameter, source in given:
        if source >= ValueSource.PRESET:
            raise UsageError(
                f"--{flag_key(parameter)} needs a model on this machine, and --model names a "
                "server.",
                hint="leave it out; some options can be given to `dflash serve` instead",
            )
    if given:
        names = ", ".join(flag_key(parameter) for parameter, _ in given)
        out.note(f"  left out, because the server decides: {names}")
    return options.without(*LOCAL_NAMES)


def given_local(options: Options) -> list[tuple[Any, ValueSource]]:
    parameters = [p for p in options.ctx.command.params if p.name in LOCAL_NAMES]
    sources = [(parameter, options.source(parameter.name or "")) for parameter in parameters]
    return [
        (parameter, source) for parameter, source in sources if source is not ValueSource.DEFAULT
    ]


# Recommendations and limits of the loaded model


def with_recommended(options: Options, info: ModelInfo, out: Output) -> Options:
    """The options with the recommended sampling, if `--sampling recommended` is given.

    Sampling options of the same or a higher source stay. If the model recommends nothing,
    DFlashError for a flag, else a note.
    """
    if options.prompt.sampling_by != RECOMMENDED:
        return options
    source = options.source("sampling_by")
    recommended = info.recommended
    if not recommended:
        error = no_recommendation(info)
        if source is ValueSource.FLAG:
            raise error
        out.note(f"  {error.message}")
        return options
    changes = {name: value for name, value in recommended.items() if options.source(name) < source}
    options = options.changed(**changes)
    taken = describe_recommendation({name: options[name] for name in recommended})
    out.note(f"  sampling as recommended: {taken}")
    return options


def sampling_is_open(options: Options) -> bool:
    """Whether neither `--sampling` nor any sampling option but the seed is given."""
    names = ["sampling_by", *(e.name for e in declared(SamplingParams) if e.name != "seed")]
    return all(options.source(name) is ValueSource.DEFAULT for name in names)


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
    options: Options, template: ThinkingSwitches, out: Output, *, raw: bool
) -> Options:
    """The options without thinking switches that the template does not know.

    Only those that no flag set are dropped, with a note; `check` of the template refuses others.
    All are dropped without a note if `raw`, or if a flag contradicts one.
    """
    inherited = [name for name in THINKING if options.source(name) is not ValueSource.FLAG]
    generation = options.generation
    contradictory = generation.think is False and generation.reasoning_effort is not None
    if raw or (contradictory and len(inherited) == 1):
        return options.changed(**dict.fromkeys(inherited))
    kept = drop_unknown_thinking(generation, template, out, inherited)
    return options.changed(think=kept.think, reasoning_effort=kept.reasoning_effort)


def drop_unknown_thinking(
    options: GenerationOptions,
    template: ThinkingSwitches,
    out: Output,
    names: Iterable[str] = THINKING,
) -> GenerationOptions:
    """The options without switches that the template does not know; a note for each."""
    known = {
        "think": template.think_switch is not None,
        "reasoning_effort": options.reasoning_effort in template.efforts,
    }
    unknown = [n for n in names if getattr(options, n) is not None and not known[n]]
    for name in unknown:
        out.note(f"  this model's template knows no {THINKING[name]}: it goes its own way")
    return replace(options, **dict.fromkeys(unknown))
