"""`dflash bench`: measures the engine's modes on many prompts, with `dflash_mlx.bench`.

3    --check found an answer that differs from plain decoding
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions

from ..awake import awake
from ..backend.local import LocalBackend
from ..exclusions import WHEN_RESOLVED, without_excluded
from ..loading import add_drafter, bundled_note, load_pair, prepare_libraries
from ..options import (
    BUNDLED,
    DisplayOptions,
    Flags,
    ModelOptions,
    Options,
    option,
    option_groups,
)
from ..resolve import with_known_thinking, with_target_id
from ..sources import ValueSource
from ..terminal.output import Output
from ..terminal.signals import Interrupt
from .report import Measured, best_choice, report_json, show_report

if TYPE_CHECKING:
    from rich.progress import Progress

    from dflash_mlx import Pair
    from dflash_mlx.bench import Question, Results, Schedule, Source

EXIT_DIFFERENT = 3
PROGRESS_LINES = 10  # lines printed for a whole run without a live terminal


def measurement(*names: str, help: str, **details: Any) -> Any:
    return option(*names, help=help, panel="Measurement", **details)


def file_option(*names: str, help: str, panel: str, metavar: str = "FILE") -> Any:
    """An option that names a file of one run, so that no variable sets it."""
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    prompts: Annotated[
        Path | None,
        file_option(
            "--prompts",
            help="Use these prompts: JSONL with a string, prompt, messages or turns per line.",
            panel="Measurement",
        ),
    ] = None
    modes: Annotated[
        str | None,
        measurement(
            "--modes",
            metavar="A,B",
            help="Modes to measure, also with a block size: dflash:8. [all]",
        ),
    ] = None
    drafts: Annotated[
        str | None,
        measurement(
            "--drafts",
            metavar="A,B",
            help="Measure drafters instead of modes: all that fit, or dflash, dflash:ID, "
            "dspark:ID, eagle3:ID, eagle3-60:ID (trees), mtp, mtp:ID, assistant:ID, model:ID, "
            "lookup, none.",
        ),
    ] = None
    temps: Annotated[
        str, measurement("--temps", metavar="T,T", help="Temperatures, with commas between them.")
    ] = "0,1"
    limit: Annotated[
        int,
        measurement("--limit", "-n", min=0, metavar="N", help="The first N prompts; 0: all."),
    ] = 8
    max_tokens: Annotated[
        int,
        measurement(
            "--max-tokens", min=1, metavar="N", help="Maximum length of each answer in tokens."
        ),
    ] = 256
    repeats: Annotated[
        int,
        measurement("--repeats", min=1, metavar="N", help="Answers to each prompt in each mode."),
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
        file_option(
            "--out",
            "-o",
            help="Write results to this file (JSONL); a run that stopped continues from it.",
            panel="Output",
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
            help="bundled, the only one here; --prompts takes others. [bundled]",
            show_default=False,
        ),
    ] = None,
    *,
    options: Annotated[Options, GROUPS],
    own: BenchOptions,
    display: DisplayOptions,
) -> None:
    """Measure the speed of all modes, and compare their answers.

    \b
      dflash bench                               the bundled pair, a few minutes
      dflash bench -m qwen3:4b --prompts FILE    prompts of your own
      dflash bench --drafts all -m qwen3:4b      all drafters; the best is kept

    Every prompt is answered by each mode in turn. The report goes to stdout, the rest to stderr.
    With --drafts each drafter is measured in turn with plain decoding, so compare their ratios, not
    their tokens per second. After --drafts all the target has the best one on this machine, unless
    -d names another.
    """
    out = Output(quiet=display.quiet, plain=display.plain)
    options = with_target_id(without_excluded(options, WHEN_RESOLVED), out)
    if own.drafts is not None:
        options = options.changed(draft=None, no_draft=True, lookup=False)
    models = options.model
    prepare_libraries(offline=models.offline)
    from dflash_mlx import bench as engine

    sources = () if own.drafts is None else engine.parse_sources(own.drafts)
    schedule = schedule_of(options, own, sources, out)
    check_flags(options, own, schedule, sources)
    questions = collect_questions(suites or [], own.prompts, own.limit)
    if not own.json and not out.quiet and (note := bundled_note(models)):
        out.info(note, "dim")
    ctx.with_resource(awake())
    pair, _ = load_pair(models, out)
    schedule = with_thinking(schedule, options, LocalBackend(pair), out)
    compares_all = any(source.is_all for source in sources)
    if compares_all:
        sources = fitting(pair, out)
    run = Run(questions, models, own.results_path, out)
    measured = run.measure_all(pair, schedule, sources)
    if own.json:
        out.write_json(report_json(measured))
    elif any(part.records for part in measured):
        show_report(measured, questions, out, pair.tokenizer)
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


def schedule_of(
    options: Options, own: BenchOptions, sources: tuple["Source", ...], out: Output
) -> "Schedule":
    from dflash_mlx import bench as engine

    names = ["baseline"] if options.model.no_draft else engine.default_modes()
    if any(not source.no_draft for source in sources):
        names = ["baseline", "dflash"]
    accept = options.generation.accept or "match"  # answers have seeds
    if not own.modes and accept != "match" and "ddtree" in names:
        names.remove("ddtree")
        out.warn(f"ddtree is left out: the rule {accept} judges chains")
    return engine.Schedule(
        modes=engine.parse_modes(own.modes or ",".join(names)),
        temperatures=engine.parse_temperatures(own.temps),
        repeats=own.repeats,
        max_tokens=own.max_tokens,
        seed=own.seed,
        block_size=options.generation.block_size,
        accept=accept,
        cooldown=own.cooldown,
    )


def check_flags(
    options: Options, own: BenchOptions, schedule: "Schedule", sources: tuple["Source", ...]
) -> None:
    """Raise UsageError for flags that need other modes or temperatures."""
    if options.source("lookup") is ValueSource.FLAG and not any(
        variant.mode == "auto" for variant in schedule.modes
    ):
        hint = (
            "remove --no-draft"
            if options.model.no_draft and not own.modes
            else "add auto to --modes"
        )
        raise UsageError("--lookup has no effect in these modes.", hint=hint)
    samples = bool(sources) and schedule.accept == "match"
    compares = samples or 0 in schedule.temperatures
    if own.check and not (schedule.has_baseline and compares and len(schedule.modes) > 1):
        raise UsageError(
            "--check needs the mode baseline, another one, and temperature 0.",
            hint="give --modes baseline,dflash --temps 0, or leave --check out",
        )


def with_thinking(
    schedule: "Schedule", options: Options, backend: LocalBackend, out: Output
) -> "Schedule":
    """The schedule with thinking as the options set it; by default off if the template can."""
    out.warn(*backend.info.warnings)
    thinking = backend.info.thinking
    generation = with_known_thinking(options, thinking, out, raw=False).generation
    think = generation.think
    effort = generation.reasoning_effort
    if think is None and effort is None and thinking.think_switch:
        think = False
    return replace(schedule, think=think, effort=effort)


@dataclass(frozen=True, slots=True)
class Run:
    """What the parts of a benchmark share: the modes, or each source of drafts, are a part.

    models: of the target and its options. path: the file of the results.
    """

    questions: list["Question"]
    models: ModelOptions
    path: Path | None
    out: Output

    def measure_all(
        self, pair: "Pair", schedule: "Schedule", sources: Sequence["Source"]
    ) -> list[Measured]:
        """Measure the modes, or one source after another, until Ctrl-C. All are checked before."""
        from dflash_mlx import bench as engine

        if not sources:
            engine.check(pair, schedule, self.questions)
            return [self.measure(pair, schedule, self.path)]
        for source in sources:
            pair = self.load(pair, source)
            engine.check(pair, source.schedule(schedule), self.questions)
        measured: list[Measured] = []
        for source in sources:
            pair = self.load(pair, source)
            if not self.out.quiet:
                self.out.info(f"drafts: {source.label}", "dim")
            file = source.results_file(self.path)
            measured.append(self.measure(pair, source.schedule(schedule), file, source))
            if not measured[-1].finished:
                break
        return measured

    def load(self, pair: "Pair", source: "Source") -> "Pair":
        """The target with a source's drafter; DFlashError if the drafter is another kind."""
        options = replace(self.models, draft=source.draft, no_draft=source.no_draft)
        if source.kind in ("lookup", "none"):
            options = replace(options, draft_bits=None)
        pair = add_drafter(pair, options, self.out)
        source.check(pair)
        return pair

    def measure(
        self,
        pair: "Pair",
        schedule: "Schedule",
        path: Path | None,
        source: "Source | None" = None,
    ) -> Measured:
        """Measure what is not in the file yet. Seeded answers of drafts are compared, too."""
        from dflash_mlx import bench as engine

        with engine.Results(engine.facts_of(pair, schedule), path) as results:
            finished = self.answer_all(pair, schedule, results, costs=source is None)
        records = results.of(schedule, self.questions)
        samples = source is not None and schedule.accept == "match"
        if source is not None:
            records = source.named(records)
        by_key = {record.key: record for record in records}
        differences = [
            found
            if found.key.temperature
            else engine.with_gap(found, pair, self.questions, by_key, schedule)
            for found in engine.find_differences(records, samples=samples)
        ]
        rows = engine.summarise(records, samples=samples)
        return Measured(source, results, schedule, records, rows, differences, finished)

    def answer_all(
        self, pair: "Pair", schedule: "Schedule", results: "Results", *, costs: bool
    ) -> bool:
        """Generate the answers that are missing, then time passes by width; False after Ctrl-C."""
        from dflash_mlx import bench as engine

        out = self.out
        total = len(schedule.keys(self.questions))
        done = len(results.of(schedule, self.questions))
        with Interrupt() as interrupt, progress_bar(out) as bar:
            task = bar.add_task("measuring", total=total, completed=done, note="warming up")
            answers = engine.run(pair, self.questions, schedule, results.records, interrupt.check)
            try:
                for record in answers:
                    results.keep(record)
                    done += 1
                    note = f"{record.task} · {record.key.mode} at {record.key.temperature:g}"
                    bar.update(task, completed=done, note=out.ascii_fallback(note))
                    part, before = (PROGRESS_LINES * count // total for count in (done, done - 1))
                    if part > before and not (out.stderr_live or out.quiet):
                        out.info(f"{done:,} of {total:,} answers")
                if costs and results.curve is None:
                    prompts = [t.prompt_tokens for r in results.records.values() for t in r.turns]
                    depth = sorted(prompts)[len(prompts) // 2]
                    results.keep_curve(engine.measure(pair, depth, interrupt.check))
            except KeyboardInterrupt:
                return False
        return True


def progress_bar(out: Output) -> "Progress":
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}", style="dim"),
        progress.BarColumn(24, style="dim", complete_style="accent"),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(compact=True),
        progress.TextColumn("{task.fields[note]}", style="dim"),
        console=out.console,
        transient=True,
        disable=not out.stderr_live,
    )


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
        if name != BUNDLED:
            hint = (
                "use bundled, or --prompts FILE; examples/bench/papers.py in the clone makes such "
                "a file of gsm8k, humaneval, mt-bench and the papers' other suites"
            )
            raise UsageError(f"there is no suite '{name}'.", hint=hint)
        if suites.count(name) > 1:
            raise UsageError(f"the suite '{name}' was given twice.", hint="give it once")
    parts: list[list[Question]] = []
    if suites or prompts is None:
        parts.append(engine.bundled_questions())
    if prompts is not None:
        parts.append(engine.read_questions(prompts, prompts.name))
    return [question for part in parts for question in part[: limit or None]]
