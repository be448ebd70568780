"""`dflash bench`: measures the engine's modes on many prompts, with `dflash_mlx.bench`.

3    --check found an answer that differs from plain decoding
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_mlx.options import GenerationOptions

from ..awake import awake
from ..exclusions import WHEN_RESOLVED, without_excluded
from ..loading import bundled_note, load_pair, prepare_libraries
from ..options import DisplayOptions, Flags, ModelOptions, Options, option, option_groups
from ..resolve import with_target_id
from ..terminal.output import Output

EXIT_DIFFERENT = 3


def measurement(*names: str, help: str, **details: Any) -> Any:
    return option(*names, help=help, panel="Measurement", **details)


def file_option(*names: str, help: str, panel: str) -> Any:
    """An option that names a file of one run, so that no variable sets it."""
    return option(*names, metavar="FILE", help=help, panel=panel, variable=False)


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

    from . import measure
    from .report import report_json, show_report

    sources = () if own.drafts is None else engine.parse_sources(own.drafts)
    schedule = measure.schedule_of(options, own, sources, out)
    questions = measure.collect_questions(suites or [], own.prompts, own.limit)
    if not own.json and not out.quiet and (note := bundled_note(models)):
        out.info(note, "dim")
    ctx.with_resource(awake())
    pair, _ = load_pair(models, out)
    schedule = measure.with_thinking(schedule, options, pair, out)
    compares_all = any(source.kind == "all" for source in sources)
    if compares_all:
        sources = measure.fitting(pair, out)
    measured = measure.Run(questions, models, own.results_path, out).measure_all(
        pair, schedule, sources
    )
    if own.json:
        out.write_json(report_json(measured))
    elif any(part.records for part in measured):
        show_report(measured, questions, out, pair.tokenizer)
    if compares_all:
        measure.keep_choice(measured, pair, out)
    if not measured[-1].finished:
        count = sum(len(part.records) for part in measured)
        way = "the same command goes on from here"
        out.info(
            f"stopped after {count:,} answers; "
            f"{way if own.results_path else '--out FILE would have kept it'}"
        )
        raise typer.Exit(130)
    if own.check and any(part.differences for part in measured):
        raise typer.Exit(EXIT_DIFFERENT)
