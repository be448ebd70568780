"""What the passes of published pairs dispatch and move, counted from their shapes: a table.

Nothing is downloaded or computed, and nothing here is a time. `ledger/traffic.py` has the rules.
`count_beside.py` holds it against a second count.
Example: `.venv/bin/python examples/measure/ledger_table.py Qwen3-8B-4bit --context 1024 --chip M1`
"""

import argparse

from count.chips import chip_named
from ledger.passes import TracedPair
from ledger.published import PAIRS
from ledger.report import HEAD, ledger
from ledger.traffic import CHIP

from dflash_mlx.kernels.dispatch import Kernels


def main() -> None:
    """Print one table per pair."""
    names = [pair.name for pair in PAIRS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=", ".join(names))
    parser.add_argument("--context", nargs="+", type=int, default=[1024, 8192, 32_768])
    parser.add_argument("--chip", default=CHIP.name, help="whose kernels MLX takes (%(default)s)")
    options = parser.parse_args()
    try:
        chip = chip_named(options.chip)
    except ValueError as error:
        parser.error(str(error))
    if unknown := set(options.pairs) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    for pair in PAIRS:
        if not options.pairs or pair.name in options.pairs:
            print(f"\n{pair.name} on {chip.name}\n{HEAD}")
            for line in ledger(TracedPair(pair, Kernels()), options.context, chip):
                print(line, flush=True)


if __name__ == "__main__":
    main()
