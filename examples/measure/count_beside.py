"""Hold the ledger against the count: how far both are apart for a pass of stock mlx-lm.

    .venv/bin/python examples/measure/count_beside.py [--pair Qwen3-8B] [--far]

Four targets in 4 bits, three chips and six widths after 1,024 tokens: 72 points. A difference is
ledger / count - 1. Command buffers are not judged, because they depend on the order in which MLX
runs what does not depend on each other, and neither follows it. Nothing was measured on a Mac.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from count.chips import Chip
from count.models import MODELS, Model, model_named
from count.passes import CONTEXT, COUNTED, ROWS, Count, count
from ledger.passes import TracedPair
from ledger.published import LARGE, PAIRS
from ledger.report import STOCK, Line

from dflash_mlx.kernels.dispatch import Kernels

NEAR = 0.05  # the largest difference that is agreement
COLUMNS = ("dispatches", "read", "written", "least")
HEADER = """
| model | chip | rows | dispatches | read | written | least | buffers |
|---|---|--:|--:|--:|--:|--:|--:|"""


@dataclass(frozen=True, slots=True)
class Point:
    """One pass by both."""

    model: Model
    chip: Chip
    rows: int
    counted: Count
    ledger: Line

    @property
    def apart(self) -> tuple[float, ...]:
        """The differences, in the order of COLUMNS."""
        return tuple(
            getattr(self.ledger, name) / getattr(self.counted, name) - 1 for name in COLUMNS
        )

    def __str__(self) -> str:
        cells = [f"{one:+.1%}" for one in self.apart]
        cells.append(f"{self.ledger.buffers} / {self.counted.buffers}")
        return f"| {self.model.name} | {self.chip.name} | {self.rows} | {' | '.join(cells)} |"


def pair_of(model: Model) -> TracedPair:
    """The ledger's pair of this target."""
    (found,) = (pair for pair in (*PAIRS, LARGE) if pair.name == f"{model.name}-4bit")
    return TracedPair(found, Kernels())


def beside(models: Sequence[Model]) -> Iterator[Point]:
    """Every point of these models."""
    for model in models:
        pair = pair_of(model)
        for rows in ROWS:
            graph = pair.stock_rows(CONTEXT, rows)
            for chip in COUNTED:
                line = Line.of(f"verify {rows}", CONTEXT, STOCK, graph, chip)
                yield Point(model, chip, rows, count(model, chip, rows), line)


def main() -> int:
    """Print the differences; 1 if any is more than 5 %."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pair", help="one target, like Qwen3-8B; all four by default")
    parser.add_argument("--far", action="store_true", help="only points further apart than 5 %%")
    asked = parser.parse_args()
    try:
        models = [model_named(asked.pair)] if asked.pair else MODELS
    except ValueError as error:
        parser.error(str(error))
    print(HEADER.strip())
    near, every = 0, 0
    for point in beside(models):
        agrees = all(abs(one) <= NEAR for one in point.apart)
        near += agrees
        every += 1
        if not (asked.far and agrees):
            print(point, flush=True)
    print(f"\n{near} of {every} points agree within 5 %.")
    return int(near < every)


if __name__ == "__main__":
    sys.exit(main())
