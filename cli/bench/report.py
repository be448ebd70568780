"""The report of a benchmark: tables for a person, or one JSON object."""

import os
import sys
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..loading import add_drafter
from ..options import ModelOptions
from ..terminal.output import THEME, Output, format_bytes, is_utf8, stdout_size, strip_control
from ..terminal.render import COLUMN_GAP, position_rows, table_lines
from ..terminal.signals import Interrupt

if TYPE_CHECKING:
    from rich.text import Text

    from dflash_mlx import Pair
    from dflash_mlx.bench import Difference, Question, Record, Results, Row, Schedule, Source
    from dflash_mlx.hub.choices import Choice


DEFAULT_WIDTH = 100  # columns if stdout is not a terminal
MAX_DIFFERENCES = 5  # listed one by one
NO_VALUE = "–"


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of all modes, or of one source of drafts. finished: False after Ctrl-C."""

    source: "Source | None"
    results: "Results"
    schedule: "Schedule"
    records: list["Record"]
    rows: list["Row"]
    differences: list["Difference"]
    finished: bool

    @property
    def label(self) -> str:
        return "" if self.source is None else self.source.label


def bench_json(measured: Measured) -> dict[str, Any]:
    """The object that `--json` prints: facts, rows, and every answer with its tokens."""
    results = measured.results
    schedule = measured.schedule
    schedule_settings = {
        "modes": [variant.label for variant in schedule.modes],
        "temperatures": list(schedule.temperatures),
        "repeats": schedule.repeats,
    }
    return {
        **results.facts,
        "settings": {**results.facts["settings"], **schedule_settings},
        "complete": measured.finished,
        "rows": [row.data() for row in measured.rows],
        "differences": [difference.data() for difference in measured.differences],
        "costs": None if results.curve is None else results.curve.data(),
        "answers": [record.data() for record in measured.records],
    }


def show_report(
    measured: Measured, questions: list["Question"], out: Output, tokenizer: Any
) -> None:
    results = measured.results
    schedule = measured.schedule
    rows = measured.rows
    printer = ReportPrinter(out)
    for line in header_lines(results, schedule, questions):
        printer.line(line, "dim")
    for temperature in schedule.temperatures:
        printer.line("")
        printer.line(f"temperature {temperature:g}", "bold")
        printer.table(
            SPEED_COLUMNS, [speed_cells(r, out) for r in rows if r.temperature == temperature]
        )
    overall_rows = [row for row in rows if row.suite == "all"] or rows
    printer.line("")
    printer.table(COST_COLUMNS, [cost_cells(row) for row in overall_rows])
    for row in overall_rows:
        if row.temperature == schedule.temperatures[0] and row.by_position:
            printer.line("")
            printer.line(
                f"accept by position · {row.mode} at temperature {row.temperature:g}", "bold"
            )
            for line in position_rows([round(1000 * p) for p in row.by_position], 1000, out):
                printer.line(f"  {line}")
    printer.line("")
    for line in output_lines(rows, measured.differences, tokenizer):
        printer.line(line)


class ReportPrinter:
    """Prints lines and tables on stdout, styled on a terminal."""

    def __init__(self, out: Output):
        from rich.console import Console
        from rich.theme import Theme

        capable = out.stdout_is_tty and os.environ.get("TERM") not in ("dumb", "unknown")
        self._out = out
        self._ascii = out.ascii or (not is_utf8(sys.stdout) and out.stdout_is_tty)
        self._console = Console(
            theme=Theme(THEME),
            width=stdout_size()[0] or DEFAULT_WIDTH,
            force_terminal=capable and not out.ascii,
            color_system="auto" if capable else None,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def text(self, text: str, style: str = "") -> "Text":
        """Text without control characters, limited to what the terminal can encode."""
        from rich.text import Text

        text = self._out.ascii_fallback(strip_control(text))
        if self._out.stdout_is_tty:
            encoding = sys.stdout.encoding or "ascii"
            text = text.encode(encoding, "replace").decode(encoding)
        return Text(text, style)

    def line(self, text: str, style: str = "") -> None:
        self._print(self.text(text, style))

    def table(self, columns: tuple[tuple[str, str], ...], rows: list[tuple[str, ...]]) -> None:
        """Print columns (title and justification) under a rule.

        A first cell that repeats the one above stays empty, if the columns fit.
        """
        names = tuple(title for title, _ in columns)
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        fits_width = sum(widths) + COLUMN_GAP * (len(widths) - 1) <= self._console.width
        cells = []
        previous = ""
        for row in (names, *rows):
            visible = ("", *row[1:]) if fits_width and row[0] == previous else row
            previous = row[0]
            cells.append(
                [(self.text(c), justify) for c, (_, justify) in zip(visible, columns, strict=True)]
            )
        rule = "-" if self._ascii else "─"
        for line in table_lines(self._console, cells, self._console.width, rule):
            line.rstrip()
            self._print(line)

    def _print(self, text: "Text") -> None:
        if self._out.stdout_is_tty:
            self._console.print(text)
        else:
            self._out.write(text.plain + "\n")


SPEED_COLUMNS = (
    ("task", "left"),
    ("mode", "left"),
    ("tok/s", "right"),
    ("speedup", "right"),
    ("quartiles", "right"),
    ("τ", "right"),
    ("accept", "right"),
    ("same", "right"),
)
COST_COLUMNS = (
    ("temp", "left"),
    ("mode", "left"),
    ("prefill tok/s", "right"),
    ("first token ms", "right"),
    ("memory", "right"),
    ("rows a pass", "left"),
)


def speed_cells(row: "Row", out: Output) -> tuple[str, ...]:
    speedup = row.speedup
    return (
        row.task,
        row.mode,
        NO_VALUE if row.decode is None else f"{row.decode.median:,.1f}",
        NO_VALUE if speedup is None else f"{speedup.median:.2f}×",
        "" if speedup is None else f"{speedup.low:.2f}–{speedup.high:.2f}",
        NO_VALUE if row.tau is None else f"{row.tau.median:.2f}",
        NO_VALUE if row.acceptance_rate is None else f"{row.acceptance_rate:.1%}",
        f"{row.identical}/{row.compared}" if row.compared else "",
    )


def cost_cells(row: "Row") -> tuple[str, ...]:
    return (
        f"{row.temperature:g}",
        row.mode,
        NO_VALUE if row.prefill is None else f"{row.prefill.median:,.0f}",
        NO_VALUE if row.first_token is None else f"{1000 * row.first_token.median:,.0f}",
        format_bytes(row.peak_bytes),
        common_widths(row),
    )


def common_widths(row: "Row") -> str:
    """The two most frequent pass widths, with their shares of the passes."""
    total = sum(part.count for part in row.rounds)
    most_common = sorted(row.rounds, key=lambda part: -part.count)[:2]
    return ", ".join(f"{part.rows} ({part.count / total:.0%})" for part in most_common) or NO_VALUE


def header_lines(
    results: "Results", schedule: "Schedule", questions: list["Question"]
) -> list[str]:
    pair, machine, versions = (results.facts[part] for part in ("pair", "machine", "versions"))
    threads = f", threads {machine['blas_threads']}" if machine["blas_threads"] else ""
    blas = f" · {machine['blas']}{threads}" if machine["device"] == "cpu" else ""
    drafter = "no drafter"
    if pair["drafter"]:
        bits = f" ({pair['draft_bits']}-bit)" if pair["draft_bits"] else ""
        block = schedule.block_size or pair["block_size"]
        drafter = f"drafter {pair['drafter']}{bits} · block {block}"
    suites = ", ".join(dict.fromkeys(question.suite for question in questions))
    rest = f" · {schedule.cooldown:g} s rest" if schedule.cooldown else ""
    thinking = {
        True: "thinking on",
        False: "thinking off",
        None: "thinking as the template has it",
    }[schedule.think]
    if schedule.effort:
        thinking = f"effort {schedule.effort}"
    accept = "" if schedule.accept == "match" else f" · accept {schedule.accept}"
    exact = " · exact" if pair["exact"] else ""
    cache = f" · {pair['kv_cache']}" if pair["kv_cache"] else ""
    return [
        f"machine  {machine['chip']} · {machine['cores']} cores · "
        f"{format_bytes(machine['memory'])} · {machine['device']}{blas} · "
        f"mlx {versions['mlx']} · dflash {versions['dflash']}",
        f"pair     {pair['target']} {pair['dtype']} · {drafter}{exact}{cache}",
        f"run      {len(questions):,} prompts of {suites} · "
        f"at most {schedule.max_tokens:,} tokens · warm-up, "
        f"then {schedule.repeats} a mode in turn · medians · seed {schedule.seed} · "
        f"{thinking}{accept}{rest}",
    ]


def output_lines(
    rows: list["Row"],
    differences: list["Difference"],
    tokenizer: Any,
    noun: str = "greedy answers",
) -> list[str]:
    """How many answers are identical to plain decoding's, and the first differences."""
    totals = [row for row in rows if row.suite == "all"] or rows
    total = sum(row.compared for row in totals)
    identical = sum(row.identical for row in totals)
    if not total:
        return ["output   not compared: that needs baseline and temperature 0"]
    lines = [f"output   identical to baseline in {identical:,} of {total:,} {noun}"]
    for difference in differences[:MAX_DIFFERENCES]:
        key = difference.key
        token = token_text(difference.said, tokenizer)
        wanted = token_text(difference.wanted, tokenizer)
        gap = (
            ""
            if difference.gap is None
            else f"; the target's two best logits are {difference.gap:.2g} apart"
        )
        lines.append(
            f"         {key.suite} {key.number} · {key.mode} · token {difference.token:,}: "
            f"{token} for {wanted}{gap}"
        )
    if len(differences) > MAX_DIFFERENCES:
        lines.append(f"         and {len(differences) - MAX_DIFFERENCES:,} more (--json has all)")
    return lines


def token_text(token: int | None, tokenizer: Any) -> str:
    return "the end" if token is None else repr(tokenizer.decode([token]))


# Progress of a benchmark

PROGRESS_LINES = 10  # lines printed for a whole run without a live terminal


class BenchProgress:
    """The progress of a run on stderr; a context manager around the run."""

    def __init__(self, out: Output, total: int):
        from rich import progress

        self._out = out
        self._total = total
        self._last_part = -1
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", style="dim"),
            progress.BarColumn(24, style="dim", complete_style="accent"),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.fields[note]}", style="dim"),
            console=out.console,
            transient=True,
            disable=not out.stderr_live,
        )
        self._task = self._progress.add_task("measuring", total=total, note="warming up")

    def __enter__(self) -> "BenchProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int, record: "Record | None" = None) -> None:
        if record is not None:
            note = f"{record.task} · {record.key.mode} at {record.key.temperature:g}"
            self._progress.update(self._task, note=self._out.ascii_fallback(note))
        self._progress.update(self._task, completed=done)
        part = PROGRESS_LINES * done // max(1, self._total)
        if (
            not self._out.stderr_live
            and not self._out.quiet
            and part > self._last_part
            and record is not None
        ):
            self._out.info(f"{done:,} of {self._total:,} answers")
        self._last_part = max(part, self._last_part)


# A run of a schedule under a progress bar, which Ctrl-C stops


def run_schedule(
    pair: "Pair",
    schedule: "Schedule",
    questions: list["Question"],
    results: "Results",
    out: Output,
    *,
    costs: bool = True,
) -> bool:
    """Generate the answers that are missing, then time passes by width; False after Ctrl-C."""
    from dflash_mlx import bench as engine

    total = len(schedule.keys(questions))
    with Interrupt() as interrupt, BenchProgress(out, total) as progress:
        try:
            progress.show(len(results.of(schedule, questions)))
            for record in engine.run(pair, questions, schedule, results.records, interrupt.check):
                results.keep(record)
                progress.show(len(results.of(schedule, questions)), record)
            if costs and results.curve is None:
                depths = [turn.prompt_tokens for r in results.records.values() for turn in r.turns]
                depth = sorted(depths)[len(depths) // 2]
                results.keep_curve(engine.measure(pair, depth, interrupt.check))
        except KeyboardInterrupt:
            return False
    return True


# `dflash bench --drafts A,B`

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


def load_source(pair: "Pair", source: "Source", model_options: ModelOptions, out: Output) -> "Pair":
    """The pair of the target and a source's drafter; DFlashError if the drafter is another kind."""
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
    measured: list[Measured] = []
    samples = schedule.accept == "match"
    for source in sources:
        pair = load_source(pair, source, model_options, out)
        part = source.schedule(schedule)
        if not out.quiet:
            out.info(f"drafts: {source.label}", "dim")
        with engine.Results(engine.facts_of(pair, part), source.results_file(path)) as results:
            finished = run_schedule(pair, part, questions, results, out, costs=False)
            records = source.named(results.of(part, questions))
        by_key = {record.key: record for record in records}
        differences = [
            difference
            if difference.key.temperature
            else engine.with_gap(difference, pair, questions, by_key, part)
            for difference in engine.find_differences(records, samples=samples)
        ]
        rows = engine.summarise(records, samples=samples)
        measured.append(Measured(source, results, part, records, rows, differences, finished))
        if not finished:
            break
    return measured


def best_choice(measured: list[Measured]) -> "Choice | None":
    """The source with the highest speedup over plain decoding; None after Ctrl-C.

    Trees are left out: they are another mode, not another drafter. Of equal ones the first counts.
    """
    from dflash_mlx.hub.choices import Choice

    sources = {part.label: part for part in measured if part.source and part.source.rows is None}
    speedups = {
        label: ratio for label, part in sources.items() if (ratio := speedup_of(part)) is not None
    }
    if not speedups or not all(part.finished for part in measured):
        return None
    best = max(speedups, key=lambda label: speedups[label])
    drafter = sources[best].results.facts["pair"]["drafter"]
    return Choice(drafter or "", speedups[best], speedups, date.today().isoformat())


def speedup_of(part: Measured) -> float | None:
    """The mean over temperatures of the speedup of all tasks; 1 for plain decoding."""
    if part.source is not None and part.source.no_draft:
        return 1.0
    ratios = [row.mean_speedup for row in overall(part.rows) if row.mean_speedup is not None]
    return fmean(ratios) if ratios else None


def overall(rows: list["Row"]) -> list["Row"]:
    """The rows of all tasks together."""
    return [row for row in rows if row.suite == "all"] or rows


def drafts_json(measured: list[Measured]) -> dict[str, Any]:
    """The object that `--json` prints with --drafts: one of `bench_json` for each source."""
    best = best_choice(measured)
    return {
        "complete": all(part.finished for part in measured),
        "best": None if best is None else asdict(best),
        "drafts": [{"source": part.label, **bench_json(part)} for part in measured],
    }


def show_drafts(
    measured: list[Measured], questions: list["Question"], out: Output, tokenizer: Any
) -> None:
    """Print the tables on stdout; a file or a pipe gets Markdown."""
    printer = ReportPrinter(out)
    schedule = measured[-1].schedule
    headers = [header_lines(part.results, part.schedule, questions) for part in measured]
    machine, _, run = headers[0]
    for line in (machine, *(pair for _, pair, _ in headers), run, ORDER):
        printer.line(line, "dim")
    for temperature in schedule.temperatures:
        printer.line("")
        printer.line(f"temperature {temperature:g}", "bold")
        cells = table_cells(measured, temperature)
        if out.stdout_is_tty:
            printer.table(COLUMNS, cells)
        else:
            for line in ("", *markdown_lines(cells)):
                printer.line(line)
    first = schedule.temperatures[0]
    if cells := position_cells(measured, first):
        printer.line("")
        printer.line(f"accepted drafts a pass by position, %, at T={first:g}", "bold")
        columns = (("drafts", "left"), *((str(n), "right") for n in range(1, len(cells[0]))))
        if out.stdout_is_tty:
            printer.table(columns, cells)
        else:
            for line in ("", *markdown_lines(cells, columns)):
                printer.line(line)
    printer.line("")
    rows = [row for part in measured for row in part.rows]
    compared = any(row.compared for row in rows)
    differences = [difference for part in measured for difference in part.differences]
    noun = "answers" if schedule.accept == "match" else "greedy answers"
    lines = output_lines(rows, differences, tokenizer, noun) if compared else [NOT_COMPARED]
    if best := best_choice(measured):
        others = sorted(best.speedups.items(), key=lambda item: -item[1])
        lines.append(f"best     {', '.join(f'{label} {ratio:.2f}×' for label, ratio in others)}")
    for line in lines:
        printer.line(line)


def position_cells(measured: list[Measured], temperature: float) -> list[tuple[str, ...]]:
    """A row for each source that drafts: of all passes, those that kept its draft 1, 2, ..."""
    rows = [
        (part.label, row.by_position)
        for part in measured
        for row in overall(part.rows)
        if row.temperature == temperature and row.by_position
    ]
    width = max((len(shares) for _, shares in rows), default=0)
    return [
        (label, *(f"{100 * share:.0f}" for share in shares), *[""] * (width - len(shares)))
        for label, shares in rows
    ]


def table_cells(measured: list[Measured], temperature: float) -> list[tuple[str, ...]]:
    """A row for each task and source, tasks in the order of the run."""
    rows = [
        (part.source, row)
        for part in measured
        for row in part.rows
        if part.source and row.temperature == temperature
    ]
    plain = {(source, row.suite, row.task): row for source, row in rows if row.mode == "baseline"}
    tasks = list(dict.fromkeys((row.suite, row.task) for _, row in rows))
    return [
        drafts_cells(source, row, plain.get((source, *task)))
        for task in tasks
        for source, row in rows
        if (row.suite, row.task) == task and (row.mode != "baseline") != source.no_draft
    ]


def drafts_cells(source: "Source", row: "Row", plain: "Row | None") -> tuple[str, ...]:
    """A row of the table of sources. The source `none` decodes plainly and has the ratio 1."""
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


def markdown_lines(
    rows: list[tuple[str, ...]], columns: tuple[tuple[str, str], ...] = COLUMNS
) -> list[str]:
    marks = {"left": "---", "right": "---:"}
    lines = [[title for title, _ in columns], [marks[justify] for _, justify in columns]]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


# Plots, with the models, machine and versions under each


def draw_plots(path: Path, rows: list["Row"], results: "Results", out: Output) -> None:
    """Draw all plots that have data. Raises the errors of `dflash_mlx.bench.draw`."""
    from dflash_mlx import bench as engine

    for file in engine.draw(path, rows, results.curve, caption(results)):
        out.note(f"drawn: {file}")


def caption(results: "Results") -> str:
    pair, machine, versions = (results.facts[part] for part in ("pair", "machine", "versions"))
    return " · ".join(
        (
            f"{pair['target']} ({pair['dtype']})",
            f"{machine['chip']}, {machine['cores']} cores",
            f"mlx {versions['mlx']}",
            f"dflash {versions['dflash']}",
        )
    )
