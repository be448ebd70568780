"""The report of a benchmark: tables for a person, or one JSON object.

Knows rows and records, not how they were measured.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from ..terminal.bars import position_rows
from ..terminal.output import THEME, Output, format_bytes, is_utf8, stdout_size, strip_control
from ..terminal.tables import COLUMN_GAP, table_lines

if TYPE_CHECKING:
    from rich.text import Text

    from dflash_mlx.bench import Difference, Question, Record, Results, Row, Schedule

DEFAULT_WIDTH = 100  # columns when stdout is no terminal
MAX_DIFFERENCES = 5  # listed one by one
NO_VALUE = "–"


def bench_json(
    results: "Results",
    schedule: "Schedule",
    records: list["Record"],
    rows: list["Row"],
    differences: list["Difference"],
    finished: bool,
) -> dict[str, Any]:
    """The object that `--json` prints: facts, rows, and every answer with its tokens."""
    schedule_settings = {
        "modes": [variant.label for variant in schedule.modes],
        "temperatures": list(schedule.temperatures),
        "repeats": schedule.repeats,
    }
    return {
        **results.facts,
        "settings": {**results.facts["settings"], **schedule_settings},
        "complete": finished,
        "rows": [row.data() for row in rows],
        "differences": [difference.data() for difference in differences],
        "costs": None if results.curve is None else results.curve.data(),
        "answers": [record.data() for record in records],
    }


def show_report(
    results: "Results",
    schedule: "Schedule",
    questions: list["Question"],
    rows: list["Row"],
    differences: list["Difference"],
    out: Output,
    tokenizer: Any,
) -> None:
    """Print the whole report on stdout."""
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
    for line in output_lines(rows, differences, tokenizer):
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
        """Print one line; a terminal wraps it between words."""
        self._print(self.text(text, style))

    def table(self, columns: tuple[tuple[str, str], ...], rows: list[tuple[str, ...]]) -> None:
        """Print columns (title and justification) under a rule.

        A first cell that repeats the one above stays empty, if the columns fit.
        """
        names = tuple(title for title, _ in columns)
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        fits_width = sum(widths) + COLUMN_GAP * (len(widths) - 1) <= self._console.width
        cells, previous = [], ""
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
    """A row of the speed table."""
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
    """A row of the table of prefill, first token and memory."""
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
    """The machine, the pair and the settings that the numbers hold for."""
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
    return [
        f"machine  {machine['chip']} · {machine['cores']} cores · "
        f"{format_bytes(machine['memory'])} · {machine['device']}{blas} · "
        f"mlx {versions['mlx']} · dflash {versions['dflash']}",
        f"pair     {pair['target']} {pair['dtype']} · {drafter}{exact}",
        f"run      {len(questions):,} prompts of {suites} · "
        f"at most {schedule.max_tokens:,} tokens · warm-up, "
        f"then {schedule.repeats} a mode in turn · medians · seed {schedule.seed} · "
        f"{thinking}{accept}{rest}",
    ]


def output_lines(
    rows: list["Row"],
    differences: list["Difference"],
    tokenizer: Any,
    what: str = "greedy answers",
) -> list[str]:
    """How many answers equal plain decoding's, and where the others differ."""
    parts = [row for row in rows if row.suite == "all"] or rows
    total, identical = sum(row.compared for row in parts), sum(row.identical for row in parts)
    if not total:
        return ["output   not compared: that needs baseline and temperature 0"]
    lines = [f"output   identical to baseline in {identical:,} of {total:,} {what}"]
    for difference in differences[:MAX_DIFFERENCES]:
        key = difference.key
        said, wanted = (
            "the end" if token is None else repr(tokenizer.decode([token]))
            for token in (difference.said, difference.wanted)
        )
        gap = (
            ""
            if difference.gap is None
            else f"; the target's two best logits are {difference.gap:.2g} apart"
        )
        lines.append(
            f"         {key.suite} {key.number} · {key.mode} · token {difference.token:,}: "
            f"{said} for {wanted}{gap}"
        )
    if len(differences) > MAX_DIFFERENCES:
        lines.append(f"         and {len(differences) - MAX_DIFFERENCES:,} more (--json has all)")
    return lines
