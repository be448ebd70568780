"""What the experts of a mixture cost in a pass, counted for stock MLX and for `grouped_experts`.

    .venv/bin/python examples/measure/experts_table.py [gpt-oss-20b] [--rows 4 8] [--chip M4]

Each row chooses its experts as if each were as likely as another; rows of one text are more alike,
so that more of them share an expert. Sizes are GB (10^9 bytes) of experts that a pass reads, stock
and by the kernel, and of the different ones. The chip's caches, which may serve repeated reads, are
left out. Dispatches are those of the whole pass after 1,024 tokens, without other kernels of this
package. Nobody measured it on a Mac.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

from count.chips import Chip, chip_named
from ledger.measured import SHAPES
from ledger.passes import TracedPair
from ledger.published import PAIRS, Published, drafter
from ledger.traffic import CHIP, GROUPED, costs, is_mixture, picks, weights_of

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher

ROWS = (1, 2, 4, 8, 12, 16, 32)
CONTEXT = 1024
GB = 1e9
HYBRID, HYBRID_DRAFTER, TAPS = SHAPES["Qwen3.6-35B-A3B"]
HEADER = """
| model | rows | stock GB | grouped GB | different GB | saved | dispatches | grouped |
|---|--:|--:|--:|--:|--:|--:|--:|"""
MIXTURES = (
    *(pair for pair in PAIRS if pair.name in ("Qwen3-Coder-30B-A3B-4bit", "gpt-oss-20b")),
    Published("Qwen3.6-35B-A3B-4bit", HYBRID, drafter(HYBRID_DRAFTER, HYBRID, TAPS, 16)),
)


def experts(pair: TracedPair, rows: int, chip: Chip) -> tuple[float, float, int]:
    """Bytes of experts that a pass reads, those of different ones, and the pass's dispatches."""
    graph = pair.verify(CONTEXT, rows)
    read = different = 0.0
    for op in graph.operations:
        if is_mixture(op):
            size = sum(graph.arrays[name].nbytes for name in dict.fromkeys(weights_of(op)))
            picked, distinct, count = picks(op, graph.arrays)
            read += size * picked / count
            different += size * distinct / count
    return read, different, sum(cost.dispatches for cost in costs(graph, chip))


def table(pairs: Sequence[Published], rows: Sequence[int], chip: Chip) -> Iterator[str]:
    """The lines of the table. One row is stock's: the kernel computes several, see linear.py."""
    yield HEADER.strip()
    grouped = Kernels(MetalLauncher(), on=frozenset({GROUPED}))
    for published in pairs:
        pair = TracedPair(published, Kernels())
        for count in rows:
            pair.target.kernels = Kernels()
            read, _, dispatches = experts(pair, count, chip)
            pair.target.kernels = grouped
            ours, different, fewer = experts(pair, count, chip)
            yield (
                f"| {published.name} | {count} | {read / GB:.2f} | {ours / GB:.2f} "
                f"| {different / GB:.2f} | {1 - ours / read:.0%} | {dispatches:,} | {fewer:,} |"
            )


def main() -> int:
    """Print the table."""
    names = [pair.name for pair in MIXTURES]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=", ".join(names))
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--chip", default=CHIP.name, help="whose kernels MLX takes (%(default)s)")
    asked = parser.parse_args()
    if unknown := set(asked.pairs) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    try:
        chip = chip_named(asked.chip)
    except ValueError as error:
        parser.error(str(error))
    pairs = [pair for pair in MIXTURES if not asked.pairs or pair.name in asked.pairs]
    for line in table(pairs, asked.rows, chip):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
