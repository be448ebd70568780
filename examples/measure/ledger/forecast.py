"""Forecasts the tokens per second of a pair on a chip from counted bytes, products and dispatches.

A kernel takes one dispatch, plus the longer of two times: for its bytes at the chip's bandwidth,
and for its product. Caches, heat and other work on the machine are not modelled. Some numbers of
the chips are estimates (chips.toml), so nothing here is a measurement. Covers MLX's own kernels
only.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil

from count.chips import Chip as Gpu
from count.chips import chip_named as gpu_named

from dflash_mlx.errors import UsageError
from dflash_mlx.kernels.dispatch import Kernels

from .passes import TAPS, TracedPair
from .products import SHARES, TILE_ROWS, is_quantised, matrix_rows, reads, rows_of, sides
from .trace import Array, Graph
from .traffic import Cost, costs

WIDTHS = (2, 4, 8)  # rows of a verify pass, besides the drafter's own block
PRODUCTS = ("QuantizedMatmul", "Matmul", "AddMM")


@dataclass(frozen=True, slots=True)
class Chip:
    """Bytes and FLOPs per second of kernels; seconds per dispatch on GPU and host, and per wait."""

    name: str
    bandwidth: float
    flops: float
    free_rows: float
    dispatch: float
    host: float
    sync: float

    @property
    def gpu(self) -> Gpu:
        """What MLX asks of it."""
        return gpu_named(self.name)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Tokens per second after `depth` tokens: of decode steps, and of the best chain of `rows`."""

    depth: int
    plain: float
    drafted: float
    rows: int


@cache
def chips() -> tuple[Chip, ...]:
    """The chips of chips.toml."""
    text = files("ledger").joinpath("chips.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    every = data["all"]
    return tuple(
        Chip(
            name,
            1e9 * every["share"] * one["bandwidth"],
            1e12 * every["busy"] * one["tflops"],
            one["free_rows"],
            1e-6 * one["dispatch"],
            1e-6 * one["host"],
            1e-6 * every["sync"],
        )
        for name, one in data["chips"].items()
    )


def chip_named(name: str) -> Chip:
    """A chip by its name in any case; UsageError if it is unknown."""
    for chip in chips():
        if chip.name.lower() == name.lower():
            return chip
    known = ", ".join(chip.name for chip in chips())
    raise UsageError(f"nothing is known of a chip '{name}'.", hint=f"known are {known}")


def forecast(
    pair: TracedPair, chip: Chip, depths: Sequence[int], tokens: float
) -> Iterator[Forecast]:
    """Yield a forecast for each depth; `tokens` is the acceptance length with whole blocks.

    The acceptance length of narrower rounds assumes that each draft is accepted with one
    probability.
    """
    pair.target.kernels = Kernels()
    block = pair.drafter.config.block_size
    chance = chance_of(tokens, block)
    widths = [rows for rows in WIDTHS if rows < block] + [block]
    for depth in depths:
        step, draft = pair.step(depth), pair.draft(depth)
        plain = 1 / max(gpu_seconds(step, chip), host_seconds(step, chip))
        rates: dict[float, int] = {}
        for rows in widths:
            verify = pair.verify(depth, rows, kept=range(min(rows, TAPS)))
            rates[committed(chance, rows) / round_seconds(draft, verify, chip)] = rows
        yield Forecast(depth, plain, max(rates), rates[max(rates)])


def round_seconds(draft: Graph, verify: Graph, chip: Chip) -> float:
    """Seconds of a round: the host builds the verify pass during the draft and waits once."""
    drafting = max(gpu_seconds(draft, chip), host_seconds(verify, chip))
    return host_seconds(draft, chip) + drafting + gpu_seconds(verify, chip) + chip.sync


def gpu_seconds(graph: Graph, chip: Chip) -> float:
    return sum(
        chip.dispatch * cost.dispatches + kernel_seconds(cost, graph, chip)
        for cost in costs(graph, chip.gpu)
    )


def kernel_seconds(cost: Cost, graph: Graph, chip: Chip) -> float:
    """Seconds of one operation without its dispatches.

    A product of few rows multiplies row by row; one read of the matrix covers `free_rows` of them,
    and from M3 on there are as many as the ledger counts. A product of more rows computes whole
    tiles. Experts are read as the ledger counts them.
    """
    moved = (cost.read + cost.written) / chip.bandwidth
    if cost.op.name not in PRODUCTS or not cost.op.inputs:
        return moved
    once = (cost.read - cost.again + cost.written) / chip.bandwidth
    rows, (inputs, outputs) = rows_of(cost.op, graph.arrays), sides(cost.op, graph.arrays)
    if is_quantised(cost.op) and rows < matrix_rows(chip.gpu, inputs, outputs):
        times = reads(cost.op, graph.arrays, chip.gpu) if chip.gpu.generation >= SHARES else 1
        return once * max(times, rows / chip.free_rows)
    out: Array = graph.arrays[cost.op.outputs[0]]
    padded = TILE_ROWS * ceil(rows / TILE_ROWS) / rows if rows > 1 else 1.0
    return max(once, 2 * out.size * inputs * padded / chip.flops)


def host_seconds(graph: Graph, chip: Chip) -> float:
    """Seconds of the host to build a pass."""
    return chip.host * sum(cost.dispatches for cost in costs(graph, chip.gpu))


def committed(chance: float, rows: int) -> float:
    """Acceptance length of a round if each draft is accepted with this probability."""
    return sum(chance**place for place in range(rows))


def chance_of(tokens: float, rows: int) -> float:
    """The probability for which `committed` returns `tokens`; UsageError if there is none."""
    if not 1 <= tokens <= rows:
        raise UsageError(
            f"a round cannot commit {tokens:g} tokens.", hint=f"give 1 to {rows} for this drafter"
        )
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if committed(middle, rows) < tokens else (low, middle)
    return high
