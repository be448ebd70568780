"""The report of a benchmark: tables for a person, or one JSON object."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import pairwise
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.theme import Theme

from dflash_mlx.bench import (
    Difference,
    Question,
    Record,
    Results,
    Row,
    Schedule,
    Source,
    Spread,
    overall,
)
from dflash_mlx.hub.choices import Choice

from ..terminal.output import (
    THEME,
    Output,
    align_columns,
    format_bytes,
    is_utf8,
    screen_width,
    stdout_size,
    strip_control,
)

DEFAULT_WIDTH = 1000  # columns of a file or a pipe, where no line is broken
GAP = "   "  # between columns
LEFT = ("task", "mode", "drafts", "temp", "rows a pass")  # columns of words; others are of numbers
COSTS = ("temp", "mode", "prefill tok/s", "first token ms", "memory", "rows a pass")
MAX_DIFFERENCES = 5  # listed one by one
NO_VALUE = "–"
BASELINE_AT_0 = "baseline and temperature 0"
BASELINE = "baseline"
ORDER = "order    one source after another, each in turn with plain decoding, which its ratio is to"
ESCAPED_BAR = "\\|"  # in a Markdown table
Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of all modes, or of one source of drafts. finished: False after Ctrl-C."""

    source: Source | None
    results: Results
    schedule: Schedule
    records: list[Record]
    rows: list[Row]
    differences: list[Difference]
    finished: bool

    @property
    def label(self) -> str:
        return "" if self.source is None else self.source.label


# The object that `--json` prints


def report_json(measured: Sequence[Measured]) -> dict[str, Any]:
    """Facts, rows, and every answer with its tokens; with --drafts those of each source."""
    if measured[0].source is None:
        return part_json(measured[0])
    best = best_choice(measured)
    return {
        "complete": all(part.finished for part in measured),
        "best": None if best is None else asdict(best),
        "drafts": [{"source": part.label, **part_json(part)} for part in measured],
    }


def part_json(part: Measured) -> dict[str, Any]:
    facts, schedule, curve = part.results.facts, part.schedule, part.results.curve
    order = {
        "modes": [variant.label for variant in schedule.modes],
        "temperatures": list(schedule.temperatures),
        "repeats": schedule.repeats,
    }
    return {
        **facts,
        "settings": {**facts["settings"], **order},
        "complete": part.finished,
        "rows": [row.data() for row in part.rows],
        "differences": [difference.data() for difference in part.differences],
        "costs": None if curve is None else asdict(curve),
        "answers": [record.data() for record in part.records],
    }


# The best source of drafts


def best_choice(measured: Sequence[Measured]) -> Choice | None:
    """The source with the highest speedup over plain decoding; None after Ctrl-C.

    Trees are left out: they are another mode, not another drafter. Of equal ones the first counts.
    """
    sources = {part.label: part for part in measured if part.source and part.source.rows is None}
    found = {label: speedup_of(part) for label, part in sources.items()}
    speedups = {label: ratio for label, ratio in found.items() if ratio is not None}
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


# The tables


def show_report(
    measured: Sequence[Measured], questions: Sequence[Question], out: Output, tokenizer: Any
) -> None:
    """Print the report on stdout. The tables of --drafts are Markdown in a file or a pipe."""
    schedule = measured[-1].schedule
    compares_drafts = measured[0].source is not None
    printer = Printer(out, markdown=compares_drafts and not out.stdout_is_tty)
    headers = [header_lines(part, questions) for part in measured]
    machine, _, run = headers[0]
    pairs = [pair for _, pair, _ in headers]
    for line in (machine, *pairs, run, *[ORDER] * compares_drafts):
        printer.line(line, "dim")
    for temperature in schedule.temperatures:
        printer.table(f"temperature {temperature:g}", *speed_table(measured, temperature))
    if not compares_drafts:
        printer.table("costs", COSTS, [cost_cells(row) for row in overall(measured[0].rows)])
    first = schedule.temperatures[0]
    columns, cells = position_table(measured, first)
    if cells:
        printer.table(f"accepted drafts a pass by position, %, at T={first:g}", columns, cells)
    printer.line("")
    for line in output_lines(measured, tokenizer):
        printer.line(line)
    best = best_choice(measured)
    if compares_drafts and best is not None:
        others = sorted(best.speedups.items(), key=lambda item: -item[1])
        printer.line(f"best     {', '.join(f'{label} {ratio:.2f}×' for label, ratio in others)}")


class Printer:
    def __init__(self, out: Output, *, markdown: bool):
        capable = out.stdout_is_tty and os.environ.get("TERM") not in ("dumb", "unknown")
        self._out = out
        self._markdown = markdown
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

    def line(self, text: str, style: str = "") -> None:
        out = self._out
        with self._console.capture() as printed:
            self._console.print(self._shown(text), style=style, soft_wrap=not out.stdout_is_tty)
        text = "\n".join(line.rstrip() for line in printed.get().split("\n"))
        (out.draw if out.stdout_is_tty else out.write)(text)

    def table(self, title: str, names: Cells, rows: Sequence[Cells]) -> None:
        """Print rows under a title. A first cell that repeats the one above it stays empty.

        Where the table is wider than the terminal, each cell has a line of its own.
        """
        self.line("")
        self.line(title, "bold")
        if self._markdown:
            marks = ["---" if name in LEFT else "---:" for name in names]
            self.line("")
            for row in (names, marks, *rows):
                self.line(f"| {' | '.join(cell.replace('|', ESCAPED_BAR) for cell in row)} |")
            return
        shown = [[*map(self._shown, row)] for row in (names, *rows)]
        cells = [shown[0]]
        for above, (first, *others) in pairwise(shown):
            cells.append(["" if first == above[0] else first, *others])
        right = [number for number, name in enumerate(names) if name not in LEFT]
        head, *lines = align_columns(cells, right, GAP)
        if screen_width(head) > self._console.width:
            for row in rows:
                self.line("")
                for name, cell in zip(names, row, strict=True):
                    self.line(f"{name}: {cell}")
            return
        self.line(head, "bold")
        self.line(("-" if self._ascii else "─") * screen_width(head))
        for line in lines:
            self.line(line)

    def _shown(self, text: str) -> str:
        return self._out.ascii_fallback(strip_control(text))


def speed_table(measured: Sequence[Measured], temperature: float) -> tuple[Cells, list[Cells]]:
    """A row for each task and mode, or each task and source, tasks in the order of the run."""
    by_source = measured[0].source is not None
    kinds = ("drafts", "tok/s", "plain tok/s") if by_source else ("mode", "tok/s")
    names = ("task", *kinds, "ratio", "quartiles", "τ", "accept", "same")
    rows = [(part, row) for part in measured for row in part.rows if row.temperature == temperature]
    plain = {(part.label, row.suite, row.task): row for part, row in rows if row.mode == BASELINE}
    tasks = list(dict.fromkeys((row.suite, row.task) for _, row in rows))
    rows.sort(key=lambda item: tasks.index((item[1].suite, item[1].task)))
    cells = []
    for part, row in rows:
        rates = [middle(row.decode)]
        if part.source is not None:
            if (row.mode == BASELINE) != part.source.no_draft:
                continue
            beside = plain.get((part.label, row.suite, row.task))
            rates.append(middle(beside and beside.decode))
        ratio = row.speedup
        cells.append(
            (
                row.task,
                part.label or row.mode,
                *(number(rate, ",.1f") for rate in rates),
                number(1.0 if row.mode == BASELINE else middle(ratio), ".2f", "×"),
                "" if ratio is None else f"{ratio.low:.2f}–{ratio.high:.2f}",
                number(middle(row.tau), ".2f"),
                number(row.acceptance_rate, ".1%"),
                f"{row.identical}/{row.compared}" if row.compared else "",
            )
        )
    return names, cells


def number(value: float | None, form: str, unit: str = "") -> str:
    return NO_VALUE if value is None else f"{value:{form}}{unit}"


def middle(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def cost_cells(row: Row) -> Cells:
    """With the two most frequent widths of a pass, and their shares of the passes."""
    total = sum(part.count for part in row.rounds)
    common = sorted(row.rounds, key=lambda part: -part.count)[:2]
    first_token = middle(row.first_token)
    return (
        f"{row.temperature:g}",
        row.mode,
        number(middle(row.prefill), ",.0f"),
        number(first_token and 1000 * first_token, ",.0f"),
        format_bytes(row.peak_bytes),
        ", ".join(f"{part.rows} ({part.count / total:.0%})" for part in common) or NO_VALUE,
    )


def position_table(measured: Sequence[Measured], temperature: float) -> tuple[Cells, list[Cells]]:
    """For each mode or source: of all passes, those that kept its draft 1, 2, ..."""
    shares = {
        part.label or row.mode: row.by_position
        for part in measured
        for row in overall(part.rows)
        if row.temperature == temperature and row.by_position
    }
    width = max(map(len, shares.values()), default=0)
    cells = [
        (label, *(f"{100 * share:.0f}" for share in kept), *[""] * (width - len(kept)))
        for label, kept in shares.items()
    ]
    return ("drafts", *(str(n + 1) for n in range(width))), cells


# The lines above and below the tables


def header_lines(part: Measured, questions: Sequence[Question]) -> tuple[str, str, str]:
    pair, machine, versions = (part.results.facts[name] for name in ("pair", "machine", "versions"))
    schedule = part.schedule
    threads = f", threads {machine['blas_threads']}" if machine["blas_threads"] else ""
    blas = f" · {machine['blas']}{threads}" if machine["device"] == "cpu" else ""
    drafter = "no drafter"
    if pair["drafter"]:
        bits = f" ({pair['draft_bits']}-bit)" if pair["draft_bits"] else ""
        block = schedule.block_size or pair["block_size"]
        drafter = f"drafter {pair['drafter']}{bits} · block {block}"
    exact = " · exact" if pair["exact"] else ""
    cache = f" · {pair['kv_cache']}" if pair["kv_cache"] else ""
    suites = ", ".join(dict.fromkeys(question.suite for question in questions))
    thinking = {True: "on", False: "off", None: "as the template has it"}[schedule.think]
    thinking = f"effort {schedule.effort}" if schedule.effort else f"thinking {thinking}"
    accept = "" if schedule.accept == "match" else f" · accept {schedule.accept}"
    rest = f" · {schedule.cooldown:g} s rest" if schedule.cooldown else ""
    return (
        f"machine  {machine['chip']} · {machine['cores']} cores · "
        f"{format_bytes(machine['memory'])} · {machine['device']}{blas} · "
        f"mlx {versions['mlx']} · dflash {versions['dflash']}",
        f"pair     {pair['target']} {pair['dtype']} · {drafter}{exact}{cache}",
        f"run      {len(questions):,} prompts of {suites} · "
        f"at most {schedule.max_tokens:,} tokens · warm-up, "
        f"then {schedule.repeats} a mode in turn · medians · seed {schedule.seed} · "
        f"{thinking}{accept}{rest}",
    )


def output_lines(measured: Sequence[Measured], tokenizer: Any) -> list[str]:
    """How many answers are identical to plain decoding's, and the first differences."""
    by_source = measured[0].source is not None
    matched = by_source and measured[0].schedule.accept == "match"
    rows = [row for part in measured for row in overall(part.rows)]
    total = sum(row.compared for row in rows)
    if not total:
        needs = "drafts, and temperature 0 or --accept match" if by_source else BASELINE_AT_0
        return [f"output   not compared: that needs {needs}"]
    identical = sum(row.identical for row in rows)
    noun = "answers" if matched else "greedy answers"
    lines = [f"output   identical to baseline in {identical:,} of {total:,} {noun}"]
    differences = [difference for part in measured for difference in part.differences]
    for difference in differences[:MAX_DIFFERENCES]:
        key = difference.key
        said, wanted = (
            "the end" if token is None else repr(tokenizer.decode([token]))
            for token in (difference.said, difference.wanted)
        )
        lines.append(
            f"         {key.suite} {key.number} · {key.mode} · token {difference.token:,}: "
            f"{said} for {wanted}"
        )
        if difference.gap is not None:
            lines[-1] += f"; the target's two best logits are {difference.gap:.2g} apart"
    if len(differences) > MAX_DIFFERENCES:
        lines.append(f"         and {len(differences) - MAX_DIFFERENCES:,} more (--json has all)")
    return lines
