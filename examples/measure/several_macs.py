"""Forecast the speed of pairs whose target fits no single Mac of a group. Not measured.

The ledger counts one rank's share of a pass from the shapes. Each sum over the ranks takes the time
of the connection and of the handover between GPU and CPU, which makes MLX's sums; four Macs are
assumed to be as fast as two. The packet of each round is sent over TCP, and the host waits for
tokens before it. With `--split layers` the ranks compute one after another, with a sum after each
stage and each tapped layer. Prints the tables of examples/guide/several_macs.md:

    .venv/bin/python examples/measure/several_macs.py
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
    gpu_seconds,
    host_seconds,
)
from ledger.passes import TAPS, TracedPair
from ledger.published import HYBRID, Published, drafter, shape
from ledger.trace import Graph

from dflash_mlx.kernels.dispatch import Kernels

BYTES = 6.2e9  # per second, for a sum by RDMA over Thunderbolt 5; measured: jundot/omlx#3118
# Seconds of an empty sum: of the connection (by RDMA 27 to 31 µs, measured: jundot/omlx#3118; by
# TCP about ten times that, ml-explore/mlx#2808), and 30 to 70 µs, an estimate, for the commit of
# the GPU's work and the events before and after the sum.
RDMA = (60e-6, 100e-6)
RING = (350e-6,)
PACKET = 300e-6  # seconds of a small message by TCP over Thunderbolt; estimate
DEPTH = 1024
SHARED = (
    "num_attention_heads",
    "num_key_value_heads",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "linear_num_key_heads",
    "linear_num_value_heads",
)


def mixture(hidden: int, layers: int, experts: int, active: int) -> dict[str, Any]:
    """The config of a Qwen3.5 with experts."""
    return {
        **HYBRID,
        **shape(hidden, 0, layers, 32, 2, 256),
        "model_type": "qwen3_5_moe",
        "linear_num_value_heads": 64,
        "num_experts": experts,
        "num_experts_per_tok": active,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
        "norm_topk_prob": True,
    }


def pair_of(name: str, target: dict[str, Any], inner: int, bits: int) -> Published:
    """A pair with the drafter of six layers that all Qwen3.5 have."""
    sizes = shape(target["hidden_size"], inner, 6, 32, 8, 128)
    return Published(name, target, drafter(sizes, target, 8, 16, sliding_window=4096), bits=bits)


MIDDLE = mixture(3072, 48, 256, 8)
LARGE = mixture(4096, 60, 512, 10)


@dataclass(frozen=True, slots=True)
class Group:
    """A pair, and Macs of which no single one holds its target; `memory` in GB each."""

    pair: Published
    ranks: int
    chip: str
    memory: int


GROUPS = (
    Group(pair_of("Qwen3.5-122B-A10B-4bit", MIDDLE, 9216, 4), 2, "M4 Max", 64),
    Group(pair_of("Qwen3.5-122B-A10B-8bit", MIDDLE, 9216, 8), 2, "M4 Max", 128),
    Group(pair_of("Qwen3.5-397B-A17B-4bit", LARGE, 12_288, 4), 4, "M4 Max", 128),
    Group(pair_of("Qwen3.5-397B-A17B-4bit", LARGE, 12_288, 4), 2, "M3 Ultra", 256),
)
WAYS = (("heads", "RDMA", RDMA), ("heads", "ring", RING), ("layers", "ring", RING))
COLUMNS = """\
| split, by | a sum | plain tok/s | DFlash tok/s | gain | rows | sums of a plain step | of a round |
|---|--:|--:|--:|--:|--:|--:|--:|"""


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
    target = dict(pair.target)
    for key in SHARED:
        target[key] = max(1, target[key] // ranks)
    return replace(pair, target=target)


class Passes:
    """The passes of a rank, by rows, and their seconds without sums."""

    def __init__(self, pair: Published, chip: Chip):
        traced = TracedPair(pair, Kernels(), 8)
        config = traced.drafter.config
        self.block = config.block_size
        self.taps = len(config.target_layer_ids)
        draft = traced.draft(DEPTH)
        self.draft = host_seconds(draft, chip) + gpu_seconds(draft, chip) + chip.sync
        widths = (*(width for width in WIDTHS if width < self.block), self.block)
        self.verify = {
            rows: whole_pass(traced.verify(DEPTH, rows, kept=range(min(rows, TAPS))), chip)
            for rows in widths
        }
        self.step = whole_pass(traced.step(DEPTH), chip)


def whole_pass(graph: Graph, chip: Chip) -> float:
    """Seconds of a pass without sums, from packet to tokens; the host builds nothing ahead."""
    return PACKET + max(gpu_seconds(graph, chip), host_seconds(graph, chip)) + chip.sync


def rates(passes: Passes, tokens: float, count: int, seconds: float, row_bytes: int) -> Rates:
    """The rates with `count` sums in a pass, each of some seconds and of its rows' bytes."""

    def sums(rows: int) -> float:
        return count * (seconds + rows * row_bytes / BYTES)

    step = passes.step + sums(1)
    chance = chance_of(tokens, passes.block)
    found: dict[float, tuple[int, float]] = {}
    for rows, verify in passes.verify.items():
        spent = passes.draft + verify + sums(rows)
        found[committed(chance, rows) / spent] = rows, sums(rows) / spent
    rows, share = found[max(found)]
    return Rates(1 / step, max(found), rows, sums(1) / step, share)


def lines(group: Group, tokens: float) -> Iterator[str]:
    """The rows of a group's table."""
    pair = group.pair
    chip = chip_named(group.chip)
    by_split = {
        "heads": Passes(of_rank(pair, group.ranks), chip),
        "layers": Passes(pair, chip),
    }
    for split, link, times in WAYS:
        passes = by_split[split]
        stages = group.ranks + passes.taps
        count = 2 * pair.target["num_hidden_layers"] if split == "heads" else stages
        for seconds in times:
            found = rates(passes, tokens, count, seconds, 2 * pair.target["hidden_size"])
            yield (
                f"| {split}, {link} | {1e6 * seconds:.0f} µs | {found.plain:.0f} "
                f"| {found.drafted:.0f} | {found.drafted / found.plain:.2f} | {found.rows} "
                f"| {100 * found.plain_share:.0f} % | {100 * found.round_share:.0f} % |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=float, default=5.0, help="of a whole block of drafts")
    options = parser.parse_args()
    for group in GROUPS:
        macs = f"{group.ranks} × {group.chip}, {group.memory} GB each"
        print(f"\n### {group.pair.name} on {macs}\n\n{COLUMNS}")
        for line in lines(group, options.tokens):
            print(line, flush=True)


if __name__ == "__main__":
    main()
