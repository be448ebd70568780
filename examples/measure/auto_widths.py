"""Which width the mode auto picks on simulated Macs, and what it brings, by length of context.

    .venv/bin/python examples/measure/auto_widths.py [--chip "M4 Max"] [--pair Qwen3-8B] [--bits 4]
    .venv/bin/python examples/measure/auto_widths.py --count       counts the costs again first

The policy is the package's own, with costs that its own survey measures on a simulated clock.
Seconds of passes are counted (ledger/raced.py), by rows and context, with the kernels that win the
race. Drafts are drawn: about 2, 4.3 or 7 tokens a round of 16 rows. Nobody measured any of it.

A cell has the rows that auto commits most tokens with (1 is plain decoding), and its speed over
plain decoding's and over that of the best fixed width. First answers are left out. All takes some
minutes, counting the costs three quarters of an hour.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from ledger.recorded import CONTEXTS, FILE, MEMORY, NAMES, Recorded, count, load, write  # noqa: E402

from counted_macs import HIGH, LOW, MIDDLE, Outcome, auto_at  # noqa: E402  # isort: skip

DRAFTERS = {"2": LOW, "4.3": MIDDLE, "7": HIGH}
LEAST = 0.96, 0.95  # of plain decoding, and of the best fixed width


def cell(found: Outcome) -> str:
    """One outcome: rows, speed over plain decoding's, speed over the best fixed width's."""
    return f"{found.rows}: {found.over_plain:.2f}×, {found.over_best:.2f}"


def table(macs: Sequence[Recorded], tau: str, every: list[Outcome]) -> Iterator[str]:
    """The lines for drafts of one quality; adds the outcomes to `every`."""
    yield f"\n{tau} tokens a round of 16 rows\n"
    yield f"| chip | pair | bits | {' | '.join(f'{depth:,}' for depth in CONTEXTS)} |"
    yield f"|---|---|--:|{'--:|' * len(CONTEXTS)}"
    for mac in macs:
        cells = [mac.chip, mac.pair, str(mac.bits)]
        for depth in CONTEXTS:
            if depth not in mac.costs:
                cells.append("")
                continue
            every.append(auto_at(mac, depth, DRAFTERS[tau]))
            cells.append(cell(every[-1]))
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the tables; 1 if a bound is broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chip", choices=MEMORY)
    parser.add_argument("--pair", choices=NAMES)
    parser.add_argument("--bits", type=int, choices=(4, 8, 16))
    parser.add_argument("--tau", choices=DRAFTERS)
    parser.add_argument("--count", action="store_true", help="count the costs again and keep them")
    asked = parser.parse_args()
    if asked.count:
        write(count(), Path(__file__).parent / "ledger" / FILE)
    macs = [
        mac
        for mac in load()
        if asked.chip in (None, mac.chip)
        and asked.pair in (None, mac.pair)
        and asked.bits in (None, mac.bits)
    ]
    every: list[Outcome] = []
    print("Simulated Macs with counted costs. Nobody measured any of it.", flush=True)
    for tau in [asked.tau] if asked.tau else DRAFTERS:
        for line in table(macs, tau, every):
            print(line, flush=True)
    plain, best = min(one.over_plain for one in every), min(one.over_best for one in every)
    print(f"\n{len(every)} cells; the least is {plain:.3f} of plain, {best:.3f} of the best width.")
    short = sum(one.over_best < LEAST[1] for one in every)
    print(f"{short} are more than 5 % below the best width.")
    return int(plain < LEAST[0] or short > 0)


if __name__ == "__main__":
    sys.exit(main())
