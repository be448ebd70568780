"""What passes dispatch and move on Macs, counted from shapes alone by the rules of traffic.py.

    .venv/bin/python examples/measure/ledger --pairs Qwen3-8B --chip M1

Nothing is downloaded. For each number of rows, a line of stock mlx-lm's pass and of this package's
verify pass without and with its kernels: `again` are bytes that were read before, `least` those
that a pass cannot do without.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a folder runs with itself in the path

import dflash_mlx  # noqa: F401  # before MLX, whose matrix products it makes fast

# isort: split
from dflash_mlx.device import Chip
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher
from ledger.passes import TracedPair
from ledger.published import published, sheet
from ledger.traffic import costs, least

SIZES = {"": "g", "Pro": "s", "Max": "s", "Ultra": "d"}  # a Pro reports itself as a Max
WAYS = {"mlx-lm": Kernels(), "kernels off": Kernels(), "kernels on": Kernels(MetalLauncher())}
CHIPS = {f"M{n} {size}".strip(): Chip(12 + n, SIZES[size]) for n in range(1, 6) for size in SIZES}


def show(name: str, bits: int, context: int, counts: list[int], chip: str) -> None:
    """Print the passes of a pair."""
    pair = published(name, bits)
    titles = ("read MB", "again MB", "written MB", "least MB", "x least")
    print(f"\n{pair.name} on {chip}, after {context:,} tokens")
    print(f"rows  {'by':<12}{'dispatches':>10}" + "".join(f"{title:>11}" for title in titles))
    traced = TracedPair(pair, Kernels())
    for rows in counts:
        for by, kernels in WAYS.items():
            traced.target.kernels = kernels
            graph = (traced.stock_rows if by == "mlx-lm" else traced.verify)(context, rows)
            parts, must = costs(graph, CHIPS[chip]), least(graph)
            dispatches = sum(part.dispatches for part in parts)
            read, again, written = (
                sum(getattr(part, each) for part in parts) for each in ("read", "again", "written")
            )
            sizes = "".join(f"{size / 1e6:>11,.1f}" for size in (read, again, written, must))
            times = (read + written) / must
            print(f"{rows:>4}  {by:<12}{dispatches:>10,}{sizes}{times:>11.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", nargs="+", choices=[*sheet()], default=["Qwen3-8B"])
    parser.add_argument("--bits", type=int, choices=(4, 8, 16), default=4)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--context", type=int, default=1024, help="tokens before the pass")
    parser.add_argument("--chip", choices=[*CHIPS], default="M4", help="whose kernels MLX takes")
    asked = parser.parse_args()
    for name in asked.pairs:
        show(name, asked.bits, asked.context, asked.rows, asked.chip)


if __name__ == "__main__":
    main()
