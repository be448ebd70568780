"""Make a table of the reports of Macs in examples/macs, with the forecast beside what was measured.

    .venv/bin/python examples/measure/macs_table.py [FOLDER]

A report is the mac-report.json of `make mac-report`. Each row is one pair on one machine: greedy
answers, tokens per second of all rounds together. A virtual GPU is left out, because its times say
nothing. The forecast is that of forecast.py; nobody measured it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ledger.forecast import chips, forecast, passes_of
from ledger.passes import TracedPair
from ledger.published import PAIRS

from dflash_mlx.hub.bits import chosen_bits
from dflash_mlx.kernels.dispatch import Kernels

MACS = Path(__file__).parents[1] / "macs"
MODES = ("baseline", "dflash", "auto")
EMPTY = "No Mac has been measured yet: there is no report in examples/macs."
FORECAST = "A forecast, which nobody measured: examples/guide/forecast.md"
COLUMNS = """
| chip | memory | model | weights | plain tok/s | dflash | auto | auto / plain | forecast |
|---|--:|---|---|--:|--:|--:|--:|--:|"""
DEPTH = 1024  # tokens of context of the forecast
TAU = 5.0  # tokens a whole block commits in the forecast

Forecaster = Callable[[str, str], str | None]


@dataclass(frozen=True, slots=True)
class Measured:
    """One pair on one machine; tokens per second by mode, without those that were not measured."""

    chip: str
    memory: int
    model: str
    weights: str
    speeds: dict[str, float]

    @property
    def gain(self) -> float | None:
        """The speed of auto, relative to plain decoding."""
        plain, auto = self.speeds.get("baseline"), self.speeds.get("auto")
        return auto / plain if plain and auto else None


def read_report(file: Path) -> list[Measured]:
    """The pairs of a report, none if its GPU is virtual. Raises ValueError for another file."""
    try:
        report = json.loads(file.read_text("utf-8"))
        steps = {step["name"]: step["result"] for step in report["steps"]}
        machine = steps["machine"]
        if "virtual" in machine["device"].lower():
            return []
        return [
            measured(machine, found)
            for name, found in steps.items()
            if name.startswith("bench, ") and found
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file.name} is no report of a Mac: {error!r}") from error


def measured(machine: dict[str, Any], bench: dict[str, Any]) -> Measured:
    """A pair from the JSON of `dflash bench`."""
    speeds = {}
    for mode in MODES:
        rounds = [
            part
            for row in bench["rows"]
            if (row["mode"], row["temperature"]) == (mode, 0.0)
            for part in row["rounds"]
        ]
        seconds = sum(part["seconds"] for part in rounds)
        if seconds:
            speeds[mode] = sum(part["tokens"] for part in rounds) / seconds
    pair = bench["pair"]
    chip = machine["device"].removeprefix("Apple ")
    return Measured(chip, machine["memory"], pair["target"], pair["dtype"], speeds)


@cache
def forecast_of(chip_name: str, model: str) -> str | None:
    """Plain and drafted tokens per second that are forecast; None for what no forecast knows."""
    chip = next((chip for chip in chips() if chip.name == chip_name), None)
    pair = next((pair for pair in PAIRS if pair.name == model.rpartition("/")[2]), None)
    if chip is None or pair is None:
        return None
    bits = chosen_bits(None, target_quantised=pair.mode != "none")
    one = forecast(passes_of(TracedPair(pair, Kernels(), bits), DEPTH), chip, TAU)
    return f"{one.plain:.0f} → {one.drafted:.0f}"


def table(found: Iterable[Measured], forecaster: Forecaster = forecast_of) -> Iterator[str]:
    """The lines of the table, by chip, model and weights."""
    rows = sorted(found, key=lambda one: (one.chip, one.memory, one.model, one.weights))
    if not rows:
        yield EMPTY
        yield FORECAST
        return
    yield COLUMNS.strip()
    for one in rows:
        speeds = [f"{one.speeds[mode]:.1f}" if mode in one.speeds else "–" for mode in MODES]
        gain = "–" if one.gain is None else f"{one.gain:.2f}×"
        cells = [one.chip, f"{one.memory / 2**30:.0f} GB", one.model, one.weights, *speeds, gain]
        yield f"| {' | '.join([*cells, forecaster(one.chip, one.model) or '–'])} |"
    yield ""
    yield (
        f"forecast: plain → drafted tokens per second after {DEPTH:,} tokens, {TAU:g} tokens a "
        "whole block, with MLX's own kernels. Nobody measured it."
    )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=MACS)
    asked = parser.parse_args()
    found: list[Measured] = []
    for file in sorted(asked.folder.glob("*.json")):
        try:
            found += read_report(file)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
    for line in table(found):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
