"""Measures the modes or the drafters of a benchmark, and keeps the best drafter."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich import progress

from dflash_mlx import bench as engine
from dflash_mlx.bench import Question, Results, Schedule, Source
from dflash_mlx.bench.schedule import MODES
from dflash_mlx.errors import UsageError
from dflash_mlx.hub.choices import keep
from dflash_mlx.pair import Pair

from ..backend.local import LocalBackend
from ..loading import add_drafter
from ..options import BUNDLED, ModelOptions, Options
from ..resolve import with_known_thinking
from ..sources import ValueSource
from ..terminal.output import Output
from ..terminal.signals import Interrupt
from .options import BenchOptions
from .report import Measured, best_choice

PROGRESS_LINES = 10  # lines printed for a whole run without a live terminal


def schedule_of(
    options: Options, own: BenchOptions, sources: Sequence[Source], out: Output
) -> Schedule:
    """The settings of the run; UsageError for flags that need other modes or temperatures."""
    no_draft = options.model.no_draft
    names = ["baseline"] if no_draft else list(MODES)
    if any(not source.no_draft for source in sources):
        names = ["baseline", "dflash"]
    accept = options.generation.accept or "match"  # answers have seeds
    if not own.modes and accept != "match" and "ddtree" in names:
        names.remove("ddtree")
        out.warn(f"ddtree is left out: the rule {accept} judges chains")
    schedule = Schedule(
        modes=engine.parse_modes(own.modes or ",".join(names)),
        temperatures=engine.parse_temperatures(own.temps),
        repeats=own.repeats,
        max_tokens=own.max_tokens,
        seed=own.seed,
        block_size=options.generation.block_size,
        accept=accept,
        cooldown=own.cooldown,
    )
    modes = {variant.mode for variant in schedule.modes}
    if options.source("lookup") is ValueSource.FLAG and "auto" not in modes:
        hint = "remove --no-draft" if no_draft and not own.modes else "add auto to --modes"
        raise UsageError("--lookup has no effect in these modes.", hint=hint)
    compares = 0 in schedule.temperatures or (sources and accept == "match")
    if own.check and not (schedule.has_baseline and compares and len(schedule.modes) > 1):
        raise UsageError(
            "--check needs the mode baseline, another one, and temperature 0.",
            hint="give --modes baseline,dflash --temps 0, or leave --check out",
        )
    return schedule


def collect_questions(suites: list[str], prompts: Path | None, limit: int) -> list[Question]:
    """All questions; UsageError for an unknown suite, DFlashError for an unreadable file."""
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


def with_thinking(schedule: Schedule, options: Options, pair: Pair, out: Output) -> Schedule:
    """The schedule with thinking as the options set it; by default off if the template can."""
    info = LocalBackend(pair).info
    out.warn(*info.warnings)
    generation = with_known_thinking(options, info.thinking, out, raw=False).generation
    think, effort = generation.think, generation.reasoning_effort
    if think is None and effort is None and info.thinking.think_switch:
        think = False
    return replace(schedule, think=think, effort=effort)


def fitting(pair: Pair, out: Output) -> tuple[Source, ...]:
    """All sources that fit the target; a note names the known drafters that are missing here."""
    if missing := engine.missing_drafters(pair):
        out.warn(
            f"not downloaded, so not compared: {', '.join(missing)} "
            f"(`dflash models pull {pair.target_name} -d ID` downloads one)"
        )
    return engine.fitting_sources(pair)


def keep_choice(measured: list[Measured], pair: Pair, out: Output) -> None:
    """Keep the best source as the target's drafter on this machine; not of the bundled pair."""
    choice = best_choice(measured)
    if choice is None or pair.target_name == BUNDLED:
        return
    if keep(pair.target_name, pair.target.checkpoint.config, choice):
        drafter = f"the drafter {choice.draft}" if choice.draft else "plain decoding"
        out.warn(f"from now on '{pair.target_name}' has {drafter} here; -d names another")


@dataclass(frozen=True, slots=True)
class Run:
    """What the parts of a benchmark share: the modes, or each source of drafts, are a part.

    models: of the target and its options. path: the file of the results.
    """

    questions: list[Question]
    models: ModelOptions
    path: Path | None
    out: Output

    def measure_all(
        self, pair: Pair, schedule: Schedule, sources: Sequence[Source]
    ) -> list[Measured]:
        """Measure the modes, or one source after another, until Ctrl-C. All are checked before."""
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

    def load(self, pair: Pair, source: Source) -> Pair:
        """The target with a source's drafter; DFlashError if the drafter is another kind."""
        options = replace(self.models, draft=source.draft, no_draft=source.no_draft)
        if source.kind in ("lookup", "none"):
            options = replace(options, draft_bits=None)
        pair = add_drafter(pair, options, self.out)
        source.check(pair)
        return pair

    def measure(
        self,
        pair: Pair,
        schedule: Schedule,
        path: Path | None,
        source: Source | None = None,
    ) -> Measured:
        """Measure what is not in the file yet. Seeded answers of drafts are compared, too."""
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

    def answer_all(self, pair: Pair, schedule: Schedule, results: Results, *, costs: bool) -> bool:
        """Generate the answers that are missing, then time passes by width; False after Ctrl-C."""
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


def progress_bar(out: Output) -> progress.Progress:
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
