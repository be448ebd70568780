"""Simulated Macs whose costs are counted by the ledger, at any depth of context, and their answers.

What mode auto knows of a depth is what a survey measures at the depth that its table uses for it.
"""

from collections import Counter
from dataclasses import astuple, dataclass
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
from ledger.published import published
from ledger.recorded import MEMORY, Costs, Recorded
from macs import MacProcess, PairOnMac
from simulated import Drafter, fixed_rates, play

from dflash_mlx.drafters.dflash.config import parse
from dflash_mlx.engine.latency_table import depth_for
from dflash_mlx.engine.profiler import depth_that_fits
from dflash_mlx.policy.adaptive import AdaptivePolicy

# Drafts as they are kept in chats, in what was published, and in code or sums: by the tokens of a
# round of 16 rows. Passages differ, and the drafter knows about how sure it may be.
DRAFTERS = {"2": Drafter(-0.32), "4.3": Drafter(1.22), "7": Drafter(2.21)}
PROCESSES = 4  # answers are short, and which drafts are kept is luck
ANSWERS = 5  # of a process
HITCH = 0.02  # seconds to build a kernel
OTHERS = range(1000, 1048)  # seeds of the answers by which the best width is known


@dataclass(frozen=True)
class CountedMac(PairOnMac):
    """A pair on a chip after some tokens of context."""

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
def best_width(mac: PairOnMac, drafter: Drafter) -> int:
    """The fixed width with the best rate in the long run, not the luckiest one of few answers."""
    true = mac.true_costs()
    each = [fixed_rates(true, [drafter], seed=seed) for seed in OTHERS]
    return min(each[0], key=lambda rows: sum(1 / rates[rows] for rates in each))


def outcome(mac: PairOnMac, surveyed: PairOnMac, drafter: Drafter) -> Outcome:
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


def surveyed_depth(recorded: Recorded, depth: int) -> int:
    """The depth at which a survey for `depth` tokens is done: less if memory is short."""
    pair = published(recorded.pair, recorded.bits)

    def embed(ids: mx.array) -> mx.array:
        return ids.astype(mx.bfloat16)

    drafter = parse(dict(pair.drafter))
    row = 2 * drafter.num_layers * drafter.num_kv_heads * drafter.head_dim
    target: Any = SimpleNamespace(embed=embed, config=dict(pair.target), kv_bits=None)
    model: Any = SimpleNamespace(row_bytes=lambda item: row * item)
    free = MEMORY[recorded.chip] - recorded.weights
    return depth_that_fits(target, model, depth_for(depth), int(free))
