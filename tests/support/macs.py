"""Simulated Macs and pairs as rows of two tables, and processes whose latencies they determine.

A Mac has a memory bandwidth, a rule for how MLX multiplies few rows, and a host that builds passes
while the GPU computes. A pair has bytes that every pass reads, and experts of which a pass reads
those that its rows choose. The row limits are MLX's own. All other numbers are rough guesses of the
right size: the tests only require that a policy is near the best on every such machine. The costs
of `counted_macs` are counted instead.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from simulated import Process, TrueLatencies, limits_of, vector_reads

from dflash_mlx.engine.profiler import Job, survey
from dflash_mlx.policy.latency import Latencies
from dflash_mlx.types import Plan

GB = 1e9
LIBRARIES = (1, 2, 4, 8, 12, 16)  # row counts of kernels; other counts use the next larger one
WIDE = 1.3  # time of a draft relative to one read of its bfloat16 weights
SYNC = 0.0003  # seconds until the host sees what the GPU has done
PARTS = 6  # parts of a pass: the GPU computes each while the host builds the next
TIMED = 4  # more decode steps that a survey runs to time one


@dataclass(frozen=True)
class Chip:
    """`bandwidth`: bytes per second. `free`: rows that are computed during one read of the weights.

    Below `limits` rows MLX multiplies row by row (vectors). From M3 on (`wide`) it then reads the
    matrix once per five rows. From `limits` rows on, 32 rows take the time of `tile` reads.
    `dispatch`: seconds per layer for kernels apart from reading. `host`: seconds to build one layer
    of a pass.
    """

    name: str
    bandwidth: float
    free: float
    limits: tuple[int, int, int]
    tile: float
    dispatch: float
    host: float
    wide: bool = True


@dataclass(frozen=True)
class Pair:
    """Bytes: `dense` read by every pass, `routed` of all experts, `draft` of the bfloat16 drafter.

    Each row chooses `chosen` of the `experts` of every layer. `shares`: shares of `dense` in
    matrices of up to 2048 rows and columns, up to 4096, and larger.
    """

    name: str
    layers: int
    dense: float
    shares: tuple[float, float, float]
    draft: float
    block: int = 16
    routed: float = 0.0
    experts: int = 1
    chosen: int = 1
    draft_layers: int = 5


CHIPS = [
    Chip("M1", 60 * GB, 1.6, limits_of("g13g"), 5.0, 60e-6, 90e-6, wide=False),
    Chip("M2 Pro", 180 * GB, 2.0, limits_of("g14s"), 4.4, 40e-6, 80e-6, wide=False),
    Chip("M4", 108 * GB, 2.4, limits_of("g16g"), 4.0, 30e-6, 60e-6),
    Chip("M4 Max", 490 * GB, 3.0, limits_of("g16s"), 3.6, 20e-6, 55e-6),
    Chip("M3 Ultra", 700 * GB, 3.5, limits_of("g15d"), 2.2, 20e-6, 60e-6),
    Chip("M5 Max", 550 * GB, 4.0, limits_of("g17s"), 2.6, 15e-6, 50e-6),
]
PAIRS = [
    Pair("dense 8B", 36, 4.6 * GB, (0.0, 0.2, 0.8), 2.1 * GB),
    Pair("MoE 30B-A3B", 48, 0.8 * GB, (0.1, 0.65, 0.25), 0.9 * GB, 16, 16.0 * GB, 128, 8),
    Pair("hybrid 9B", 32, 5.0 * GB, (0.0, 0.15, 0.85), 1.8 * GB),
    Pair("MoE 26B-A4B", 30, 1.5 * GB, (0.0, 0.5, 0.5), 0.9 * GB, 16, 12.5 * GB, 128, 8),
    Pair("MoE 20B", 24, 2.0 * GB, (0.0, 0.4, 0.6), 0.8 * GB, 8, 10.2 * GB, 32, 4),
]


class PairOnMac(ABC):
    """A pair on a Mac: the seconds of its rounds, from those of its passes and its host."""

    @property
    @abstractmethod
    def block_size(self) -> int:
        """Rows of a block."""

    @abstractmethod
    def verify(self, rows: int) -> float:
        """GPU seconds of a pass over `rows` rows."""

    @property
    @abstractmethod
    def host(self) -> float:
        """Host seconds of a pass."""

    @property
    @abstractmethod
    def block(self) -> tuple[float, float]:
        """Host and GPU seconds of a draft."""

    @property
    def plain(self) -> float:
        """Seconds of a decode step among others: host and GPU work at the same time."""
        return max(self.verify(1), self.host)

    @property
    def first_plain(self) -> float:
        """Seconds of a decode step after a drafted round."""
        return self.ends(0.0, 0.0, 1) + SYNC

    def ends(self, begun: float, free: float, rows: int) -> float:
        """The end of a pass that the host starts at `begun`, with a GPU busy until `free`."""
        for part in range(1, PARTS + 1):
            free = max(free, begun + self.host * part / PARTS) + self.verify(rows) / PARTS
        return free

    @property
    def draft(self) -> float:
        return sum(self.block) + SYNC

    def round(self, rows: int) -> float:
        """Seconds of a drafted round that waits for the GPU only once, at its end."""
        host, gpu = self.block
        return self.ends(host, host + gpu, rows) + SYNC

    @property
    def read(self) -> float:
        """Extra seconds to read the confidence before the verify pass is built."""
        drafted, rows = self.draft, self.block_size
        return self.ends(drafted, drafted, rows) + SYNC - self.round(rows)

    def seconds(self, job: Job) -> float:
        if job.kind == "plain":
            return self.plain
        if job.kind == "draft":
            return self.draft
        return self.round(job.rows) + self.read * (job.kind == "look")

    def true_costs(self) -> TrueLatencies:
        widths = range(2, self.block_size + 1)
        chain = tuple((rows, self.round(rows) - self.draft) for rows in widths)
        return TrueLatencies(self.plain, self.draft, ((1, self.plain), *chain), read=self.read)


@dataclass(frozen=True)
class Mac(PairOnMac):
    """A pair on a chip, both by rough guesses."""

    chip: Chip
    pair: Pair

    def __str__(self) -> str:
        return f"{self.chip.name}, {self.pair.name}"

    @property
    def block_size(self) -> int:
        return self.pair.block

    def products(self, rows: int) -> float:
        """Seconds to multiply `rows` rows by the weights that every pass reads."""
        chip = self.chip
        vectors = vector_reads(rows, chip.free, wide=chip.wide)
        tiles = chip.tile * -(-rows // 32)
        reads = sum(
            share * (vectors if rows < limit else tiles)
            for share, limit in zip(self.pair.shares, chip.limits, strict=True)
        )
        return self.pair.dense / chip.bandwidth * reads

    def verify(self, rows: int) -> float:
        pair, chip = self.pair, self.chip
        chosen = 1 - (1 - pair.chosen / pair.experts) ** rows
        experts = pair.routed * chosen / chip.bandwidth
        return self.products(rows) + experts + chip.dispatch * pair.layers

    @property
    def host(self) -> float:
        return self.chip.host * self.pair.layers

    @property
    def block(self) -> tuple[float, float]:
        layers = self.pair.draft_layers
        gpu = WIDE * self.pair.draft / self.chip.bandwidth + self.chip.dispatch * layers
        return self.chip.host * layers, gpu


def library(rows: int) -> int:
    return next((count for count in LIBRARIES if rows <= count), LIBRARIES[-1])


class MacProcess(Process):
    """A process on an idle Mac: times its survey and its rounds on one simulated clock."""

    def __init__(self, mac: PairOnMac, hitch: float):
        super().__init__(lambda job: mac.seconds(job), hitch, ramp=True)
        self.mac, self.read, self.draft = mac, mac.read, mac.draft
        self._drafted = True  # whether the last round had a draft

    def kernels(self, job: Job) -> tuple[bool, int]:
        return job.kind == "draft", library(job.rows)

    def survey(self) -> Latencies:
        def run(job: Job) -> float:
            took = self.run(job)
            self.now += TIMED * took * (job.kind == "plain")
            return took

        return survey(run, self.mac.block_size)

    def seconds(self, plan: Plan) -> float:
        """Seconds of the next round; without the draft if the plan is a decode step."""
        took = self.run(Job("chain" if plan.rows > 1 else "plain", plan.rows))
        if plan.rows == 1 and self._drafted:
            took += self.mac.first_plain - self.mac.plain
        self._drafted = plan.rows > 1
        return took
