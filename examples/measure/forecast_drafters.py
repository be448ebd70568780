"""MTP heads, DSpark and DFlash on four targets: a forecast by chip, and others' figures beside it.

    .venv/bin/python examples/measure/forecast_drafters.py

Targets and drafters as they are counted stand in ledger/measured.py, others' figures in
ledger/measured_drafters.toml and measured.toml. No factor was fitted to a figure of the first file;
of the second, the lines that were fitted say so. Counting takes a minute.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from forecast_errors import FITTED, Row, Table, counted, typical
from ledger.counted import CountedPair
from ledger.forecast import (
    Chip,
    Forecast,
    chance_of,
    chips,
    committed,
    fitted,
    round_of,
    step_of,
)
from ledger.measured import DEPTH, Measured, load, load_drafters, pair_of

from dflash_mlx.hub.bits import chosen_bits
from dflash_mlx.hub.kinds import KINDS

BITS = 4  # of the targets in the forecast by chip


@dataclass(frozen=True, slots=True)
class Known:
    """Somebody's tokens a round of `rows` rows, of a target's drafter."""

    target: str
    kind: str
    tau: float
    rows: int
    source: str


KNOWN = (
    Known("Qwen3.6-27B", "mtp", 3.10, 4, "12 prompts of six kinds, sglang-plugin-FL PR 58"),
    Known("Qwen3.6-27B", "dspark", 3.15, 5, "three prompts, README of mlx-dspark"),
    Known("Qwen3.6-27B", "dflash", 4.30, 16, "that of 35B-A3B, z-lab/dflash issue 151"),
    Known("Qwen3.6-35B-A3B", "mtp", 3.35, 4, "code and prose, oMLX PR 2113"),
    Known("Qwen3.6-35B-A3B", "dspark", 4.72, 16, "three prompts, README of mlx-dspark"),
    Known("Qwen3.6-35B-A3B", "dflash", 4.30, 16, "z-lab/dflash issue 151"),
    Known("Qwen3.8-27B", "mtp", 3.59, 4, "little thinking, docs/perf of MTPLX"),
    Known("Qwen3.8-27B", "dspark", 4.41, 8, "three prompts, README of mlx-dspark"),
    Known("Qwen3.8-27B", "dflash2", 5.14, 8, "three prompts, README of mlx-dspark"),
    Known("Qwen3.8-27B", "mtp", 2.81, 8, "SPEED-Bench at temperature 1, llama.cpp PR 27342"),
    Known("Qwen3.8-27B", "dflash2", 3.58, 8, "SPEED-Bench at temperature 1, llama.cpp PR 27342"),
    Known("LFM2.5-2.6B", "dspark", 3.70, 7, "three prompts, README of mlx-dspark"),
)
TARGETS = tuple(dict.fromkeys(one.target for one in KNOWN))


def by_chip(target: str, every: Sequence[Chip]) -> Iterator[str]:
    """The forecast of a target on each chip, plain and with each known drafter."""
    known = [one for one in KNOWN if one.target == target]
    bits = chosen_bits(None, target_quantised=True)
    pairs = {one.kind: CountedPair(pair_of(target, one.kind, BITS), bits) for one in known}
    names = [f"{KINDS[one.kind]}, {one.tau:.3g} of {one.rows}" for one in known]
    yield f"| chip | plain | {' | '.join(names)} |"
    yield f"|---|--:|{'--:|' * len(known)}"
    for chip in every:
        found = [best(one, pairs[one.kind], chip) for one in known]
        cells = [f"{one.drafted:.0f} ({one.drafted / one.plain:.2f}×, {one.rows})" for one in found]
        yield f"| {chip.name} | {found[0].plain:.0f} | {' | '.join(cells)} |"
    yield ""
    for one in known:
        yield f"- {KINDS[one.kind]}: {one.tau:.3g} tokens a round of {one.rows} rows, {one.source}."


def best(known: Known, pair: CountedPair, chip: Chip) -> Forecast:
    """The forecast with the best number of rows, if each draft is kept with one probability."""
    gpu = chip.gpu
    chance = chance_of(known.tau, known.rows)
    rates = {
        committed(chance, rows)
        / round_of(pair.draft(DEPTH, rows, gpu), pair.verify(DEPTH, rows, gpu), chip): rows
        for rows in pair.widths
    }
    plain = 1 / step_of(pair.step(DEPTH, gpu), chip)
    return Forecast(DEPTH, plain, max(rates), rates[max(rates)])


class Figures:
    """Others' figures beside their forecasts; `errors` of those that say enough, by group."""

    HEADER = (
        "| chip | target | bits | context | drafter, rows, tau | plain | forecast | drafted | "
        "forecast | speedup | forecast | fit | source |",
        "|---|---|--:|--:|---|--:|--:|--:|--:|--:|--:|---|---|",
    )

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows
        self.table = Table(rows, fitted())
        self.errors: dict[str, list[float]] = {}

    def lines(self) -> Iterator[str]:
        """A line for each figure. A forecast without a published tau is the tau that it takes."""
        yield from self.HEADER
        for row in self.rows:
            yield f"| {' | '.join(self.cells(row))} |"

    def cells(self, row: Row) -> Iterator[str]:
        one = row.of
        assert row.round is not None
        step, took = self.table.seconds(row.step), self.table.seconds(row.round)
        tau = f", {one.tau:g}" if one.tau else ""
        yield from (one.chip, one.target, str(one.bits), f"{one.context:,}")
        yield f"{KINDS[one.kind]}, {one.rows}{tau}"
        plain = self.plain(one)
        mark = FITTED if row.step.used else "not fitted"
        yield f"{plain:.1f}" if plain else ""
        yield self.compared(f"plain, {mark}", 1 / step, one.plain)
        yield f"{one.drafted:.1f}"
        if one.tau:
            mark = FITTED if row.round.used else one.unfitted or "MLX's kernels, not fitted"
            yield self.compared(f"{KINDS[one.kind]}, {mark}", one.tau / took, one.drafted)
        else:
            yield f"takes tau {one.drafted * took:.1f}"
        speedup = one.drafted / plain if plain else 0.0
        yield f"{speedup:.2f}×" if plain else ""
        yield self.compared("speedup", one.tau * step / took, speedup) if one.tau else ""
        yield FITTED if row.round.used else one.unfitted or "held out"
        yield one.source

    def plain(self, one: Measured) -> float:
        """The measured plain speed of a figure, or of another in the same setting; 0 without."""

        def setting(of: Measured) -> tuple[str, str, int, int]:
            return of.chip, of.target, of.bits, of.context

        others = (row.of.plain for row in self.rows if setting(row.of) == setting(one))
        return one.plain or next(filter(None, others), 0.0)

    def compared(self, group: str, here: float, measured: float) -> str:
        """A forecast and its error, which is noted; without a measured number the forecast."""
        if not measured:
            return f"{here:.3g}"
        error = here / measured - 1
        self.errors.setdefault(group, []).append(error)
        return f"{here:.3g} ({error:+.0%})"

    def summary(self) -> Iterator[str]:
        """Number, median and worst error of each group of `lines`."""
        for group, found in sorted(self.errors.items()):
            middle, worst = median(map(abs, found)), max(found, key=abs)
            yield f"- {group}: {len(found)}, median {middle:.0%}, worst {worst:+.0%}"


def figures() -> Figures:
    """Everybody's figures of the four targets with a drafter, by target and drafter."""
    fit_rows = load()[0]
    rows = [one for one in (*fit_rows, *load_drafters()) if one.target in TARGETS]
    found = [row for row in counted(rows, typical(fit_rows)) if row.round]
    return Figures(sorted(found, key=lambda row: (TARGETS.index(row.of.target), row.of.kind)))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    print("Forecast, targets in 4 bits. Nobody measured it.\n")
    for target in TARGETS:
        print(f"## {target}\n")
        for line in by_chip(target, chips()):
            print(line)
        print()
    print("Forecasts beside what others measured. This project measured none of it.\n")
    shown = figures()
    for line in (*shown.lines(), "", *shown.summary()):
        print(line)


if __name__ == "__main__":
    main()
