"""What a benchmark prints: a few tables for a person, or one object with everything.

Knows rows and records, not how they were measured.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from ..chat.stats_page import position_rows
from ..output import STYLES, Output, clean, is_utf8, screen_size, size
from ..terminal.tables import BETWEEN, table_lines

if TYPE_CHECKING:
    from rich.text import Text

    from dflash_mlx.bench import Difference, Question, Record, Results, Row, Schedule

WIDTH = 100  # columns where nobody knows how many there are
MOST = 5  # differences that are told one by one
NONE = "–"


def bench_json(
    held: "Results",
    schedule: "Schedule",
    records: list["Record"],
    rows: list["Row"],
    found: list["Difference"],
    finished: bool,
) -> dict[str, Any]:
    """The object that `--json` prints: the facts, the rows, and every answer with its tokens."""
    own = {
        "modes": [variant.label for variant in schedule.modes],
        "temperatures": list(schedule.temperatures),
        "repeats": schedule.repeats,
    }
    return {
        **held.facts,
        "settings": {**held.facts["settings"], **own},
        "complete": finished,
        "rows": [row.data() for row in rows],
        "differences": [one.data() for one in found],
        "costs": None if held.curve is None else held.curve.data(),
        "answers": [record.data() for record in records],
    }


def show_report(
    held: "Results",
    schedule: "Schedule",
    questions: list["Question"],
    rows: list["Row"],
    found: list["Difference"],
    out: Output,
    tokenizer: Any,
) -> None:
    """Print everything on stdout."""
    page = Page(out)
    for line in head(held, schedule, questions):
        page.line(line, "dim")
    for temperature in schedule.temperatures:
        page.line("")
        page.line(f"temperature {temperature:g}", "bold")
        page.table(SPEED, [speed_cells(r, out) for r in rows if r.temperature == temperature])
    whole = [row for row in rows if row.suite == "all"] or rows
    page.line("")
    page.table(COST, [cost_cells(row) for row in whole])
    for row in whole:
        if row.temperature == schedule.temperatures[0] and row.by_position:
            page.line("")
            page.line(f"accept by position · {row.mode} at temperature {row.temperature:g}", "bold")
            for line in position_rows([round(1000 * p) for p in row.by_position], 1000, out):
                page.line(f"  {line}")
    page.line("")
    for line in verdict(rows, found, tokenizer):
        page.line(line)


class Page:
    """Lines and tables on stdout, with the theme's styles where it is a terminal."""

    def __init__(self, out: Output):
        from rich.console import Console
        from rich.theme import Theme

        able = out.answers and os.environ.get("TERM") not in ("dumb", "unknown")
        self._out = out
        self._ascii = out.ascii or (not is_utf8(sys.stdout) and out.answers)
        self._console = Console(
            theme=Theme(STYLES),
            width=screen_size()[0] or WIDTH,
            force_terminal=able and not out.ascii,
            color_system="auto" if able else None,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def text(self, said: str, style: str = "") -> "Text":
        """Text that cannot steer the terminal, and that it can show."""
        from rich.text import Text

        said = self._out.glyphs(clean(said))
        if self._out.answers:
            encoding = sys.stdout.encoding or "ascii"
            said = said.encode(encoding, "replace").decode(encoding)
        return Text(said, style)

    def line(self, said: str, style: str = "") -> None:
        """One line, broken between words where it is too long for a terminal."""
        self._print(self.text(said, style))

    def table(self, titles: tuple[tuple[str, str], ...], rows: list[tuple[str, ...]]) -> None:
        """Columns (title and side) under a rule.

        What a row repeats of the last one's first cell is left out, if there is room for columns.
        """
        names = tuple(title for title, _ in titles)
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        fits = sum(widths) + BETWEEN * (len(widths) - 1) <= self._console.width
        cells, before = [], ""
        for row in (names, *rows):
            shown = ("", *row[1:]) if fits and row[0] == before else row
            before = row[0]
            cells.append([(self.text(c), side) for c, (_, side) in zip(shown, titles, strict=True)])
        rule = "-" if self._ascii else "─"
        for line in table_lines(self._console, cells, self._console.width, rule):
            line.rstrip()
            self._print(line)

    def _print(self, text: "Text") -> None:
        if self._out.answers:
            self._console.print(text)
        else:
            self._out.write(text.plain + "\n")


SPEED = (
    ("task", "left"),
    ("mode", "left"),
    ("tok/s", "right"),
    ("speedup", "right"),
    ("quartiles", "right"),
    ("τ", "right"),
    ("accept", "right"),
    ("same", "right"),
)
COST = (
    ("temp", "left"),
    ("mode", "left"),
    ("prefill tok/s", "right"),
    ("first token ms", "right"),
    ("memory", "right"),
    ("rows a pass", "left"),
)


def speed_cells(row: "Row", out: Output) -> tuple[str, ...]:
    """A row of the table of speeds."""
    speedup = row.speedup
    return (
        row.task,
        row.mode,
        NONE if row.decode is None else f"{row.decode.median:,.1f}",
        NONE if speedup is None else f"{speedup.median:.2f}×",
        "" if speedup is None else f"{speedup.low:.2f}–{speedup.high:.2f}",
        NONE if row.tau is None else f"{row.tau.median:.2f}",
        NONE if row.acceptance_rate is None else f"{row.acceptance_rate:.1%}",
        f"{row.identical}/{row.compared}" if row.compared else "",
    )


def cost_cells(row: "Row") -> tuple[str, ...]:
    """A row of the table of what is not decoding speed."""
    return (
        f"{row.temperature:g}",
        row.mode,
        NONE if row.prefill is None else f"{row.prefill.median:,.0f}",
        NONE if row.first_token is None else f"{1000 * row.first_token.median:,.0f}",
        size(row.peak_bytes),
        widths(row),
    )


def widths(row: "Row") -> str:
    """The two widths that were run most, with their shares of the passes."""
    total = sum(part.count for part in row.rounds)
    often = sorted(row.rounds, key=lambda part: -part.count)[:2]
    return ", ".join(f"{part.rows} ({part.count / total:.0%})" for part in often) or NONE


def head(held: "Results", schedule: "Schedule", questions: list["Question"]) -> list[str]:
    """What the numbers hold for."""
    pair, machine, versions = (held.facts[part] for part in ("pair", "machine", "versions"))
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
        f"machine  {machine['chip']} · {machine['cores']} cores · {size(machine['memory'])} · "
        f"{machine['device']}{blas} · mlx {versions['mlx']} · dflash {versions['dflash']}",
        f"pair     {pair['target']} {pair['dtype']} · {drafter}{exact}",
        f"run      {len(questions):,} prompts of {suites} · "
        f"at most {schedule.max_tokens:,} tokens · warm-up, "
        f"then {schedule.repeats} a mode in turn · medians · seed {schedule.seed} · "
        f"{thinking}{accept}{rest}",
    ]


def verdict(rows: list["Row"], found: list["Difference"], tokenizer: Any) -> list[str]:
    """Whether the greedy answers are plain decoding's, and where they are not."""
    parts = [row for row in rows if row.suite == "all"] or rows
    total, same = sum(row.compared for row in parts), sum(row.identical for row in parts)
    if not total:
        return ["output   not compared: that needs baseline and temperature 0"]
    lines = [f"output   identical to baseline in {same:,} of {total:,} greedy answers"]
    for one in found[:MOST]:
        said, wanted = (
            "the end" if token is None else repr(tokenizer.decode([token]))
            for token in (one.said, one.wanted)
        )
        gap = "" if one.gap is None else f"; the target's two best logits are {one.gap:.2g} apart"
        lines.append(
            f"         {one.key.suite} {one.key.number} · {one.key.mode} · token {one.token:,}: "
            f"{said} for {wanted}{gap}"
        )
    if len(found) > MOST:
        lines.append(f"         and {len(found) - MOST:,} more (--json has all)")
    return lines
