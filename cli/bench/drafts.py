"""`dflash bench --drafts A,B`: sources of drafts held against each other, one after another.

The target is loaded once. Each source is loaded and checked before the first answer, and again for
its own part of the run.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dflash_mlx.errors import UsageError

from ..loading import add_drafter
from ..option_sources import option_source
from ..options import ModelOptions
from ..terminal.output import Output
from .report import NO_VALUE, ReportPrinter, bench_json, header_lines, output_lines
from .run import run_schedule

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.bench import Difference, Question, Record, Results, Row, Schedule, Source

COLUMNS = (
    ("task", "left"),
    ("drafts", "left"),
    ("tok/s", "right"),
    ("plain tok/s", "right"),
    ("ratio", "right"),
    ("quartiles", "right"),
    ("τ", "right"),
    ("accept", "right"),
    ("same", "right"),
)
ORDER = "order    one source after another, each in turn with plain decoding, which its ratio is to"
NOT_COMPARED = "output   not compared: that needs drafts, and temperature 0 or --accept match"


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one source; its records go by its label."""

    source: "Source"
    results: "Results"
    schedule: "Schedule"
    records: list["Record"]
    rows: list["Row"]
    differences: list["Difference"]
    finished: bool


def options_of_target(
    ctx: typer.Context, model_options: ModelOptions, modes: str | None, forecast: str | None
) -> ModelOptions:
    """The options that load the target alone; UsageError for flags that --drafts contradicts."""
    given = {
        "--draft": option_source(ctx, "draft") == "COMMANDLINE",
        "--no-draft": option_source(ctx, "no_draft") == "COMMANDLINE",
        "--lookup": option_source(ctx, "lookup") == "COMMANDLINE",
        "--modes": modes is not None,
        "--forecast": forecast is not None,
    }
    for flag in (flag for flag, there in given.items() if there):
        raise UsageError(
            f"--drafts and {flag} exclude each other.",
            hint="leave one of them out; --drafts dflash:ID,model:ID names models",
        )
    return replace(model_options, draft=None, no_draft=True, lookup=False)


def load_source(pair: "Pair", source: "Source", model_options: ModelOptions, out: Output) -> "Pair":
    """The same target with what this source drafts with; DFlashError where that is no such."""
    options = replace(model_options, draft=source.draft, no_draft=source.no_draft)
    if source.kind in ("lookup", "none"):
        options = replace(options, draft_bits=None)
    pair = add_drafter(pair, options, out)
    source.check(pair)
    return pair


def measure_sources(
    sources: tuple["Source", ...],
    pair: "Pair",
    schedule: "Schedule",
    questions: list["Question"],
    model_options: ModelOptions,
    path: Path | None,
    out: Output,
) -> list[Measured]:
    """Check all sources, then measure one after another until Ctrl-C."""
    from dflash_mlx import bench as engine

    for source in sources:
        pair = load_source(pair, source, model_options, out)
        engine.check(pair, source.schedule(schedule), questions)
    found = list[Measured]()
    samples = schedule.accept == "match"
    for source in sources:
        pair, part = load_source(pair, source, model_options, out), source.schedule(schedule)
        if not out.quiet:
            out.info(f"drafts: {source.label}", "dim")
        with engine.Results(engine.facts_of(pair, part), source.results_file(path)) as results:
            finished = run_schedule(pair, part, questions, results, out, costs=False)
            records = source.named(results.of(part, questions))
        by_key = {record.key: record for record in records}
        differences = [
            one if one.key.temperature else engine.with_gap(one, pair, questions, by_key, part)
            for one in engine.find_differences(records, samples=samples)
        ]
        rows = engine.summarise(records, samples=samples)
        found.append(Measured(source, results, part, records, rows, differences, finished))
        if not finished:
            break
    return found


def drafts_json(found: list[Measured]) -> dict[str, Any]:
    """The object that `--json` prints: that of a run without --drafts, for each source."""
    return {
        "complete": all(each.finished for each in found),
        "drafts": [
            {
                "source": each.source.label,
                **bench_json(
                    each.results,
                    each.schedule,
                    each.records,
                    each.rows,
                    each.differences,
                    each.finished,
                ),
            }
            for each in found
        ],
    }


def show_drafts(
    found: list[Measured], questions: list["Question"], out: Output, tokenizer: Any
) -> None:
    """Print the tables on stdout; into a file or a pipe they are Markdown."""
    printer, schedule = ReportPrinter(out), found[-1].schedule
    heads = [header_lines(each.results, each.schedule, questions) for each in found]
    for line in (heads[0][0], *(head[1] for head in heads), heads[0][2], ORDER):
        printer.line(line, "dim")
    for temperature in schedule.temperatures:
        printer.line("")
        printer.line(f"temperature {temperature:g}", "bold")
        cells = table_cells(found, temperature)
        if out.stdout_is_tty:
            printer.table(COLUMNS, cells)
        else:
            for line in ("", *markdown_lines(cells)):
                printer.line(line)
    printer.line("")
    rows = [row for each in found for row in each.rows]
    compared = any(row.compared for row in rows)
    differences = [one for each in found for one in each.differences]
    what = "answers" if schedule.accept == "match" else "greedy answers"
    lines = output_lines(rows, differences, tokenizer, what) if compared else [NOT_COMPARED]
    for line in lines:
        printer.line(line)


def table_cells(found: list[Measured], temperature: float) -> list[tuple[str, ...]]:
    """A row for each task and source, tasks in the order of the run."""
    rows = [(each, row) for each in found for row in each.rows if row.temperature == temperature]
    plain = {(e.source, r.suite, r.task): r for e, r in rows if r.mode == "baseline"}
    tasks = list(dict.fromkeys((row.suite, row.task) for _, row in rows))
    return [
        drafts_cells(each.source, row, plain.get((each.source, *task)))
        for task in tasks
        for each, row in rows
        if (row.suite, row.task) == task and (row.mode != "baseline") != each.source.no_draft
    ]


def drafts_cells(source: "Source", row: "Row", plain: "Row | None") -> tuple[str, ...]:
    """A row of the table; plain decoding, as a source, has the ratio 1."""
    rates = [None if r is None or r.decode is None else r.decode.median for r in (row, plain)]
    ratio = row.speedup
    return (
        row.task,
        source.label,
        *(NO_VALUE if rate is None else f"{rate:,.1f}" for rate in rates),
        f"{1 if ratio is None else ratio.median:.2f}×" if ratio or source.no_draft else NO_VALUE,
        "" if ratio is None else f"{ratio.low:.2f}–{ratio.high:.2f}",
        NO_VALUE if row.tau is None else f"{row.tau.median:.2f}",
        NO_VALUE if row.acceptance_rate is None else f"{row.acceptance_rate:.1%}",
        f"{row.identical}/{row.compared}" if row.compared else "",
    )


def markdown_lines(rows: list[tuple[str, ...]]) -> list[str]:
    """The table in Markdown."""
    marks = {"left": "---", "right": "---:"}
    lines = [[title for title, _ in COLUMNS], [marks[justify] for _, justify in COLUMNS]]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]
