"""Simulated Macs whose costs are counted by the ledger, at any depth of context, and their answers.

What mode auto knows of a depth is what a survey measures at the depth that its table uses for it.
"""

from collections import Counter
from dataclasses import astuple, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
from ledger.published import published
from ledger.recorded import MEMORY, Costs, Recorded
from simulated import Drafter, Process, TrueLatencies, fixed_rates, play

from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.engine.latency_table import depth_for
from dflash_mlx.engine.profiler import Job, depth_that_fits, survey
from dflash_mlx.files.checkpoint import Checkpoint
from dflash_mlx.models.cache.sizes import CacheSize
from dflash_mlx.models.target import outline
from dflash_mlx.policy.adaptive import AdaptivePolicy
from dflash_mlx.policy.latency import Latencies
from dflash_mlx.types import Plan

# Drafts as they are kept in chats, in what was published, and in code or sums: by the tokens of a
# round of 16 rows. Passages differ, and the drafter knows about how sure it may be.
DRAFTERS = {"2": Drafter(-0.32), "4.3": Drafter(1.22), "7": Drafter(2.21)}
PROCESSES = 4  # answers are short, and which drafts are kept is luck
ANSWERS = 5  # of a process
HITCH = 0.02  # seconds to build a kernel
LIBRARIES = (1, 2, 4, 8, 12, 16)  # row counts of kernels; other counts use the next larger one
SYNC = 0.0003  # seconds until the host sees what the GPU has done
PARTS = 6  # parts of a pass: the GPU computes each while the host builds the next
TIMED = 4  # more decode steps that a survey runs to time one
OTHERS = range(1000, 1048)  # seeds of the answers by which the best width is known


@dataclass(frozen=True)
class CountedMac:
    """A pair on a chip after some tokens of context: the seconds of its rounds.

    They follow from the GPU's seconds of a pass and the host's to build it, which overlap.
    """

    name: str
    costs: Costs

    def __str__(self) -> str:
        return f"{self.name}, {self.costs.depth} tokens"

    @property
    def block_size(self) -> int:
        return len(self.costs.verify)

    def verify(self, rows: int) -> float:
        return self.costs.verify[rows - 1]

    @property
    def host(self) -> float:
        return self.costs.host

    @property
    def block(self) -> tuple[float, float]:
        return self.costs.draft_host, self.costs.draft

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


def library(rows: int) -> int:
    return next((count for count in LIBRARIES if rows <= count), LIBRARIES[-1])


class MacProcess(Process):
    """A process on an idle Mac: times its survey and its rounds on one simulated clock."""

    def __init__(self, mac: "CountedMac", hitch: float):
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


def counted_mac(recorded: Recorded, depth: int) -> CountedMac:
    return CountedMac(str(recorded), costs_at(recorded, depth))


def costs_at(recorded: Recorded, depth: int) -> Costs:
    """Costs between two recorded depths, or those of the nearest beyond them."""
    known = recorded.costs
    depth = min(max(depth, min(known)), max(known))
    if depth in known:
        return known[depth]
    low, high = next(ends for ends in pairwise(sorted(known)) if ends[0] < depth < ends[1])
    share = (depth - low) / (high - low)

    def between(less: float, more: float) -> float:
        return less + share * (more - less)

    (_, few, *one), (_, many, *two) = astuple(known[low]), astuple(known[high])
    return Costs(depth, tuple(map(between, few, many)), *map(between, one, two))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answers of mode auto: the rows it commits most tokens with, and its rate over plain
    decoding's and over that of the fixed width that is best in the long run.
    """

    rows: int
    over_plain: float
    over_best: float

    def __str__(self) -> str:
        return f"{self.rows}: {self.over_plain:.2f}×, {self.over_best:.2f} of the best width"


@cache
def best_width(mac: CountedMac, drafter: Drafter) -> int:
    """The fixed width with the best rate in the long run, not the luckiest one of few answers."""
    true = mac.true_costs()
    each = [fixed_rates(true, [drafter], seed=seed) for seed in OTHERS]
    return min(each[0], key=lambda rows: sum(1 / rates[rows] for rates in each))


def outcome(mac: CountedMac, surveyed: CountedMac, drafter: Drafter) -> Outcome:
    """Answers on a Mac, whose survey was of `surveyed`, in several processes.

    The first answer of each process is left out, and so are kernels that are built: every way of
    decoding begins with a cold chip and builds its kernels once.
    """
    true, best = mac.true_costs(), best_width(mac, drafter)
    latencies = MacProcess(surveyed, HITCH).survey()
    tokens, seconds, fixed = 0, 0.0, list[float]()
    plans = Counter[int]()
    for first in range(0, 50 * PROCESSES, 50):
        process = MacProcess(mac, HITCH)
        policy = AdaptivePolicy(latencies, mac.block_size)
        play(policy, process, [drafter], seed=first)
        built = process.building
        for seed in range(first + 1, first + 1 + ANSWERS):
            played = play(policy, process, [drafter], seed=seed)
            tokens, seconds = tokens + played.tokens, seconds + played.seconds
            fixed.append(1 / fixed_rates(true, [drafter], seed=seed)[best])
            for plan, count in played.plans.items():
                plans[plan.rows] += count
        seconds -= process.building - built
    rate = tokens / seconds
    return Outcome(plans.most_common(1)[0][0], rate * true.plain, rate * float(np.mean(fixed)))


def auto_at(recorded: Recorded, depth: int, drafter: Drafter) -> Outcome:
    surveyed = counted_mac(recorded, surveyed_depth(recorded, depth))
    return outcome(counted_mac(recorded, depth), surveyed, drafter)


@cache
def caches_of(name: str, bits: int) -> tuple[CacheSize, ...]:
    return outline(Checkpoint(Path(name), dict(published(name, bits).target))).caches


def surveyed_depth(recorded: Recorded, depth: int) -> int:
    """The depth at which a survey for `depth` tokens is done: less if memory is short."""
    pair = published(recorded.pair, recorded.bits)

    drafter = parse(dict(pair.drafter))
    row = 2 * drafter.num_layers * drafter.num_kv_heads * drafter.head_dim
    caches = caches_of(recorded.pair, recorded.bits)
    target: Any = SimpleNamespace(dtype=mx.bfloat16, caches=caches, kv_bits=None)
    model: Any = SimpleNamespace(row_bytes=lambda item: row * item)
    free = MEMORY[recorded.chip] - recorded.weights
    return depth_that_fits(target, model, depth_for(depth), int(free))
