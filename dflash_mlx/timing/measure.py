"""What a plain step, a draft and verifies of several widths take, from the times of rounds.

Does not know how passes are run (scratch.py), where costs are kept, or how they are used.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from dflash_mlx.policy.costs import Costs

Clock = Callable[[], float]

BUDGET = 0.5, 48  # seconds, or so many plain steps where those take longer
BUILDING = 4.0, 16  # the same of first runs: 16 libraries of Metal at 250 ms each
LATE = 2  # budgets that a survey takes at most amid other work
WARM = 0.25  # seconds of work in which a chip that rested reaches its clock
RUNS = 3  # of each job that count: of three one is surely not disturbed
WIDTHS = (4, 2, 8, 3, 6, 12, 16, 24, 32, 64)  # rows, in the order of their use


class Job(NamedTuple):
    """What to time: "plain", "draft", "chain" or "look", rows of all its sequences.

    A plain step is one of many. A chain is a whole round, its draft included, and a look is one
    that reads the drafter's confidence before the verify.
    """

    kind: str
    rows: int
    sequences: int = 1


def survey(
    run: Callable[[Job], float],
    block_size: int,
    *,
    batch: bool = False,
    drafts: bool = True,
    budget: tuple[float, int] = BUDGET,
    clock: Clock = time.perf_counter,
) -> Costs:
    """Costs from `run`, which does a job and says its seconds; with `batch` two sequences as well.

    Without `drafts` there is no drafter, and its block costs nothing.
    The first run of a job builds kernels: it never counts, nor does the warm-up before all. Jobs
    run in turn, and the shortest time of each counts: other work on the machine only adds. Passes
    wider than a block, which only batches use, come last. When the `budget` (seconds on `clock`, or
    plain steps if those take longer) is spent on runs that count, or `BUILDING` on first ones, jobs
    that were not begun are left out; a plain step, a draft and the widest chain never are.
    Amid other work it takes at most `LATE` budgets.
    """
    times, quickest = dict[Job, float](), dict[Job, float]()  # what `run` said, and the clock
    plain, draft, widest = Job("plain", 1), Job("draft", block_size), Job("chain", block_size)
    look = Job("look", block_size)
    second = [Job("draft", block_size, 2), Job("chain", 2 * (block_size // 2), 2)]
    second = second[not drafts :] * batch
    narrow = [Job("chain", rows) for rows in WIDTHS if rows < block_size]
    wide = [Job("chain", rows) for rows in WIDTHS if rows > block_size] * batch
    warm_up(run, widest)
    began, building, counts = clock(), 0.0, Counter[Job]()

    def timed(job: Job) -> tuple[float, float]:
        start = clock()
        return run(job), clock() - start

    def seconds_of(limit: tuple[float, int]) -> float:
        return max(limit[0], limit[1] * times[plain])

    def fits(job: Job) -> bool:
        if job not in quickest and building >= seconds_of(BUILDING):
            return False
        # A run that other work was in the way of is charged as the shortest one.
        spent = sum(count * quickest[known] for known, count in counts.items())
        late = clock() - began - building > LATE * seconds_of(budget)
        return not late and spent + quickest.get(job, quickest[widest]) < seconds_of(budget)

    needed = [plain, draft, widest] if drafts else [plain, widest]
    others = [*narrow, *[look] * drafts, *second]
    for job in [*needed, *[*others, *needed] * RUNS, *wide * RUNS]:
        if job not in needed[len(times) :] and not fits(job):
            continue
        if job not in quickest:
            _, quickest[job] = timed(job)
            building += quickest[job]
        seconds, took = timed(job)
        times[job] = min(seconds, times.get(job, math.inf))
        quickest[job] = min(took, quickest[job])
        counts[job] += 1

    block = sequence = 0.0
    drafted = times.get(draft, 0.0)
    if all(job in times for job in second) and batch:
        chain = second[-1]
        block = max(0.0, times.get(second[0], 0.0) - drafted) if drafts else 0.0
        alone = times.get(Job("chain", chain.rows), times[widest])
        sequence = max(0.0, times[chain] - alone - block)
    chains = {j.rows: s for j, s in times.items() if j.kind == "chain" and j.sequences == 1}
    # No verify is quicker than a plain step: where it seems so, other work was in the way.
    knots = {rows: max(times[plain], s - drafted) for rows, s in sorted(chains.items())}
    found = ((1, times[plain]), *knots.items())
    # Nothing hides less than all of a draft.
    read = min(drafted, max(0.0, times.get(look, math.inf) - times[widest]))
    return Costs(times[plain], drafted, found, read=read, sequence=sequence, block=block)


def warm_up(run: Callable[[Job], float], job: Job) -> None:
    """Build a job's kernels, then do it for as long as a chip's clock may still rise."""
    run(job)
    worked = 0.0
    while worked < WARM:
        worked += run(job)
