"""`dflash bench`: compares the engine's modes on many prompts.

Knows flags, files and exit codes; `dflash_mlx.bench` measures.

    3    --check found an answer that differs from plain decoding
"""

import json as jsonlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_mlx.errors import UsageError
from dflash_mlx.types import Effort

from ..kernel_notes import kernel_warnings
from ..loading import bundled_note, find_pair, load_pair, prepare_libraries
from ..model_names import with_known_target
from ..modes import resolve_draft
from ..option_sources import option_source
from ..options import DisplayOptions, ModelOptions, PromptOptions, option, option_groups
from ..terminal.output import Output
from ..terminal.spinner import Spinner
from ..thinking import resolve_thinking
from .report import (
    ReportPrinter,
    bench_json,
    drafts_json,
    draw_pictures,
    measure_sources,
    options_of_target,
    run_schedule,
    show_drafts,
    show_report,
)

if TYPE_CHECKING:
    from dflash_mlx.bench import Question
    from dflash_mlx.ledger.forecast import Forecast
    from dflash_mlx.ledger.published import Published


# `dflash bench --forecast CHIP`

CONTEXTS = (1024, 8192)
COLUMNS = (
    ("pair", "left"),
    ("context", "right"),
    ("plain tok/s", "right"),
    ("dflash tok/s", "right"),
    ("speedup", "right"),
    ("rows", "right"),
)
CAVEAT = (
    "A forecast from counted bytes, products and dispatches with MLX's own kernels. Nobody "
    "measured it, and parts of what it knows of chips are estimates (dflash_mlx/ledger/chips.toml)."
)


def show_forecast(
    chip_name: str, tokens: float, model_options: ModelOptions, out: Output, *, json: bool
) -> None:
    """Print the table, or one JSON object; UsageError for an unknown chip or no drafter."""
    from dflash_mlx.hub.bits import chosen_bits
    from dflash_mlx.kernels.dispatch import Kernels
    from dflash_mlx.ledger.forecast import chip_named, forecast
    from dflash_mlx.ledger.passes import TracedPair

    chip = chip_named(chip_name)
    found: list[tuple[str, Forecast]] = []
    for published in pairs(model_options, out):
        bits = chosen_bits(model_options.draft_bits, target_quantised=published.mode != "none")
        with Spinner(out, f"counting {published.name}"):
            pair = TracedPair(published, Kernels(), bits)
            found += [(published.name, one) for one in forecast(pair, chip, CONTEXTS, tokens)]
    if json:
        rows = [{"pair": name, **asdict(one)} for name, one in found]
        document = {"forecast": chip.name, "measured": False, "tau": tokens, "rows": rows}
        out.write(jsonlib.dumps({**document, "caveat": CAVEAT}) + "\n")
        return
    printer = ReportPrinter(out)
    printer.line(f"forecast for {chip.name} · {tokens:g} tokens a whole block", "bold")
    printer.line("")
    printer.table(COLUMNS, [cells(name, one) for name, one in found])
    printer.line("")
    printer.line(CAVEAT, "dim")


def cells(name: str, one: "Forecast") -> tuple[str, ...]:
    """A row of the table."""
    rates = f"{one.plain:.0f}", f"{one.drafted:.0f}", f"{one.drafted / one.plain:.2f}×"
    return (name, f"{one.depth:,}", *rates, str(one.rows))


def pairs(model_options: ModelOptions, out: Output) -> Iterator["Published"]:
    """The pair that was named, or the published ones."""
    from dflash_mlx.ledger.published import PAIRS, of_folders

    if model_options.no_draft:
        raise UsageError("a forecast is of a target and a drafter.", hint="leave --no-draft out")
    if model_options.model is None and model_options.draft is None:
        yield from PAIRS
        return
    label, target, draft = find_pair(model_options, out)
    assert draft is not None
    yield of_folders(label, target, draft)


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
    drafts: Annotated[
        str | None,
        option(
            "--drafts",
            metavar="A,B",
            help="Sources of drafts in place of modes: dflash, dflash:ID, eagle3:ID, eagle3-60:ID "
            "(trees), model:ID, lookup, none.",
        ),
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

    With --drafts one source of drafts runs after another, in chains of its own length, each in turn
    with plain decoding: a ratio is from the same minutes, the rates of two sources are not. Answers
    above temperature 0 are compared, too; --out writes a file for each source.
    """
    out = Output(quiet=display.quiet, plain=display.plain)
    model_options = with_known_target(resolve_draft(ctx, model_options), out)
    if drafts is not None:
        model_options = options_of_target(ctx, model_options, modes, forecast)
    prepare_libraries(offline=model_options.offline)
    if forecast is not None:
        show_forecast(forecast, tau, model_options, out, json=json)
        return
    from dflash_mlx import bench as engine

    sources = () if drafts is None else engine.parse_sources(drafts)
    names = ["baseline"] if model_options.no_draft else engine.default_modes()
    if any(not source.no_draft for source in sources):
        names = ["baseline", "dflash"]
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
    asked = option_source(ctx, "lookup") == "COMMANDLINE"
    if asked and not any(each.mode == "auto" for each in schedule.modes):
        raise UsageError("--lookup says nothing to these modes.", hint="add --modes auto")
    samples = bool(sources) and schedule.accept == "match"
    if check and not (
        schedule.has_baseline
        and (samples or 0 in schedule.temperatures)
        and len(schedule.modes) > 1
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
    if sources:
        found = measure_sources(
            sources, pair, schedule, questions, model_options, results_path, out
        )
        results, finished = found[0].results, found[-1].finished
        records = [record for each in found for record in each.records]
        differences = [one for each in found for one in each.differences]
        rows = [row for each in found for row in each.rows]
    else:
        engine.check(pair, schedule, questions)
        with engine.Results(engine.facts_of(pair, schedule), results_path) as results:
            finished = run_schedule(pair, schedule, questions, results, out)
            records = results.of(schedule, questions)
            differences = [
                engine.with_gap(difference, pair, questions, results.records, schedule)
                for difference in engine.find_differences(records)
            ]
        found, rows = [], engine.summarise(records)
    if json:
        document = (
            drafts_json(found)
            if found
            else bench_json(results, schedule, records, rows, differences, finished)
        )
        out.write(jsonlib.dumps(document, ensure_ascii=out.stdout_is_tty) + "\n")
    elif found and records:
        show_drafts(found, questions, out, pair.target.tokenizer)
    elif records:
        show_report(results, schedule, questions, rows, differences, out, pair.target.tokenizer)
    if plot is not None and rows:
        draw_pictures(plot, rows, results, out)
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
