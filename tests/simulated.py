"""Machines and drafters that exist on paper, and answers played with them by a policy's protocol.

A machine is the seconds of its passes, with MLX's quantised products as they are: below a number of
rows that depends on the chip and the matrix, the weights are read row by row (qmv), from there on
once for 32 rows (qmm). A drafter is a random process that says how sure it is of each slot and
whether the draft in it is right. What is best is found by trying every width on the same process.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat

import numpy as np

from dflash_mlx.calibration import Confidence
from dflash_mlx.costs import PLAIN, Costs, Plan
from dflash_mlx.measure import Job, survey
from dflash_mlx.policy import Fixed, Policy

BLOCK = 16
# Rows from which on a product is a qmm, for matrices of up to 2048, up to 4096, and more.
LIMITS = {"M1": (14, 10, 6), "M4 Max": (13, 15, 13), "M5 Max": (33, 25, 13)}
FREE = {"M1": 1.6, "M4 Max": 3.0, "M5 Max": 4.0}  # rows that a read of the weights has time for
TILE = {"M1": 5.0, "M4 Max": 3.6, "M5 Max": 2.6}  # a qmm of 32 rows, in reads of the weights
READ = {"M1": 0.055, "M4 Max": 0.011, "M5 Max": 0.009}  # seconds to read all weights
# Shares of the weights in matrices of each size: a narrow model and a wide one.
SHAPES = {"narrow": (0.3, 0.7, 0.0), "wide": (0.05, 0.25, 0.7)}


@dataclass(frozen=True)
class Machine:
    """A chip with a target whose matrices have one of the `SHAPES`."""

    chip: str
    shape: str

    def verify(self, rows: int) -> float:
        """Seconds of a pass over so many rows."""
        reads = sum(
            share * (max(1.0, rows / FREE[self.chip]) if rows < limit else self.tiles(rows))
            for share, limit in zip(SHAPES[self.shape], LIMITS[self.chip], strict=True)
        )
        return READ[self.chip] * reads + 0.0004 + 0.00002 * rows

    def tiles(self, rows: int) -> float:
        """A qmm, in reads of the weights."""
        return max(1.0, TILE[self.chip]) * -(-rows // 32)

    @property
    def draft(self) -> float:
        """Seconds of a drafter of a tenth of the target, for a whole block."""
        return 0.1 * self.verify(BLOCK)

    def seconds(self, job: Job) -> float:
        """Seconds of what is measured at load."""
        kind, rows = job
        return {"draft": self.draft, "tree": 1.05 * self.verify(rows)}.get(kind, self.verify(rows))

    def costs(self, trees: Sequence[int] = ()) -> Costs:
        """What a survey of this machine finds, on a clock that only the passes move."""
        now = [0.0]

        def run(job: Job) -> None:
            now[0] += self.seconds(job)

        return survey(run, BLOCK, trees, clock=lambda: now[0])

    def true_costs(self) -> Costs:
        """All of it."""
        return Costs(
            plain=self.verify(1),
            draft=self.draft,
            chain=tuple((rows, self.verify(rows)) for rows in range(1, BLOCK + 1)),
        )


MACHINES = [Machine(chip, shape) for chip in LIMITS for shape in SHAPES]
CPU = Costs(  # slow at wide verifies, like the reference BLAS
    plain=0.0105,
    draft=0.012,
    chain=tuple((rows, 0.007 + 0.0035 * rows) for rows in (1, 2, 3, 4, 6, 8, 12, 16)),
)


@dataclass(frozen=True)
class Block:
    """One drafted block: what the drafter says of its slots, and how many it has right."""

    confidence: tuple[float, ...]
    right: int


@dataclass(frozen=True)
class Drafter:
    """Slot j is right with log-odds mean - fade * j + what the passage adds; said with a bias.

    The passage wanders (an autoregression); `scale` and `shift` make what is said from what is
    true, `noise` blurs it. `says`: it says that whatever is true.
    """

    mean: float
    fade: float = 0.05
    spread: float = 1.0
    scale: float = 1.0
    shift: float = 0.0
    noise: float = 0.3
    says: float | None = None

    def blocks(self, rng: np.random.Generator) -> Iterator[Block]:
        """Block after block, without end."""
        passage = 0.0
        while True:
            passage = 0.7 * passage + self.spread * 0.714 * rng.normal()
            slots = np.arange(BLOCK - 1)
            odds = self.mean - self.fade * slots + passage + 0.7 * rng.normal(size=BLOCK - 1)
            said = self.scale * odds + self.shift + self.noise * rng.normal(size=BLOCK - 1)
            right = rng.random(BLOCK - 1) < 1 / (1 + np.exp(-odds))
            sure = 1 / (1 + np.exp(-said)) if self.says is None else np.full(BLOCK - 1, self.says)
            yield Block(tuple(sure.tolist()), int(np.cumprod(right).sum()))


GOOD, FAIR, POOR = Drafter(3.0), Drafter(1.2), Drafter(-0.5)
SMUG = Drafter(0.0, scale=0.7, shift=2.0)  # says more than is true
SHY = Drafter(2.0, shift=-1.5)
MUTE = Drafter(2.0, fade=0.1, spread=0.0, says=0.5)  # its confidence says nothing
RANDOM, WRONG = Drafter(-6.0, says=0.01), Drafter(-20.0, says=0.9999)


@dataclass
class Played:
    """Tokens and seconds of some answers."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def play(
    policy: Policy,
    costs: Costs,
    drafters: Sequence[Drafter],
    *,
    seed: int = 0,
    tokens: int = 150,
    timing: Callable[[float], float] | None = lambda seconds: seconds,
) -> Played:
    """One answer of so many tokens by each of the drafters, one conversation each.

    `costs` are the true ones; `timing` makes what the clock says of them.
    """
    rng, played = np.random.default_rng(seed), Played()
    for drafter in drafters:
        policy.begin()
        stream, left = drafter.blocks(rng), tokens
        while left:
            left -= one_round(policy, costs, next(stream), left, played, timing)
    return played


def one_round(
    policy: Policy,
    costs: Costs,
    block: Block,
    room: int,
    played: Played,
    timing: Callable[[float], float] | None = lambda seconds: seconds,
) -> int:
    """One round by the protocol; the tokens it committed."""
    plan, looked, drafted = PLAIN, False, policy.drafts(room)
    if drafted:
        looked = policy.looks()
        plan = policy.plan(Confidence(block.confidence) if looked else None, room)
    accepted = min(block.right, plan.rows - 1)
    committed = min(room, accepted + 1)
    seconds = costs.seconds(plan) + looked * costs.look
    if drafted and plan.rows == 1:
        seconds += costs.draft
    policy.learn(plan, min(accepted, committed), committed, timing and timing(seconds))
    played.tokens += committed
    played.seconds += seconds
    return committed


def fixed_rates(
    costs: Costs, drafters: Sequence[Drafter], *, seed: int = 0, tokens: int = 150
) -> dict[int, float]:
    """Tokens a second of every fixed width, by playing each: the brute force."""
    return {
        rows: play(Fixed(Plan(rows)), costs, drafters, seed=seed, tokens=tokens).rate
        for rows in range(1, BLOCK + 1)
    }


def forever(*drafters: Drafter) -> Iterator[Drafter]:
    """These, then the last again and again."""
    return chain(drafters, repeat(drafters[-1]))


def finer(costs: Costs) -> Costs:
    """The same, with a look that costs a hundredth of a plain step."""
    return replace(costs, look=0.01 * costs.plain)
