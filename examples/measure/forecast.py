"""A forecast of published pairs, or of one in folders, on a chip. Nobody measured it.

Counted bytes, products and dispatches with MLX's own kernels; parts of what is known of chips are
estimates (`ledger/chips.toml`). Examples:

    .venv/bin/python examples/measure/forecast.py "M4 Max"
    .venv/bin/python examples/measure/forecast.py M1 --folders TARGET DRAFT --tau 4
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from ledger.forecast import chip_named, forecast
from ledger.passes import TracedPair
from ledger.published import PAIRS, Published, of_folders

from dflash_mlx.hub.bits import chosen_bits
from dflash_mlx.kernels.dispatch import Kernels

CONTEXTS = (1024, 8192)  # tokens
COLUMNS = """
| pair | context | plain tok/s | dflash tok/s | speedup | rows |
|---|--:|--:|--:|--:|--:|"""


def table(pairs: list[Published], chip_name: str, tau: float) -> Iterator[str]:
    """The lines of the table; UsageError for an unknown chip."""
    chip = chip_named(chip_name)
    yield f"Forecast for {chip.name}, {tau:g} tokens a whole block. Nobody measured it."
    yield COLUMNS
    for published in pairs:
        bits = chosen_bits(None, target_quantised=published.mode != "none")
        pair = TracedPair(published, Kernels(), bits)
        for one in forecast(pair, chip, CONTEXTS, tau):
            rates = f"{one.plain:.0f} | {one.drafted:.0f} | {one.drafted / one.plain:.2f}×"
            yield f"| {published.name} | {one.depth:,} | {rates} | {one.rows} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chip", help="like M1, M4 Max or M5 Pro")
    parser.add_argument(
        "--folders", nargs=2, type=Path, metavar=("TARGET", "DRAFT"), help="a pair on this machine"
    )
    parser.add_argument("--tau", type=float, default=5.0, help="tokens a whole block commits")
    asked = parser.parse_args()
    pairs = list(PAIRS)
    if asked.folders:
        target, draft = asked.folders
        pairs = [of_folders(target.name, target, draft)]
    for line in table(pairs, asked.chip, asked.tau):
        print(line)


if __name__ == "__main__":
    main()
