"""How far forecasts are from what others measured on Macs, the rows of measured.toml.

The factors of chips.toml were fitted to these rows, but for every tenth. A speed with a drafter was
fitted only where its tokens a round are published and its kernels are MLX's own.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import groupby
from statistics import median

from dflash_mlx.hub.forecast import sheet

from .chips import Chip, chip_named
from .counted import CountedPair
from .forecast import chance_of, committed, round_of, step_of
from .published import published

DEPTH = 1024  # tokens of context where a source names none
HELD_OUT = 10  # every tenth row is not fitted
BLOCK = 16  # rows of a whole block
SLOW = ("Aryagm", "dtree-mlx")  # engines whose rounds wait longer; one derives from the other
FITTED, HELD, ASSUMED, OTHERS = "fitted", "held out", "tau assumed", "not fitted"
HEADER = (
    "| chip | target | bits | context | | rows | tau | measured | forecast | error | fit |",
    "|---|---|--:|--:|---|--:|--:|--:|--:|--:|---|",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of measured.toml. Speeds in tok/s; 0 is not measured, and a tau of 0 not published.

    `rows` of a verify pass. `unfitted`: why the speculative speed is not fitted, where kernels or
    engine are not MLX's own.
    """

    chip: str
    target: str
    bits: int
    source: str
    engine: str
    plain: float = 0.0
    drafted: float = 0.0
    rows: int = BLOCK
    tau: float = 0.0
    draft_bits: int = 0
    context: int = DEPTH
    unfitted: str = ""
    note: str = ""
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A measured row, its forecast seconds of a step and of a round, and its tokens a round."""

    of: Measured
    step: float
    round: float
    tau: float


def load() -> tuple[Measured, ...]:
    """Every row, with each tenth held out in the file's order."""
    data = tomllib.loads(files("ledger").joinpath("measured.toml").read_text(encoding="utf-8"))
    rows = enumerate(data["measured"], 1)
    return tuple(Measured(**one, held_out=at % HELD_OUT == 0) for at, one in rows)


def counted(rows: Sequence[Measured]) -> Iterator[Row]:
    """Forecast each row. Rows of one pair share its passes, traced once for all chips.

    Where no tokens a round are published, the median of those of whole blocks is assumed.
    """

    def key(one: Measured) -> tuple[str, int, int]:
        return one.target, one.bits, one.draft_bits

    tau = median(one.tau for one in rows if one.tau and one.rows == BLOCK)
    for (target, bits, draft_bits), some in groupby(sorted(rows, key=key), key=key):
        pair = CountedPair(published(target, bits), draft_bits)
        for one in some:
            yield row_of(one, pair, chip_named(one.chip), tau)


def row_of(one: Measured, pair: CountedPair, chip: Chip, tau: float) -> Row:
    """The forecast of one row."""
    step = step_of(pair.verify(one.context, 1, chip), chip)
    if not one.drafted:
        return Row(one, step, 0.0, 0.0)
    if one.engine in SLOW:
        chip = replace(chip, sync=1e-6 * sheet()["fitted"]["slow"])
    verify, draft = (
        pair.verify(one.context, one.rows, chip),
        pair.draft(one.context, pair.block, chip),
    )
    tokens = one.tau or committed(chance_of(tau, BLOCK), one.rows)
    return Row(one, step, round_of(draft, verify, chip), tokens)


class Table:
    """Rows beside their forecasts, in `lines`: for each speed measured, forecast, error and whether
    it was fitted. `errors` of those that say enough, by group.
    """

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows
        self.errors: dict[str, list[float]] = {}
        self.lines = [*HEADER]
        for row in rows:
            if row.of.plain:
                self._add(row, "plain", row.of.plain, 1 / row.step)
            if row.of.drafted:
                self._add(row, "drafted", row.of.drafted, row.tau / row.round)

    def _add(self, row: Row, kind: str, measured: float, here: float) -> None:
        one, plain = row.of, kind == "plain"
        mark = HELD if one.held_out else FITTED
        if not plain and (one.unfitted or not one.tau):
            mark = one.unfitted or ASSUMED
        error = here / measured - 1
        if plain or one.tau:
            group = mark if mark in (FITTED, HELD) else OTHERS
            self.errors.setdefault(f"{kind}, {group}", []).append(error)
        cells = [one.chip, one.target, one.bits, f"{one.context:,}", kind]
        cells += ["", ""] if plain else [one.rows, f"{row.tau:.1f}"]
        cells += [f"{measured:.1f}", f"{here:.1f}", f"{error:+.0%}", mark]
        self.lines.append(f"| {' | '.join(map(str, cells))} |")

    def summary(self) -> Iterator[str]:
        """Median and worst error of each group of `lines`, and whether it is right who loses."""
        yield "| speeds | number | median error | worst |"
        yield "|---|--:|--:|--:|"
        for group, found in sorted(self.errors.items()):
            worst = max(found, key=abs)
            middle = median(map(abs, found))
            yield f"| {group} | {len(found)} | {middle:.0%} | {worst:+.0%} |"
        right = [
            (row.of.drafted < plain) == (row.tau * row.step < row.round)
            for row in self.rows
            if row.of.tau and (plain := self.plain(row.of))
        ]
        yield ""
        yield (
            f"Whether drafts gain or lose is right for {sum(right)} of {len(right)} rows with a "
            "measured speedup and published tokens a round."
        )

    def plain(self, one: Measured) -> float:
        """The measured plain speed of a row, or of another of the same target and chip."""
        same = (one.chip, one.target, one.bits)
        others = (row.of for row in self.rows if row.of.plain)
        return one.plain or next(
            (o.plain for o in others if (o.chip, o.target, o.bits) == same), 0.0
        )
