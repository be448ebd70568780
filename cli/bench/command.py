"""`dflash bench`: measures the engine's modes on many prompts, with `dflash_mlx.bench`.

3    --check found an answer that differs from plain decoding
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions

from ..awake import awake
from ..backend.local import LocalBackend
from ..loading import bundled_note, load_pair, prepare_libraries
from ..options import (
    BUNDLED,
    DisplayOptions,
    Flags,
    ModelOptions,
    OptionValues,
    Origin,
    option,
    option_groups,
)
from ..resolve import with_known_thinking, with_target_id, without_overridden_draft
from ..terminal.output import Output
from ..terminal.spinner import Spinner
from .report import (
    Measured,
    bench_json,
    best_choice,
    drafts_json,
    draw_plots,
    measure_sources,
    run_schedule,
    show_drafts,
    show_report,
)

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.bench import Question, Schedule, Source


EXIT_DIFFERENT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Use these prompts: JSONL with a string, prompt, messages or turns per line.",
            rich_help_panel="Measurement",
        ),
    ] = None
    modes: Annotated[
        str | None,
        option(
            "--modes",
            metavar="A,B",
            help="Modes to measure, also with a block size: dflash:8. [all]",
            panel="Measurement",
        ),
    ] = None
    drafts: Annotated[
        str | None,
        option(
            "--drafts",
            metavar="A,B",
            help="Measure drafters instead of modes: all that fit, or dflash, dflash:ID, "
            "dspark:ID, eagle3:ID, eagle3-60:ID (trees), mtp, mtp:ID, assistant:ID, model:ID, "
            "lookup, none.",
            panel="Measurement",
        ),
    ] = None
    temps: Annotated[
        str,
        option(
            "--temps",
            metavar="T,T",
            help="Temperatures, with commas between them.",
            panel="Measurement",
        ),
    ] = "0,1"
    limit: Annotated[
        int,
        option(
            "--limit",
            "-n",
            min=0,
            metavar="N",
            help="Prompts per suite; 0: as many as the papers use, or all.",
            panel="Measurement",
        ),
    ] = 8
    max_tokens: Annotated[
        int,
        option(
            "--max-tokens",
            min=1,
            metavar="N",
            help="Maximum length of each answer in tokens.",
            panel="Measurement",
        ),
    ] = 256
    repeats: Annotated[
        int,
        option(
            "--repeats",
            min=1,
            metavar="N",
            help="Answers to each prompt in each mode.",
            panel="Measurement",
        ),
    ] = 2
    seed: Annotated[
        int,
        option(
            "--seed",
            min=0,
            metavar="N",
            help="Seed of the answers above temperature 0.",
            panel="Advanced",
        ),
    ] = 0
    cooldown: Annotated[
        float,
        option(
            "--cooldown",
            min=0,
            metavar="S",
            help="Seconds of rest before each answer.",
            panel="Advanced",
        ),
    ] = 0.0
    json: Annotated[bool, option("--json", help="Print one JSON object.", panel="Output")] = False
    results_path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write results to this file (JSONL); a run that stopped continues from it.",
            rich_help_panel="Output",
        ),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="X.png",
            help="Draw X-speedup.png, X-accept.png and X-cost.png.",
            rich_help_panel="Output",
        ),
    ] = None
    check: Annotated[
        bool,
        option(
            "--check",
            help="Exit with 3 if a greedy answer differs from plain decoding's.",
            panel="Output",
        ),
    ] = False


ANSWER_OPTIONS = ("block_size", "accept", "think", "reasoning_effort")
GROUPS = Flags((ModelOptions, GenerationOptions), only=ANSWER_OPTIONS)


@option_groups
def bench(
    ctx: typer.Context,
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE]...",
            help="bundled, gsm8k, math500, humaneval, mbpp, aime24, aime25, livecodebench, "
            "mt-bench, alpaca. [bundled]",
            show_default=False,
        ),
    ] = None,
    *,
    values: Annotated[OptionValues, GROUPS],
    own: BenchOptions,
    display: DisplayOptions,
) -> None:
    """Measure the speed of all modes, and compare their answers.

    \b
      dflash bench                               the bundled pair, a few minutes
      dflash bench gsm8k -m qwen3:4b -n 20       20 questions of a suite
      dflash bench --drafts all -m qwen3:4b      all drafters; the best is kept

    Every prompt is answered by each mode in turn. The report goes to stdout, the rest to stderr.
    With --drafts each drafter is measured in turn with plain decoding, so compare their ratios, not
    their tokens per second. After --drafts all the target has the best one on this machine, unless
    -d names another.
    """
    out = Output(quiet=display.quiet, plain=display.plain)
    values = resolve_models(values, own, out)
    models = values.group(ModelOptions)
    prepare_libraries(offline=models.offline)
    from dflash_mlx import bench as engine

    sources = () if own.drafts is None else engine.parse_sources(own.drafts)
    schedule = schedule_of(values, own, sources, out)
    check_flags(values, own, schedule, sources)
    with Spinner(out, "reading the prompts"):
        questions = collect_questions(suites or [], own.prompts, own.limit)
    if not own.json and not out.quiet and (note := bundled_note(models)):
        out.info(note, "dim")
    ctx.with_resource(awake())
    pair, _ = load_pair(models, out)
    schedule = with_thinking(schedule, values, LocalBackend(pair), out)
    compares_all = any(source.is_all for source in sources)
    if compares_all:
        sources = fitting(pair, out)
    if sources:
        measured = measure_sources(
            sources, pair, schedule, questions, models, own.results_path, out
        )
    else:
        measured = [measure_modes(pair, schedule, questions, own.results_path, out)]
    report(measured, own, questions, pair, out)
    if compares_all:
        keep_choice(measured, pair, out)
    leave(measured, own, out)


def fitting(pair: "Pair", out: Output) -> tuple["Source", ...]:
    """All sources that fit the target; a note names the known drafters that are missing here."""
    from dflash_mlx import bench as engine

    if missing := engine.missing_drafters(pair):
        out.warn(
            f"not downloaded, so not compared: {', '.join(missing)} "
            f"(`dflash models pull {pair.target_name} -d ID` downloads one)"
        )
    return engine.fitting_sources(pair)


def keep_choice(measured: list[Measured], pair: "Pair", out: Output) -> None:
    """Keep the best source as the target's drafter on this machine; not of the bundled pair."""
    from dflash_mlx.hub.choices import keep

    choice = best_choice(measured)
    if choice is None or pair.target_name == BUNDLED:
        return
    if keep(pair.target_name, pair.target.checkpoint.config, choice):
        drafter = f"the drafter {choice.draft}" if choice.draft else "plain decoding"
        out.warn(f"from now on '{pair.target_name}' has {drafter} here; -d names another")


def resolve_models(values: OptionValues, own: BenchOptions, out: Output) -> OptionValues:
    """The values with the target's id; UsageError for flags that have no effect on a benchmark."""
    values = with_target_id(without_overridden_draft(values), out)
    if own.drafts is None:
        return values
    flags = {
        "--draft": values.origin("draft") is Origin.FLAG,
        "--no-draft": values.origin("no_draft") is Origin.FLAG,
        "--lookup": values.origin("lookup") is Origin.FLAG,
        "--modes": own.modes is not None,
    }
    for flag, is_set in flags.items():
        if is_set:
            raise UsageError(
                f"--drafts and {flag} exclude each other.",
                hint="leave one of them out; --drafts dflash:ID,model:ID names models",
            )
    return values.changed(draft=None, no_draft=True, lookup=False)


def schedule_of(
    values: OptionValues, own: BenchOptions, sources: tuple["Source", ...], out: Output
) -> "Schedule":
    from dflash_mlx import bench as engine

    names = ["baseline"] if values["no_draft"] else engine.default_modes()
    if any(not source.no_draft for source in sources):
        names = ["baseline", "dflash"]
    accept = values["accept"] or "match"  # answers have seeds
    if not own.modes and accept != "match" and "ddtree" in names:
        names.remove("ddtree")
        out.warn(f"ddtree is left out: the rule {accept} judges chains")
    return engine.Schedule(
        modes=engine.parse_modes(own.modes or ",".join(names)),
        temperatures=engine.parse_temperatures(own.temps),
        repeats=own.repeats,
        max_tokens=own.max_tokens,
        seed=own.seed,
        block_size=values["block_size"],
        accept=accept,
        cooldown=own.cooldown,
    )


def check_flags(
    values: OptionValues, own: BenchOptions, schedule: "Schedule", sources: tuple["Source", ...]
) -> None:
    """Raise UsageError for flags that need other modes or temperatures."""
    wants_lookup = values.origin("lookup") is Origin.FLAG
    if wants_lookup and not any(variant.mode == "auto" for variant in schedule.modes):
        hint = (
            "remove --no-draft" if values["no_draft"] and not own.modes else "add auto to --modes"
        )
        raise UsageError("--lookup has no effect in these modes.", hint=hint)
    samples = bool(sources) and schedule.accept == "match"
    compares = samples or 0 in schedule.temperatures
    if own.check and not (schedule.has_baseline and compares and len(schedule.modes) > 1):
        raise UsageError(
            "--check needs the mode baseline, another one, and temperature 0.",
            hint="give --modes baseline,dflash --temps 0, or leave --check out",
        )
    if own.plot is not None:
        from dflash_mlx import bench as engine

        engine.check_plotting(own.plot)


def with_thinking(
    schedule: "Schedule", values: OptionValues, backend: LocalBackend, out: Output
) -> "Schedule":
    """The schedule with thinking as the options set it; by default off if the template can."""
    out.warn(*backend.info.warnings)
    values = with_known_thinking(values, backend.info.thinking, out, raw=False)
    think = values["think"]
    effort = values["reasoning_effort"]
    if think is None and effort is None and backend.info.thinking.think_switch:
        think = False
    return replace(schedule, think=think, effort=effort)


def measure_modes(
    pair: "Pair",
    schedule: "Schedule",
    questions: list["Question"],
    path: Path | None,
    out: Output,
) -> Measured:
    """Measure the modes in turn until Ctrl-C."""
    from dflash_mlx import bench as engine

    engine.check(pair, schedule, questions)
    with engine.Results(engine.facts_of(pair, schedule), path) as results:
        finished = run_schedule(pair, schedule, questions, results, out)
        records = results.of(schedule, questions)
        differences = [
            engine.with_gap(difference, pair, questions, results.records, schedule)
            for difference in engine.find_differences(records)
        ]
    rows = engine.summarise(records)
    return Measured(None, results, schedule, records, rows, differences, finished)


def report(
    measured: list[Measured],
    own: BenchOptions,
    questions: list["Question"],
    pair: "Pair",
    out: Output,
) -> None:
    tokenizer = pair.tokenizer
    first = measured[0]
    if own.json:
        out.write_json(bench_json(first) if first.source is None else drafts_json(measured))
    elif any(part.records for part in measured):
        if first.source is None:
            show_report(first, questions, out, tokenizer)
        else:
            show_drafts(measured, questions, out, tokenizer)
    rows = [row for part in measured for row in part.rows]
    if own.plot is not None and rows:
        draw_plots(own.plot, rows, first.results, out)


def leave(measured: list[Measured], own: BenchOptions, out: Output) -> None:
    """Exit with 130 if the run was stopped, with 3 if --check found a difference."""
    if not measured[-1].finished:
        count = sum(len(part.records) for part in measured)
        advice = (
            "the same command goes on from here"
            if own.results_path
            else "--out FILE would have kept it"
        )
        out.info(f"stopped after {count:,} answers; {advice}")
        raise typer.Exit(130)
    if own.check and any(part.differences for part in measured):
        raise typer.Exit(EXIT_DIFFERENT)


def collect_questions(suites: list[str], prompts: Path | None, limit: int) -> list["Question"]:
    """All questions; UsageError for an unknown suite, DFlashError for an unreadable file."""
    from dflash_mlx import bench as engine

    for name in suites:
        if name not in engine.suite_names():
            known = ", ".join(engine.suite_names())
            raise UsageError(f"there is no suite '{name}'.", hint=f"use {known}, or --prompts FILE")
        if suites.count(name) > 1:
            raise UsageError(f"the suite '{name}' was given twice.", hint="give it once")
    questions: list[Question] = []
    for name in suites or ([] if prompts else ["bundled"]):
        questions += engine.questions_of(name, limit)
    if prompts is not None:
        from_file = engine.read_questions(prompts, prompts.name)
        questions += from_file[: limit or len(from_file)]
    return questions
