"""What is known of chips (chips.toml), and the seconds of a kernel on one.

A kernel takes a share of a dispatch, plus the longer of two times: for its bytes at a share of the
chip's bandwidth, and for its product at a share of the chip's FLOPs. The shares are fitted to what
others measured (errors.py). Caches, heat and other work on the machine are not modelled.
"""

from dataclasses import dataclass

from dflash_mlx import device
from dflash_mlx.errors import UsageError
from dflash_mlx.hub.forecast import sheet
from dflash_mlx.kernels.row_limits import WIDE_GENERATION

MOVE, VECTOR, MATRIX = "move", "vector", "matrix"
# Kinds of work that no fit covers, and the share of a chip's FLOPs that each gets: the middle of
# what mlx-dspark measured on an M4 Pro, with MLX's kernels and with its own, which have nearly the
# design of ours.
OURS = "ours"  # 17408 x 5120 in 4 bits, 5 to 16 rows: 0.313 to 0.533 ms
KEYS_VECTOR = "attention of few rows"  # 32 heads of 128, 8 rows, 32k keys: 3.05 ms
KEYS_MATRIX = "attention in tiles"  # the same with 16 rows 4.7 ms; 24 of 256: 7.5 and 8.0 ms
KEYS_OURS = "our attention"  # 0.96 and 2.0 ms; 24 heads of 256: 1.56 and 3.3 ms
SHARES = {OURS: 0.575, KEYS_VECTOR: 0.164, KEYS_MATRIX: 0.425, KEYS_OURS: 0.5}
SIZES = {"": "g", "Pro": "s", "Max": "s", "Ultra": "d"}  # a Pro reports itself as a Max


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel of this kind: bytes it moves, and FLOPs of its product with whole tiles."""

    kind: str
    moved: int
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Chip:
    """Bytes per second; FLOPs per second at best and of MLX's products of few rows and in tiles;
    seconds per dispatch on GPU and host, and per wait. `gpu`: what MLX asks to pick its kernels.
    """

    name: str
    gpu: device.Chip
    bandwidth: float
    flops: float
    vector: float
    matrix: float
    dispatch: float
    host: float
    sync: float

    def seconds(self, dispatches: float, work: Work) -> float:
        """Seconds of a kernel, or of several without a product."""
        rates = {VECTOR: self.vector, MATRIX: self.matrix}
        rate = rates.get(work.kind) or SHARES.get(work.kind, 0.0) * self.flops
        moved = work.moved / self.bandwidth
        return self.dispatch * dispatches + (max(moved, work.flops / rate) if rate else moved)


def gpu_of(name: str) -> device.Chip:
    """The GPU of a chip, whose name may say in brackets how many cores it has."""
    number, _, size = name.partition(" (")[0].partition(" ")
    return device.Chip(12 + int(number.removeprefix("M")), SIZES[size])


def chips() -> tuple[Chip, ...]:
    """The chips of chips.toml."""
    fitted, found = sheet()["fitted"], []
    for name, one in sheet()["chips"].items():
        gpu, flops = gpu_of(name), 1e12 * one["tflops"]
        share = fitted["share" if gpu.generation >= WIDE_GENERATION else "early"]
        found.append(
            Chip(
                name,
                gpu,
                bandwidth=1e9 * one["bandwidth"] * share,
                flops=flops,
                vector=flops * fitted["vector"],
                matrix=flops * fitted["matrix"],
                dispatch=1e-6 * one["dispatch"] * fitted["gap"],
                host=1e-6 * one["host"],
                sync=1e-6 * fitted["wait"],
            )
        )
    return tuple(found)


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
