"""A forecast of published pairs, or of one in folders, on a chip. Nobody measured it.

Counted bytes, products and dispatches with MLX's own kernels; parts of what is known of chips are
estimates (`dflash_mlx/hub/chips.toml`). Counting takes some minutes. Examples:

    .venv/bin/python examples/measure/forecast.py "M4 Max" M1
    .venv/bin/python examples/measure/forecast.py M1 --folders TARGET DRAFT --tau 4

Without a chip it prints those of the guide: every chip of which something is known.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ledger.forecast import Chip, Passes, chance_of, chip_named, chips, forecast, passes_of
from ledger.passes import TracedPair
from ledger.published import PAIRS, Published, of_folders

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.bits import chosen_bits
from dflash_mlx.kernels.dispatch import Kernels

CONTEXTS = (1024, 8192)  # tokens
COLUMNS = """
| pair | context | plain tok/s | dflash tok/s | speedup | rows |
|---|--:|--:|--:|--:|--:|"""


def traced(pairs: Sequence[Published], tau: float) -> dict[str, list[Passes]]:
    """The passes of each pair, by its name; UsageError if a block cannot commit `tau` tokens."""
    known = {}
    for published in pairs:
        bits = chosen_bits(None, target_quantised=published.mode != "none")
        pair = TracedPair(published, Kernels(), bits)
        chance_of(tau, pair.drafter.block_size)
        known[published.name] = pair
    return {name: [passes_of(pair, depth) for depth in CONTEXTS] for name, pair in known.items()}


def table(passes: Mapping[str, Sequence[Passes]], chip: Chip, tau: float) -> Iterator[str]:
    """The lines of a chip's table."""
    yield f"Forecast for {chip.name}, {tau:g} tokens a whole block. Nobody measured it."
    yield COLUMNS
    for name, each in passes.items():
        for one in (forecast(some, chip, tau) for some in each):
            rates = f"{one.plain:.0f} | {one.drafted:.0f} | {one.drafted / one.plain:.2f}×"
            yield f"| {name} | {one.depth:,} | {rates} | {one.rows} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chips", nargs="*", metavar="CHIP", help="like M1, 'M4 Max' or M5Pro")
    parser.add_argument(
        "--folders", nargs=2, type=Path, metavar=("TARGET", "DRAFT"), help="a pair on this machine"
    )
    parser.add_argument("--tau", type=float, default=5.0, help="tokens a whole block commits")
    asked = parser.parse_args()
    wanted = [chip_named(name) for name in asked.chips] or chips()
    pairs = list(PAIRS)
    if asked.folders:
        target, draft = asked.folders
        pairs = [of_folders(target.name, target, draft)]
    passes = traced(pairs, asked.tau)
    for chip in wanted:
        print(f"## {chip.name}\n")
        for line in table(passes, chip, asked.tau):
            print(line)
        print()


if __name__ == "__main__":
    try:
        main()
    except DFlashError as error:
        sys.exit(f"{error.message} {error.hint}")
