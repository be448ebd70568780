"""Forecast the speed of pairs on one, two and four Macs, with and without DFlash. Not measured.

The ledger counts one rank's share of a pass from the shapes. Each sum over the ranks takes the time
that others measured between two Macs; four Macs are assumed to be equally fast. The packet of each
round is sent over TCP, and the host waits for tokens before it. With `--split layers` the ranks
compute one after another, with a sum after each stage and each tapped layer. Example:

    .venv/bin/python examples/measure/several_macs.py --chip "M4 Max"
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ledger.forecast import (
    WIDTHS,
    Chip,
    chance_of,
    chip_named,
    committed,
    forecast,
    gpu_seconds,
    host_seconds,
)
from ledger.passes import TAPS, TracedPair
from ledger.published import PAIRS, Published
from ledger.trace import Graph

from dflash_mlx.kernels.dispatch import Kernels

BYTES = 6.2e9  # per second, for a sum over Thunderbolt 5
MESH, RING = 30e-6, 300e-6  # seconds of an empty sum by RDMA, and by TCP
PACKET = 300e-6  # seconds of a small message by TCP over Thunderbolt
DEPTH = 1024
SHARED = (
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
HEAD = """# Two and four Macs: a forecast

By `examples/measure/several_macs.py`: {chip} each, {depth:,} tokens of context, {tokens:g} tokens
a whole block of drafts, 4-bit targets, drafters of 8 bits on rank 0. **Nobody has measured this.**
A sum over the ranks is taken as 30 µs and 6.2 GB/s, which others measured between two Macs by RDMA
over Thunderbolt 5; by the backend ring it is about ten times 30 µs. What is known of chips is
partly estimated (`examples/measure/ledger/chips.toml`). The last columns are the share of the time
that sums take.

Where sums are slow, whole layers are the better share; where they are quick, every layer."""
COLUMNS = """
| pair | Macs | plain tok/s | DFlash tok/s | gain | rows | sums of a plain step | of a round |
|---|--:|--:|--:|--:|--:|--:|--:|"""
HEADINGS = (
    (MESH, "heads", "Every layer shared (`--split heads`), by RDMA"),
    (RING, "heads", "The same by the backend ring"),
    (RING, "layers", "Whole layers shared out (`--split layers`), by the backend ring"),
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second, the rows of the best chain, and the shares of time spent in sums."""

    plain: float
    drafted: float
    rows: int
    plain_share: float
    round_share: float


def of_rank(pair: Published, ranks: int) -> Published:
    """The pair with the shapes of one of `ranks` ranks; the drafter is not split."""
    target: dict[str, Any] = dict(pair.target)
    for key in SHARED:
        if count := target.get(key):
            assert count % ranks == 0, (pair.name, key, ranks)
            target[key] = count // ranks
    return replace(pair, target=target)


@dataclass(frozen=True, slots=True)
class Sums:
    """The number of sums over the ranks in a pass, and the seconds of an empty sum."""

    count: int
    seconds: float

    def of(self, pair: Published, rows: int) -> float:
        """Seconds of all sums of a pass."""
        return self.count * (self.seconds + 2 * rows * pair.target["hidden_size"] / BYTES)


def on_ranks(
    pair: Published, ranks: int, chip: Chip, tokens: float, split: str, seconds: float
) -> Rates:
    """The rates of a pair on several machines that share heads or layers."""
    heads = split == "heads"
    own = of_rank(pair, ranks) if heads else pair
    traced = TracedPair(own, Kernels(), 8)
    taps = len(traced.drafter.config.target_layer_ids)
    sums = Sums(2 * pair.target["num_hidden_layers"] if heads else ranks + taps, seconds)
    block = traced.drafter.config.block_size
    chance, draft = chance_of(tokens, block), traced.draft(DEPTH)
    step = whole_pass(traced.step(DEPTH), chip) + sums.of(pair, 1)
    drafting = host_seconds(draft, chip) + gpu_seconds(draft, chip) + chip.sync
    found: dict[float, tuple[int, float]] = {}
    for rows in (*(width for width in WIDTHS if width < block), block):
        verify = traced.verify(DEPTH, rows, kept=range(min(rows, TAPS)))
        spent = drafting + whole_pass(verify, chip) + sums.of(pair, rows)
        found[committed(chance, rows) / spent] = rows, sums.of(pair, rows) / spent
    rows, share = found[max(found)]
    return Rates(1 / step, max(found), rows, sums.of(pair, 1) / step, share)


def whole_pass(graph: Graph, chip: Chip) -> float:
    """Seconds of a pass without sums, from packet to tokens; the host builds nothing ahead."""
    return PACKET + max(gpu_seconds(graph, chip), host_seconds(graph, chip)) + chip.sync


def rows_of(
    pair: Published, chip: Chip, tokens: float, split: str, seconds: float
) -> Iterator[str]:
    """The rows of the table for a pair."""
    (one,) = forecast(TracedPair(pair, Kernels(), 8), chip, [DEPTH], tokens)
    each = [(1, Rates(one.plain, one.drafted, one.rows, 0, 0))]
    each += [(n, on_ranks(pair, n, chip, tokens, split, seconds)) for n in (2, 4)]
    for ranks, rates in each:
        yield (
            f"| {pair.name} | {ranks} | {rates.plain:.0f} | {rates.drafted:.0f} "
            f"| {rates.drafted / rates.plain:.2f} | {rates.rows} "
            f"| {100 * rates.plain_share:.0f} % | {100 * rates.round_share:.0f} % |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chip", default="M4 Max")
    parser.add_argument("--tokens", type=float, default=5.0)
    options = parser.parse_args()
    chip = chip_named(options.chip)
    print(HEAD.format(chip=chip.name, depth=DEPTH, tokens=options.tokens))
    for seconds, split, heading in HEADINGS:
        print(f"\n## {heading}\n{COLUMNS}")
        for pair in PAIRS:
            if pair.target["model_type"].startswith("qwen"):
                for line in rows_of(pair, chip, options.tokens, split, seconds):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
