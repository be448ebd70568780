"""How far forecasts are from what others measured on Macs, and whether they say who loses.

    .venv/bin/python examples/measure/forecast_errors.py [--target Qwen3-4B] [--fit]

Rows are those of ledger/measured.toml. Every tenth row is held out of the fit of the factors. A
speed with a drafter is fitted only where its tokens a round are published and its kernels are MLX's
own. Counting all targets takes some minutes.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from statistics import median

from ledger.counted import CountedPair
from ledger.fit import PRODUCT, ROUND, STEP, Point, fit, forecast_of
from ledger.forecast import Factors, chance_of, chips, committed, fitted, gpu_of
from ledger.measured import LeftOut, Measured, Product, load
from ledger.products import device_chip
from ledger.tally import MATRIX, VECTOR, Tally, Work

from dflash_mlx.kernels.row_limits import MATRIX_TILE, matrix_rows

SLOW = (
    "Aryagm",
    "dtree-mlx",
)  # engines whose rounds wait longer; the second derives from the first
BLOCK = 16
FITTED, HELD, ASSUMED, OTHERS = "fitted", "held out", "tau assumed", "not fitted"
HEADER = """
| chip | target | bits | context | | rows | tau | measured | forecast | error | fit |
|---|---|--:|--:|---|--:|--:|--:|--:|--:|---|"""
LOSERS = """
| chip | target | bits | rows | tau | measured | forecast | needs tau | loses? |
|---|---|--:|--:|--:|--:|--:|--:|---|"""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured row with the points of its plain and its drafted speed, and its tokens a round."""

    of: Measured
    step: Point
    round: Point | None
    tau: float


def typical(rows: Iterable[Measured]) -> float:
    """The median of the published tokens a round of whole blocks."""
    return median(one.tau for one in rows if one.tau and one.rows == BLOCK)


def counted(rows: Sequence[Measured], tau: float) -> Iterator[Row]:
    """Count the passes of each row; `tau` is assumed for a whole block where none is published.

    Rows of one pair share its passes, so each is traced once for all chips.
    """

    def key(one: Measured) -> tuple[str, int, int, str]:
        return one.target, one.bits, one.draft_bits, one.kind

    for _, some in groupby(sorted(rows, key=key), key=key):
        each = list(some)
        pair = CountedPair(each[0].pair, each[0].draft_bits)
        for one in each:
            yield row_of(one, pair, tau)


def row_of(one: Measured, pair: CountedPair, tau: float) -> Row:
    """The points of one row."""
    gpu = gpu_of(one.chip)
    step = Point(
        one.chip,
        STEP,
        1 / one.plain if one.plain else 0.0,
        (pair.step(one.context, gpu),),
        used=bool(one.plain) and not one.held_out,
    )
    if not one.drafted:
        return Row(one, step, None, 0.0)
    tokens = one.tau or committed(chance_of(tau, BLOCK), one.rows)
    passes = pair.draft(one.context, one.rows, gpu), pair.verify(one.context, one.rows, gpu)
    used = bool(one.tau) and not one.unfitted and not one.held_out
    slow = one.engine in SLOW
    return Row(one, step, Point(one.chip, ROUND, tokens / one.drafted, passes, slow, used), tokens)


def product_of(one: Product) -> Point:
    """The point of a product measured by itself."""
    chip = device_chip(gpu_of(one.chip))
    vectors = one.rows < matrix_rows(chip, one.outputs, one.inputs)
    rows = one.rows if vectors else -(-one.rows // MATRIX_TILE) * MATRIX_TILE
    weights = one.inputs * one.outputs * (one.bits + 0.5) / 8  # groups of 64 with scale and bias
    work = Work(VECTOR if vectors else MATRIX, int(weights), 2 * rows * one.inputs * one.outputs)
    return Point(one.chip, PRODUCT, one.ms / 1e3, (Tally(1, ((work, 1),)),))


def points_of(rows: Iterable[Row], products: Iterable[Product]) -> list[Point]:
    """Every point that was measured."""
    found = [point for row in rows for point in (row.step, row.round) if point]
    return [one for one in found if one.measured] + [product_of(one) for one in products]


class Table:
    """Rows beside their forecasts with these factors."""

    def __init__(self, rows: Sequence[Row], factors: Factors):
        self.rows = rows
        self.factors = factors
        self.chips = {chip.name: chip for chip in chips(factors)}
        self.errors: dict[str, list[float]] = {}

    def seconds(self, point: Point) -> float:
        return forecast_of(point, self.chips, self.factors)

    def lines(self) -> Iterator[str]:
        """A line for each speed: measured, forecast, error, and whether it was fitted."""
        yield HEADER.strip()
        for row in self.rows:
            if row.of.plain:
                yield self.line(row, row.step, "plain", 1.0)
            if row.round:
                yield self.line(row, row.round, "drafted", row.tau)

    def line(self, row: Row, point: Point, kind: str, tokens: float) -> str:
        one = row.of
        measured, here = tokens / point.measured, tokens / self.seconds(point)
        error = here / measured - 1
        mark = self.mark(row, point)
        group = mark if mark in (FITTED, HELD) else OTHERS
        if point is row.step or row.of.tau:
            self.errors.setdefault(f"{kind}, {group}", []).append(error)
        cells = [one.chip, one.target, one.bits, f"{one.context:,}", kind]
        cells += [one.rows, f"{tokens:.1f}"] if kind == "drafted" else ["", ""]
        cells += [f"{measured:.1f}", f"{here:.1f}", f"{error:+.0%}", mark]
        return f"| {' | '.join(map(str, cells))} |"

    def mark(self, row: Row, point: Point) -> str:
        """Whether a point is fitted, or why not."""
        if point.used:
            return FITTED
        if point is row.round and row.of.unfitted:
            return row.of.unfitted
        return ASSUMED if point is row.round and not row.of.tau else HELD

    def summary(self) -> Iterator[str]:
        """Median and worst error of each group of `lines`."""
        for group, found in sorted(self.errors.items()):
            worst = max(found, key=abs)
            middle = median(map(abs, found))
            yield f"{group}: {len(found)} speeds, median {middle:.0%}, worst {worst:+.0%}"

    def losers(self) -> Iterator[str]:
        """A line for each row whose speedup was measured: whether the forecast says who loses."""
        yield LOSERS.strip()
        agreed: dict[bool, list[bool]] = {True: [], False: []}
        for row in self.rows:
            one, plain = row.of, self.plain(row.of)
            if not row.round or not plain:
                continue
            measured = one.drafted / plain
            step, took = self.seconds(row.step), self.seconds(row.round)
            here = row.tau * step / took
            agrees = (measured < 1) == (here < 1)
            agreed[bool(one.tau)].append(agrees)
            verdict = f"{'loses' if here < 1 else 'gains'}, {'right' if agrees else 'wrong'}"
            tau = f"{row.tau:.1f}" if one.tau else f"{row.tau:.1f} assumed"
            cells = [one.chip, one.target, one.bits, one.rows, tau]
            cells += [f"{measured:.2f}×", f"{here:.2f}×", f"{took / step:.1f}", verdict]
            yield f"| {' | '.join(map(str, cells))} |"
        known, assumed = (f"{sum(some)} of {len(some)}" for some in agreed.values())
        yield f"\nRight: {known} with a published tau, {assumed} with an assumed one."

    def plain(self, one: Measured) -> float:
        """The measured plain speed of a row, or of another of the same target and chip."""
        if one.plain:
            return one.plain
        same = (one.chip, one.target, one.bits)
        found = (row.of for row in self.rows if row.of.plain)
        return next((o.plain for o in found if (o.chip, o.target, o.bits) == same), 0.0)


def product_lines(products: Iterable[Product], table: Table) -> Iterator[str]:
    """A line for each product measured by itself."""
    for one in products:
        point = product_of(one)
        error = table.seconds(point) / point.measured - 1
        sizes = f"{one.inputs} x {one.outputs}, {one.bits} bits, {one.rows} rows"
        yield f"{one.chip}, {sizes}: {one.ms:g} ms, forecast {error:+.0%}"


def report(
    rows: Sequence[Row], products: Sequence[Product], left: Sequence[LeftOut], factors: Factors
) -> Iterator[str]:
    """Everything that is printed."""
    table = Table(rows, factors)
    yield "Forecasts beside what others measured. This project measured none of it."
    yield ""
    yield from table.lines()
    yield ""
    yield from table.summary()
    yield ""
    yield from product_lines(products, table)
    yield ""
    yield from table.losers()
    yield ""
    yield from (f"Left out: {one.row}: {one.reason} ({one.source})." for one in left)


def main() -> None:
    measured, products, left = load()
    targets = sorted({one.target for one in measured})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=targets, help="only this target's rows")
    parser.add_argument("--fit", action="store_true", help="fit the factors and print them")
    asked = parser.parse_args()
    chosen = [one for one in measured if asked.target in (None, one.target)]
    rows = list(counted(chosen, typical(measured)))
    factors = fitted()
    if asked.fit:
        factors = fit(points_of(rows, products), factors)
        for field in fields(Factors):
            print(f"{field.name} = {getattr(factors, field.name):.3g}")
        print()
    for line in report(rows, products, left, factors):
        print(line)


if __name__ == "__main__":
    main()
