"""`dflash bench`: measures the engine's modes on many prompts, with `dflash_mlx.bench`.

3    --check found an answer that differs from plain decoding
"""

from typing import Annotated

import typer

from dflash_mlx.options import GenerationOptions

from ..awake import awake
from ..exclusions import WHEN_RESOLVED, without_excluded
from ..loading import bundled_note, load_pair, prepare_libraries
from ..options import DisplayOptions, Flags, ModelOptions, Options, option_groups
from ..resolve import with_target_id
from ..terminal.output import Output
from .options import BenchOptions

EXIT_DIFFERENT = 3


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
    if own.drafts is not None:
        options = options.changed(draft=None, no_draft=True, lookup=False)
    options = with_target_id(without_excluded(options, WHEN_RESOLVED), out)
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
