"""Count what one target pass costs on a Mac, from MLX's dispatch code alone.

    .venv/bin/python examples/measure/count_table.py [--chip M1] [--pair Qwen3-8B] [--bf16]

Rows are the tokens of the pass, after 1,024 tokens of context; weights have 4 bits in groups of 64.
Bytes are in MB (10^6). A command buffer is what MLX commits at once. The least is what any kernel
has to read. Nobody measured it on a Mac.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from count.chips import Chip, chip_named
from count.models import MODELS, Model, model_named
from count.passes import COUNTED, ROWS, count

MB = 1e6
HEADER = """
| model | chip | rows | dispatches | read | written | command buffers | least read |
|---|---|--:|--:|--:|--:|--:|--:|"""


def table(models: Sequence[Model], chips: Sequence[Chip]) -> Iterator[str]:
    """The lines of the table."""
    yield HEADER.strip()
    for model in models:
        weights = "bf16" if model.bits is None else f"{model.bits}-bit"
        for chip in chips:
            for rows in ROWS:
                one = count(model, chip, rows)
                yield (
                    f"| {model.name} {weights} | {chip.name} | {rows} | {one.dispatches:,} "
                    f"| {one.read / MB:,.0f} | {one.written / MB:,.0f} | {one.buffers} "
                    f"| {one.least / MB:,.0f} |"
                )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chip", help="one chip, like M1 or 'M4 Max'; M1, M4 and M5 by default")
    parser.add_argument("--pair", help="the target of one pair, like Qwen3-8B; four by default")
    parser.add_argument("--bf16", action="store_true", help="dense models in bfloat16 instead")
    asked = parser.parse_args()
    try:
        chips = [chip_named(asked.chip)] if asked.chip else COUNTED
        models = [model_named(asked.pair)] if asked.pair else MODELS
    except ValueError as error:
        parser.error(str(error))
    if asked.bf16:
        models = [replace(model, bits=None) for model in models if not model.mixture]
    for line in table(models, chips):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
