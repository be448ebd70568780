"""Simulated Macs with counted costs, at any depth of context, and their answers.

counted_macs.json has the seconds of the passes of four pairs in three quantisations on five chips,
as far as a common Mac's memory reaches. Nobody measured them: they were counted from the kernels of
each pass, and from what others measured on Macs, as examples/guide/forecast.md says. The program
was examples/measure/ledger of commit 8a3c197. What mode auto knows of a Mac before its first round
is the package's own table.
"""

import json
from collections import Counter
from dataclasses import astuple, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from simulated import Drafter, Process, TrueCosts, fixed_rates, play

from dflash_mlx.policy import costs as policy_costs
from dflash_mlx.policy.adaptive import AdaptivePolicy
from dflash_mlx.policy.costs import Drafting, Passes
from dflash_mlx.policy.prior import CACHES, KNOTS, WEIGHTS
from dflash_mlx.types import Plan

# Drafts as they are kept in chats, in what was published, and in code or sums: by the tokens of a
# round of 16 rows. Passages differ, and the drafter knows about how sure it may be.
DRAFTERS = {"2": Drafter(-0.32), "4.3": Drafter(1.22), "7": Drafter(2.21)}
PROCESSES = 4  # answers are short, and which drafts are kept is luck
ANSWERS = 5  # of a process
HITCH = 0.02  # seconds to build a kernel
LIBRARIES = (1, 2, 4, 8, 12, 16)  # row counts of kernels; other counts use the next larger one
DRAFT_CACHES = 0.14  # of a drafter of five layers, by the target's
SYNC = 0.0003  # seconds until the host sees what the GPU has done
PARTS = 6  # parts of a pass: the GPU computes each while the host builds the next
OTHERS = range(1000, 1048)  # seeds of the answers by which the best width is known
WIDTHS = tuple(rows for rows in KNOTS if 2 <= rows <= 16)  # of drafted blocks
# The chips that each line of the package's table stands for.
CHIPS = {"M1": ("M1",), "M2": ("M2 Pro",), "M4": ("M4", "M4 Max"), "M5": ("M5 Max",)}


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds on the GPU of passes at one depth, and the host's seconds to build them.

    `verify`: of 1, 2, ... rows, the whole block last. `draft`: of blocks of `WIDTHS` rows.
    """

    depth: int
    verify: tuple[float, ...]
    host: float
    draft: tuple[float, ...]
    draft_host: float
    caches: float  # the bytes of the KV caches, by those of the target's weights


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A pair on a chip, with its costs by depth, as far as its memory reaches.

    `weights`: bytes of both models. `share`: bytes that a draft reads, by those of a decode step.
    """

    chip: str
    pair: str
    bits: int
    weights: int
    share: float
    costs: dict[int, Costs]

    def __str__(self) -> str:
        return f"{self.chip}, {self.pair} {self.bits} bits"


def load() -> list[Recorded]:
    lines = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    found = []
    for chip, pair, bits, weights, share, costs in lines:
        each = [
            Costs(depth, tuple(verify), host, tuple(draft), draft_host, caches)
            for depth, verify, host, draft, draft_host, caches in costs
        ]
        known = {one.depth: one for one in each}
        found.append(Recorded(chip, pair, bits, weights, share, known))
    return found


@dataclass(frozen=True)
class CountedMac:
    """A pair on a chip after some tokens of context: the seconds of its rounds.

    They follow from the GPU's seconds of a pass and the host's to build it, which overlap.
    """

    recorded: Recorded
    costs: Costs

    def __str__(self) -> str:
        return f"{self.recorded}, {self.costs.depth} tokens"

    @property
    def block_size(self) -> int:
        return len(self.costs.verify)

    def verify(self, rows: int) -> float:
        return self.costs.verify[rows - 1]

    @property
    def host(self) -> float:
        return self.costs.host

    def block(self, width: int) -> tuple[float, float]:
        place = next(n for n, known in enumerate(WIDTHS) if known >= width)
        return self.costs.draft_host, self.costs.draft[place]

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

    def round(self, plan: Plan) -> float:
        """Seconds of a drafted round that waits for the GPU only once, at its end."""
        host, gpu = self.block(plan.drafted)
        return self.ends(host, host + gpu, plan.rows) + SYNC

    def seconds(self, plan: Plan) -> float:
        return self.round(plan) if plan.drafted else self.plain

    def true_costs(self) -> TrueCosts:
        """As parts that add up: the draft takes what it adds to a round."""
        widths = range(2, self.block_size + 1)
        drafts = tuple((rows, sum(self.block(rows)) + SYNC) for rows in widths)
        chain = tuple(
            (rows, self.round(Plan(rows, drafted=rows)) - seconds) for rows, seconds in drafts
        )
        return TrueCosts(self.plain, ((1, self.plain), *chain), drafts)

    def prior(self) -> policy_costs.Costs:
        """What the package knows of this Mac before the first round."""
        one = self.recorded
        chip = next(known for known, names in CHIPS.items() if one.chip in names)
        kind = "mixture" if "A3B" in one.pair else "dense"
        passes = Passes(WEIGHTS[chip, one.bits, kind], CACHES[chip])
        drafter = Passes(WEIGHTS[chip, 8 if one.bits < 16 else 16, "dense"], CACHES[chip])
        return policy_costs.Costs(passes, [Drafting(drafter, one.share, DRAFT_CACHES)])


def library(rows: int) -> int:
    return next((count for count in LIBRARIES if rows <= count), LIBRARIES[-1])


class MacProcess(Process):
    def __init__(self, mac: "CountedMac", hitch: float):
        super().__init__(mac.seconds, hitch, ramp=True)
        self.mac = mac
        self.caches = mac.costs.caches
        self._drafted = True  # whether the last round had a draft

    def kernels(self, plan: Plan) -> tuple[bool, int]:
        return plan.drafted > 0, library(plan.rows)

    def seconds(self, plan: Plan) -> float:
        took = super().seconds(plan)
        if not plan.drafted and self._drafted:
            took += self.mac.first_plain - self.mac.plain
        self._drafted = plan.drafted > 0
        return took


def costs_at(recorded: Recorded, depth: int) -> Costs:
    """Costs between two recorded depths, or those of the nearest beyond them."""
    known = recorded.costs
    depth = min(max(depth, min(known)), max(known))
    if depth in known:
        return known[depth]
    low, high = next(ends for ends in pairwise(sorted(known)) if ends[0] < depth < ends[1])
    share = (depth - low) / (high - low)

    def between(less: Any, more: Any) -> Any:
        if isinstance(less, tuple):
            return tuple(map(between, less, more))
        return less + share * (more - less)

    return Costs(*map(between, astuple(known[low]), astuple(known[high])))


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


def outcome(mac: CountedMac, drafter: Drafter) -> Outcome:
    """Answers on a Mac, in several processes that know nothing but the table.

    The first answer of each process is left out, and so are kernels that are built: every way of
    decoding begins with a cold chip and builds its kernels once.
    """
    true = mac.true_costs()
    best = best_width(mac, drafter)
    tokens = 0
    seconds = 0.0
    fixed = list[float]()
    plans = Counter[int]()
    for first in range(0, 50 * PROCESSES, 50):
        process = MacProcess(mac, HITCH)
        policy = AdaptivePolicy(mac.prior(), mac.block_size)
        play(policy, process, [drafter], seed=first)
        built = process.building
        for seed in range(first + 1, first + 1 + ANSWERS):
            played = play(policy, process, [drafter], seed=seed)
            tokens += played.tokens
            seconds += played.seconds
            fixed.append(1 / fixed_rates(true, [drafter], seed=seed)[best])
            for plan, count in played.plans.items():
                plans[plan.rows] += count
        seconds -= process.building - built
    rate = tokens / seconds
    return Outcome(plans.most_common(1)[0][0], rate * true.plain, rate * float(np.mean(fixed)))


def auto_at(recorded: Recorded, depth: int, drafter: Drafter) -> Outcome:
    return outcome(CountedMac(recorded, costs_at(recorded, depth)), drafter)
