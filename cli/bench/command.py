"""`dflash bench`: compares the engine's modes on many prompts.

Knows flags, files and exit codes; `dflash_mlx.bench` measures.

    3    --check found an answer that differs from plain decoding
"""

import json as jsonlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.errors import UsageError
from dflash_mlx.types import Effort

from ..kernel_notes import kernel_warnings
from ..loading import bundled_note, load_pair, prepare_libraries
from ..model_names import with_known_target
from ..modes import resolve_draft
from ..options import DisplayOptions, ModelOptions, PromptOptions, option, option_groups
from ..terminal.interrupt import Interrupt
from ..terminal.output import Output
from ..terminal.spinner import Spinner
from ..thinking import resolve_thinking
from .forecast import show_forecast
from .progress import BenchProgress
from .report import bench_json, show_report

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.bench import Question, Results, Schedule

DEFAULT_LIMIT, DEFAULT_REPEATS, DEFAULT_MAX_TOKENS = 8, 2, 256
EXIT_DIFFERENT = 3


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
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", metavar="FILE", help="JSONL: strings, prompt, messages or turns a line."
        ),
    ] = None,
    model_options: ModelOptions,
    modes: Annotated[
        str | None,
        option("--modes", metavar="A,B", help="Modes, also with a width: dflash:8. [all]"),
    ] = None,
    temps: Annotated[
        str, option("--temps", metavar="T,T", help="Temperatures, with commas between.")
    ] = "0,1",
    limit: Annotated[
        int,
        option(
            "--limit",
            "-n",
            min=0,
            metavar="N",
            help="Prompts of a suite; 0: as many as the papers ask, or all.",
        ),
    ] = DEFAULT_LIMIT,
    max_tokens: Annotated[
        int, option("--max-tokens", min=1, metavar="N", help="Longest answer.")
    ] = DEFAULT_MAX_TOKENS,
    repeats: Annotated[
        int, option("--repeats", min=1, metavar="N", help="Answers to every prompt by every mode.")
    ] = DEFAULT_REPEATS,
    seed: Annotated[
        int, option("--seed", min=0, metavar="N", help="Of answers above temperature 0.")
    ] = 0,
    think: Annotated[
        bool | None,
        option("--think/--no-think", help="Thinking in the chat template. [off, if it can be]"),
    ] = None,
    effort: Annotated[
        Effort | None,
        option("--effort", metavar="LEVEL", help="How hard to think, where the template knows it."),
    ] = None,
    cooldown: Annotated[
        float, option("--cooldown", min=0, metavar="S", help="Seconds of rest before an answer.")
    ] = 0.0,
    json: Annotated[bool, option("--json", help="Print one JSON object.")] = False,
    results_path: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="JSONL of results; goes on after a stop."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="X.png", help="Draw X-speedup.png, X-accept.png and X-cost.png."
        ),
    ] = None,
    check: Annotated[
        bool, option("--check", help="Exit with 3 when greedy answers differ from the baseline's.")
    ] = False,
    forecast: Annotated[
        str | None,
        typer.Option(
            "--forecast",
            metavar="CHIP",
            help="Measure nothing: what the pair, or published ones, would do on M1, M1 Max, "
            "M2 Pro, M4, M4 Max or M5 Max.",
        ),
    ] = None,
    tau: Annotated[
        float,
        typer.Option("--tau", metavar="N", help="Tokens a whole block commits, for --forecast."),
    ] = 5.0,
    display: DisplayOptions,
) -> None:
    """Measure speed and sameness of the modes on many prompts.

    Every prompt is answered by each mode in turn. The report goes to stdout, the rest to stderr.
    """
    out = Output(quiet=display.quiet, plain=display.plain)
    model_options = with_known_target(resolve_draft(ctx, model_options), out)
    prepare_libraries(offline=model_options.offline)
    if forecast is not None:
        show_forecast(forecast, tau, model_options, out, json=json)
        return
    from dflash_mlx import bench as engine

    names = ["baseline"] if model_options.no_draft else engine.default_modes()
    if not modes and model_options.accept != "match" and "ddtree" in names:
        names.remove("ddtree")
        out.warn(f"ddtree is left out: the rule {model_options.accept} judges chains")
    schedule = engine.Schedule(
        modes=engine.parse_modes(modes or ",".join(names)),
        temperatures=engine.parse_temperatures(temps),
        repeats=repeats,
        max_tokens=max_tokens,
        seed=seed,
        block_size=model_options.block_size,
        accept=model_options.accept,
        cooldown=cooldown,
    )
    if check and not (
        schedule.has_baseline and 0 in schedule.temperatures and len(schedule.modes) > 1
    ):
        raise UsageError(
            "--check needs the mode baseline, another one, and temperature 0.",
            hint="give --modes baseline,dflash --temps 0, or leave --check out",
        )
    if plot is not None:
        engine.check_plotting(plot)
    with Spinner(out, "reading the prompts"):
        questions = collect_questions(suites or [], prompts, limit)
    if not json and not out.quiet and (note := bundled_note(model_options)):
        out.info(note, "dim")
    pair, _ = load_pair(model_options, out)
    out.warn(*kernel_warnings(pair.target.kernels))
    prompt_options = resolve_thinking(
        ctx, PromptOptions(think=think, effort=effort), pair.target.template, out
    )
    switch_off = (
        prompt_options.think is None
        and prompt_options.effort is None
        and pair.target.template.think_switch
    )
    think = False if switch_off else prompt_options.think
    schedule = replace(schedule, think=think, effort=prompt_options.effort)
    engine.check(pair, schedule, questions)
    with engine.Results(engine.facts_of(pair, schedule), results_path) as results:
        finished = run_schedule(pair, schedule, questions, results, out)
        records = results.of(schedule, questions)
        differences = [
            engine.with_gap(difference, pair, questions, results.records, schedule)
            for difference in engine.find_differences(records)
        ]
    rows = engine.summarise(records)
    if json:
        document = bench_json(results, schedule, records, rows, differences, finished)
        out.write(jsonlib.dumps(document, ensure_ascii=out.stdout_is_tty) + "\n")
    elif records:
        show_report(results, schedule, questions, rows, differences, out, pair.target.tokenizer)
    if plot is not None and rows:
        for file in engine.draw(plot, rows, results.curve, plot_caption(results)):
            out.note(f"drawn: {file}")
    if not finished:
        advice = (
            "the same command goes on from here"
            if results_path
            else "--out FILE would have kept it"
        )
        out.info(f"stopped after {len(records):,} answers; {advice}")
        raise typer.Exit(130)
    if check and differences:
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


def run_schedule(
    pair: "Pair", schedule: "Schedule", questions: list["Question"], results: "Results", out: Output
) -> bool:
    """Answer what is not answered yet; False after Ctrl-C."""
    from dflash_mlx import bench as engine

    total = len(schedule.keys(questions))
    with Interrupt() as interrupt, BenchProgress(out, total) as progress:
        try:
            progress.show(len(results.of(schedule, questions)))
            for record in engine.run(pair, questions, schedule, results.records, interrupt.check):
                results.keep(record)
                progress.show(len(results.of(schedule, questions)), record)
            if results.curve is None:
                depths = [turn.prompt_tokens for r in results.records.values() for turn in r.turns]
                depth = sorted(depths)[len(depths) // 2]
                results.keep_curve(engine.measure(pair, depth, interrupt.check))
        except KeyboardInterrupt:
            return False
    return True


def plot_caption(results: "Results") -> str:
    """The models, machine and versions of a plot."""
    pair, machine, versions = (results.facts[part] for part in ("pair", "machine", "versions"))
    return " · ".join(
        (
            f"{pair['target']} ({pair['dtype']})",
            f"{machine['chip']}, {machine['cores']} cores",
            f"mlx {versions['mlx']}",
            f"dflash {versions['dflash']}",
        )
    )
