"""`dflash bench`: the modes of the engine held against each other on many prompts.

Knows flags, files and exit codes; what is measured is in `dflash_mlx.bench`.

    3    --check found an answer that is not plain decoding's
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
from ..modes import settle_draft
from ..options import ModelOptions, PromptOptions, ScreenOptions, grouped, option
from ..output import Output
from ..terminal.interrupt import Interrupt
from ..terminal.wait import Wait
from ..thinking import settle
from .report import bench_json, show_report
from .view import BenchView

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.bench import Question, Results, Schedule

LIMIT, REPEATS, MAX_TOKENS = 8, 2, 256
DIFFERENT = 3


@grouped
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
    models: ModelOptions,
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
    ] = LIMIT,
    max_tokens: Annotated[
        int, option("--max-tokens", min=1, metavar="N", help="Longest answer.")
    ] = MAX_TOKENS,
    repeats: Annotated[
        int, option("--repeats", min=1, metavar="N", help="Answers to every prompt by every mode.")
    ] = REPEATS,
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
    results: Annotated[
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
    screen: ScreenOptions,
) -> None:
    """Measure speed and sameness of the modes on many prompts.

    Every prompt is answered by each mode in turn. The report goes to stdout, the rest to stderr.
    """
    out = Output(quiet=screen.quiet, plain=screen.plain)
    models = settle_draft(ctx, models)
    prepare_libraries(offline=models.offline)
    from dflash_mlx import bench as engine

    offered = ["baseline"] if models.no_draft else engine.offered()
    if not modes and models.accept != "match" and "ddtree" in offered:
        offered.remove("ddtree")
        out.warn(f"ddtree is left out: the rule {models.accept} judges chains")
    schedule = engine.Schedule(
        modes=engine.parse_modes(modes or ",".join(offered)),
        temperatures=engine.parse_temperatures(temps),
        repeats=repeats,
        max_tokens=max_tokens,
        seed=seed,
        block_size=models.block_size,
        accept=models.accept,
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
    with Wait(out, "reading the prompts"):
        questions = gather(suites or [], prompts, limit)
    if not json and not out.quiet and (note := bundled_note(models)):
        out.tell(note, "dim")
    pair, _ = load_pair(models, out)
    out.warn(*kernel_warnings(pair.target.kernels))
    asked = settle(ctx, PromptOptions(think=think, effort=effort), pair.target.template, out)
    off = asked.think is None and asked.effort is None and pair.target.template.think_switch
    think = False if off else asked.think
    schedule = replace(schedule, think=think, effort=asked.effort)
    engine.check(pair, schedule, questions)
    with engine.Results(engine.facts_of(pair, schedule, models.draft_bits), results) as held:
        finished = measure(pair, schedule, questions, held, out)
        records = held.of(schedule, questions)
        found = [
            engine.with_gap(one, pair, questions, held.records, schedule)
            for one in engine.find_differences(records)
        ]
    rows = engine.summarise(records)
    if json:
        document = bench_json(held, schedule, records, rows, found, finished)
        out.write(jsonlib.dumps(document, ensure_ascii=out.answers) + "\n")
    elif records:
        show_report(held, schedule, questions, rows, found, out, pair.target.tokenizer)
    if plot is not None and rows:
        for file in engine.draw(plot, rows, held.curve, caption(held)):
            out.note(f"drawn: {file}")
    if not finished:
        more = "the same command goes on from here" if results else "--out FILE would have kept it"
        out.tell(f"stopped after {len(records):,} answers; {more}")
        raise typer.Exit(130)
    if check and found:
        raise typer.Exit(DIFFERENT)


def gather(suites: list[str], prompts: Path | None, limit: int) -> list["Question"]:
    """All questions; UsageError for a suite that is none, DFlashError for what cannot be read."""
    from dflash_mlx import bench as engine

    for name in suites:
        if name not in engine.suite_names():
            known = ", ".join(engine.suite_names())
            raise UsageError(f"there is no suite '{name}'.", hint=f"use {known}, or --prompts FILE")
        if suites.count(name) > 1:
            raise UsageError(f"the suite '{name}' was given twice.", hint="give it once")
    found: list[Question] = []
    for name in suites or ([] if prompts else ["bundled"]):
        found += engine.questions_of(name, limit)
    if prompts is not None:
        own = engine.read_questions(prompts, prompts.name)
        found += own[: limit or len(own)]
    return found


def measure(
    pair: "Pair", schedule: "Schedule", questions: list["Question"], held: "Results", out: Output
) -> bool:
    """Do what is not done yet; False when Ctrl-C came."""
    from dflash_mlx import bench as engine

    total = len(schedule.keys(questions))
    with Interrupt() as interrupt, BenchView(out, total) as view:
        try:
            view.show(len(held.of(schedule, questions)))
            for record in engine.run(pair, questions, schedule, held.records, interrupt.check):
                held.keep(record)
                view.show(len(held.of(schedule, questions)), record)
            if held.curve is None:
                depths = [turn.prompt_tokens for r in held.records.values() for turn in r.turns]
                depth = sorted(depths)[len(depths) // 2]
                held.keep_curve(engine.measure(pair, depth, interrupt.check))
        except KeyboardInterrupt:
            return False
    return True


def caption(held: "Results") -> str:
    """What a picture holds for."""
    pair, machine, versions = (held.facts[part] for part in ("pair", "machine", "versions"))
    return " · ".join(
        (
            f"{pair['target']} ({pair['dtype']})",
            f"{machine['chip']}, {machine['cores']} cores",
            f"mlx {versions['mlx']}",
            f"dflash {versions['dflash']}",
        )
    )
