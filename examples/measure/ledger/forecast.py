"""Forecasts the tokens per second of a pair on a chip from counted bytes, products and dispatches.

A kernel takes a share of a dispatch, plus the longer of two times: for its bytes at a share of the
chip's bandwidth, and for its product at a share of the chip's FLOPs. The shares are fitted to what
others measured (fit.py). Caches, heat and other work on the machine are not modelled. Some numbers
of the chips are estimates (chips.toml), so nothing here is a measurement. Covers MLX's own kernels
only.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from count.chips import Chip as Gpu
from count.chips import chip_named as gpu_named

from dflash_mlx.errors import UsageError
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.row_limits import WIDE_GENERATION

from .passes import TAPS, TracedPair
from .tally import MATRIX, VECTOR, Tally, Work, tally
from .trace import Graph

WIDTHS = (2, 4, 8)  # rows of a verify pass, besides the drafter's own block


@dataclass(frozen=True, slots=True)
class Factors:
    """What is fitted. Shares of the bandwidth before M3 and from M3 on, of a dispatch, and of the
    FLOPs that vector and matrix products get; and microseconds of a round's wait, in any engine and
    in Aryagm's.
    """

    early: float
    share: float
    gap: float
    vector: float
    matrix: float
    wait: float
    slow: float


@dataclass(frozen=True, slots=True)
class Chip:
    """Bytes and FLOPs per second of kernels; seconds per dispatch on GPU and host, and per wait."""

    name: str
    bandwidth: float
    vector: float
    matrix: float
    dispatch: float
    host: float
    sync: float

    @property
    def gpu(self) -> Gpu:
        """What MLX asks of it."""
        return gpu_of(self.name)


def gpu_of(name: str) -> Gpu:
    """The GPU of a chip, whose name may say in brackets how many cores it has."""
    return gpu_named(name.partition(" (")[0])


@dataclass(frozen=True, slots=True)
class Passes:
    """What a forecast counts after `depth` tokens; the last of `verifies`, by rows, is a block."""

    depth: int
    step: Graph
    draft: Graph
    verifies: Mapping[int, Graph]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Tokens per second after `depth` tokens: of decode steps, and of the best chain of `rows`."""

    depth: int
    plain: float
    drafted: float
    rows: int


@cache
def sheet() -> dict[str, Any]:
    """The tables of chips.toml."""
    return tomllib.loads(files("dflash_mlx.hub").joinpath("chips.toml").read_text(encoding="utf-8"))


def fitted() -> Factors:
    """The factors of chips.toml."""
    return Factors(**sheet()["fitted"])


def chips(factors: Factors | None = None) -> tuple[Chip, ...]:
    """The chips of chips.toml, by default with its factors."""
    got = factors or fitted()
    return tuple(
        Chip(
            name,
            1e9
            * one["bandwidth"]
            * (got.share if gpu_of(name).generation >= WIDE_GENERATION else got.early),
            1e12 * one["tflops"] * got.vector,
            1e12 * one["tflops"] * got.matrix,
            1e-6 * one["dispatch"] * got.gap,
            1e-6 * one["host"],
            1e-6 * got.wait,
        )
        for name, one in sheet()["chips"].items()
    )


def chip_named(name: str) -> Chip:
    """A chip by its name in any case, also as in "Apple M4 Max" and "m4max".

    UsageError if it is unknown.
    """

    def letters(one: str) -> str:
        return "".join(one.lower().split()).removeprefix("apple")

    for chip in chips():
        if letters(chip.name) == letters(name):
            return chip
    known = ", ".join(chip.name for chip in chips())
    raise UsageError(f"nothing is known of a chip '{name}'.", hint=f"known are {known}")


def passes_of(pair: TracedPair, depth: int) -> Passes:
    """Trace the passes of a pair with MLX's own kernels, once for all chips."""
    pair.target.kernels = Kernels()
    block = pair.drafter.block_size
    widths = [rows for rows in WIDTHS if rows < block] + [block]
    verifies = {rows: pair.verify(depth, rows, kept=range(min(rows, TAPS))) for rows in widths}
    return Passes(depth, pair.step(depth), pair.draft(depth), verifies)


def forecast(passes: Passes, chip: Chip, tokens: float) -> Forecast:
    """The forecast of passes on a chip; `tokens` is the acceptance length with whole blocks.

    The acceptance length of narrower rounds assumes that each draft is accepted with one
    probability. UsageError if no whole block commits so many tokens.
    """
    chance = chance_of(tokens, max(passes.verifies))
    plain = 1 / step_of(tally(passes.step, chip.gpu), chip)
    rates = {
        committed(chance, rows) / round_seconds(passes.draft, verify, chip): rows
        for rows, verify in passes.verifies.items()
    }
    return Forecast(passes.depth, plain, max(rates), rates[max(rates)])


def round_seconds(draft: Graph, verify: Graph, chip: Chip) -> float:
    """Seconds of a round."""
    return round_of(tally(draft, chip.gpu), tally(verify, chip.gpu), chip)


def round_of(draft: Tally, verify: Tally, chip: Chip) -> float:
    """Seconds of a round: the host builds the verify pass during the draft and waits once."""
    drafting = max(seconds(draft, chip), chip.host * verify.dispatches)
    return chip.host * draft.dispatches + drafting + seconds(verify, chip) + chip.sync


def step_of(step: Tally, chip: Chip) -> float:
    """Seconds of a decode step: the host builds the next one meanwhile."""
    return max(seconds(step, chip), chip.host * step.dispatches)


def gpu_seconds(graph: Graph, chip: Chip) -> float:
    return seconds(tally(graph, chip.gpu), chip)


def seconds(counted: Tally, chip: Chip) -> float:
    """Seconds of a pass on the GPU."""
    kernels = sum(count * work_seconds(work, chip) for work, count in counted.works)
    return chip.dispatch * counted.dispatches + kernels


def work_seconds(work: Work, chip: Chip) -> float:
    """Seconds of one kernel without its dispatches: for its bytes or its product."""
    moved = work.moved / chip.bandwidth
    rate = {VECTOR: chip.vector, MATRIX: chip.matrix}.get(work.kind)
    return max(moved, work.flops / rate) if rate else moved


def host_seconds(graph: Graph, chip: Chip) -> float:
    """Seconds of the host to build a pass."""
    return chip.host * tally(graph, chip.gpu).dispatches


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
