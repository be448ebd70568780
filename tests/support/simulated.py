"""Simulated machines and drafters, and simulated answers that follow a policy's protocol.

A machine is the seconds of its passes with MLX's quantised products. Below a number of rows that
depends on chip and matrix, MLX reads the weights row by row (qmv), from there on once per 32 rows
(qmm). A drafter is a random process: for each position, whether the draft is right. The best width
is found by trying all of them on the same process.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

import numpy as np

from dflash_mlx.device import Chip
from dflash_mlx.kernels.row_limits import TILE as FEW
from dflash_mlx.kernels.row_limits import limits
from dflash_mlx.policy.acceptance import Acceptance
from dflash_mlx.policy.adaptive import AdaptivePolicy
from dflash_mlx.policy.costs import Batch, Costs, Drafting, Passes
from dflash_mlx.policy.policy import DraftState, Policy, StepResult
from dflash_mlx.policy.prior import KNOTS
from dflash_mlx.types import DECODE_STEP, Plan

BLOCK, TOKENS = 16, 150  # rows of a block, tokens of an answer


def limits_of(architecture: str) -> tuple[int, int, int]:
    """Rows from which on a product is a qmm, for matrices up to 2048, up to 4096, and larger."""
    chip = Chip.of(architecture)
    assert chip is not None
    return limits(chip)


LIMITS = {"M1": limits_of("g13g"), "M4 Max": limits_of("g16s"), "M5 Max": limits_of("g17s")}
FREE = {"M1": 1.6, "M4 Max": 3.0, "M5 Max": 4.0}  # rows that a read of the weights has time for
TILE = {"M1": 5.0, "M4 Max": 3.6, "M5 Max": 2.6}  # a qmm of 32 rows, in reads of the weights
READ = {"M1": 0.055, "M4 Max": 0.011, "M5 Max": 0.009}  # seconds to read all weights
# Shares of the weights in matrices of each size: a narrow model and a wide one.
SHAPES = {"narrow": (0.3, 0.7, 0.0), "wide": (0.05, 0.25, 0.7)}
RAMP, SLOW = 0.2, 1.5  # seconds of work at a low clock after a rest, and their slowdown


class Process:
    """A new process on a simulated clock, which only its rounds move.

    `seconds`: of a plan. The first round of each shape takes `hitch` seconds more, to compile its
    kernels. With `ramp` the chip was idle: its first `RAMP` seconds of work take `SLOW` times as
    long.
    """

    def __init__(self, seconds: Callable[[Plan], float], hitch: float = 0.0, *, ramp: bool = False):
        self._seconds = seconds
        self._hitch = hitch
        self._left = RAMP * ramp  # seconds of work at a low clock
        self.built = set[Any]()
        self.building = 0.0

    def kernels(self, plan: Plan) -> Any:
        """The kernels of a round; rounds with equal ones compile them once."""
        return plan

    def seconds(self, plan: Plan) -> float:
        took = self._seconds(plan)
        if self._left > 0:
            took *= SLOW
            self._left -= took
        if (kernels := self.kernels(plan)) not in self.built:
            self.built.add(kernels)
            self.building += self._hitch
            took += self._hitch
        return took


def vector_reads(rows: int, free: float, *, wide: bool) -> float:
    """The time of a product row by row, in reads of the matrix.

    One read has time for `free` rows. From M3 on (`wide`) MLX reads the matrix at least once per
    `FEW` rows. Before, one dispatch computes all rows.
    """
    return max(1.0, rows / free, -(-rows // FEW) if wide else 1)


@dataclass(frozen=True)
class Machine:
    chip: str
    shape: str

    def verify(self, rows: int) -> float:
        vectors = vector_reads(rows, FREE[self.chip], wide=self.chip != "M1")
        reads = sum(
            share * (vectors if rows < limit else self.tiles(rows))
            for share, limit in zip(SHAPES[self.shape], LIMITS[self.chip], strict=True)
        )
        return READ[self.chip] * reads + 0.0004 + 0.00002 * rows

    def tiles(self, rows: int) -> float:
        """The time of a qmm, in reads of the weights."""
        return max(1.0, TILE[self.chip]) * -(-rows // 32)

    def draft(self, width: int) -> float:
        """Seconds to draft a block; the drafter has a tenth of the target's size."""
        return 0.1 * self.verify(width)

    def true_costs(self, rows: int = BLOCK) -> "TrueCosts":
        return TrueCosts(
            plain=self.verify(1),
            chain=tuple((rows, self.verify(rows)) for rows in range(1, rows + 1)),
            drafts=tuple((rows, self.draft(rows)) for rows in range(2, BLOCK + 1)),
        )


Knots = tuple[tuple[int, float], ...]  # (rows, seconds), rows rising


@dataclass(frozen=True, slots=True)
class TrueCosts:
    """What rounds of a sequence take: passes and drafts by their rows."""

    plain: float
    chain: Knots
    drafts: Knots
    caches: float = 0.0  # as in `Batch`

    def verify(self, rows: int) -> float:
        return self.plain if rows == 1 else at(self.chain, rows)

    def draft(self, width: int) -> float:
        return at(self.drafts, width) if width else 0.0

    def seconds(self, plan: Plan) -> float:
        return self.verify(plan.rows) + self.draft(plan.drafted)

    def prior(self) -> Costs:
        """What a policy knows of them that knows them well, but for their scale."""
        passes = tuple(self.verify(rows) / self.plain for rows in KNOTS)
        drafts = tuple(self.draft(max(2, rows)) / self.plain for rows in KNOTS)
        nothing = (0.0,) * len(KNOTS)
        return Costs(Passes(passes, nothing), [Drafting(Passes(drafts, nothing), 1.0)])


def at(knots: Knots, rows: int) -> float:
    """The seconds of the next knot; beyond the last, in proportion."""
    most, seconds = knots[-1]
    return next((took for known, took in knots if known >= rows), seconds * rows / most)


MACHINES = [Machine(chip, shape) for chip in LIMITS for shape in SHAPES]
CPU = TrueCosts(  # wide verify passes are slow, as with the reference BLAS
    plain=0.0105,
    chain=tuple((rows, 0.007 + 0.0035 * rows) for rows in (1, 2, 3, 4, 6, 8, 12, 16)),
    drafts=tuple((rows, 0.004 + 0.0005 * rows) for rows in (2, 3, 4, 6, 8, 12, 16)),
)
QUICK = TrueCosts(  # wide verify passes are fast
    plain=0.0054,
    chain=tuple((rows, 0.006 + 0.00025 * rows) for rows in (2, 3, 4, 6, 8, 12, 16)),
    drafts=((16, 0.0012),),
)


def auto(costs: TrueCosts) -> AdaptivePolicy:
    return AdaptivePolicy(costs.prior(), BLOCK)


class Rounds(Protocol):
    @property
    def caches(self) -> float:
        """As in `Batch`."""
        ...

    def seconds(self, plan: Plan) -> float: ...


class Cold:
    """Costs of a machine that is slow in the first of several drafted rounds.

    `extra`: the additional share of time of the first one. It vanishes over three drafted rounds
    and returns over six decode steps.
    """

    def __init__(self, costs: TrueCosts, extra: float):
        self._costs = costs
        self._extra = extra
        self._warmth = 0.0
        self.caches = costs.caches

    def seconds(self, plan: Plan) -> float:
        seconds = self._costs.seconds(plan)
        if not plan.drafted:
            self._warmth = max(0.0, self._warmth - 1 / 6)
            return seconds
        seconds *= 1 + self._extra * (1 - self._warmth)
        self._warmth = min(1.0, self._warmth + 1 / 3)
        return seconds


@dataclass(frozen=True)
class Drafter:
    """Position j is right with log-odds mean - fade * j, plus noise of passage and position.

    The noise of the passage is an autoregression over blocks.
    """

    mean: float
    fade: float = 0.05
    spread: float = 1.0

    def blocks(self, seed: int) -> list[int]:
        return drawn(self, seed)


@cache
def drawn(drafter: Drafter, seed: int) -> list[int]:
    """The blocks of one answer; the same for the same arguments."""
    rng, size = np.random.default_rng(seed), (TOKENS, BLOCK - 1)
    passage, steps = np.zeros(TOKENS), rng.normal(size=TOKENS) * drafter.spread
    for place in range(1, TOKENS):
        passage[place] = 0.7 * passage[place - 1] + 0.714 * steps[place]
    odds = drafter.mean - drafter.fade * np.arange(BLOCK - 1) + passage[:, None]
    odds = odds + 0.7 * drafter.spread * rng.normal(size=size)
    right = np.cumprod(rng.random(size) < 1 / (1 + np.exp(-odds)), axis=1).sum(axis=1)
    return right.tolist()


GOOD, FAIR, POOR = Drafter(3.0), Drafter(1.2), Drafter(-0.5)
STEADY = Drafter(2.0, fade=0.1, spread=0.0)
RANDOM, WRONG = Drafter(-6.0), Drafter(-20.0)


@dataclass
class Played:
    """Tokens and seconds of simulated answers, and the tokens that each plan committed."""

    tokens: int = 0
    seconds: float = 0.0
    plans: Counter[Plan] = field(default_factory=Counter)
    drafted: bool = True  # in the last round

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def play(
    policy: Policy,
    costs: Rounds,
    drafters: Iterable[Drafter],
    *,
    seed: int = 0,
    timing: Callable[[float], float | None] = lambda seconds: seconds,
) -> Played:
    """Simulate one answer with each of the drafters, each as a new sequence.

    `costs` are the actual costs; `timing` turns seconds into the time that the policy is given.
    """
    played = Played()
    for number, drafter in enumerate(drafters):
        (acceptance,) = policy.new_sequence(1)
        left, blocks = TOKENS, iter(drafter.blocks(seed + number))
        while left:
            left -= one_round(policy, costs, acceptance, next(blocks), left, played, timing)
    return played


def one_round(
    policy: Policy,
    costs: Rounds,
    acceptance: Acceptance,
    right: int,
    room: int,
    played: Played,
    timing: Callable[[float], float | None] = lambda seconds: seconds,
) -> int:
    """Simulate one round with so many right drafts; returns the number of committed tokens."""
    state = DraftState(acceptance, room)
    plan = DECODE_STEP
    (choice,) = policy.choose_drafters([[state]], Batch(1, costs.caches))
    if choice is not None:
        (plan,) = policy.choose_plans([replace(state, choice=choice)])
    accepted = min(right, plan.rows - 1)
    committed = min(room, accepted + 1)
    seconds = costs.seconds(plan)
    result = StepResult(
        acceptance,
        plan,
        verified=plan.rows - 1,
        accepted=min(accepted, committed),
        committed=committed,
        choice=choice,
    )
    first, played.drafted = not plan.drafted and played.drafted, plan.drafted > 0
    policy.update([result], None if first else timing(seconds))  # it also begins the next step
    played.tokens += committed
    played.seconds += seconds
    played.plans[plan] += committed
    return committed


def fixed_rates(
    costs: TrueCosts, drafters: Sequence[Drafter], *, seed: int = 0
) -> dict[int, float]:
    """Tokens per second of every fixed width on the same answers, by brute force.

    Drafts are as wide as what is verified: here a wider block has the same drafts.
    """
    plans = [Plan(max(1, rows), drafted=rows if rows > 1 else 0) for rows in range(BLOCK + 1)]
    price = np.array([costs.seconds(plan) for plan in plans])
    rates = {}
    for rows in range(1, BLOCK + 1):
        seconds = 0.0
        for number, drafter in enumerate(drafters):
            right = np.array(drafter.blocks(seed + number))
            ends = np.cumsum(np.minimum(right, rows - 1) + 1)
            room = TOKENS - np.concatenate([[0], ends[:-1]])
            seconds += price[np.minimum(rows, room[room > 0])].sum()
        rates[rows] = TOKENS * len(drafters) / seconds
    return rates
