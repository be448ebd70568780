"""What a plain step, a draft and verifies of several widths take, from the times of passes.

Does not know how passes are run (scratch.py), where costs are kept, or how they are used.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from dflash_mlx.policy.costs import Costs, Knots

Clock = Callable[[], float]

BUDGET = 0.5, 48  # seconds, or so many plain steps where those take longer
RUNS = 4  # of each job: the first builds kernels, and of three one is surely not disturbed
WIDTHS = (4, 2, 8, 3, 6, 12, 16, 24, 32, 64)  # rows, in the order of their use


class Job(NamedTuple):
    """One pass to time: "plain", "draft" or "chain", rows of all its sequences."""

    kind: str
    rows: int
    sequences: int = 1


def survey(
    run: Callable[[Job], None],
    block_size: int,
    *,
    batch: bool = False,
    budget: tuple[float, int] = BUDGET,
    clock: Clock = time.perf_counter,
) -> Costs:
    """Costs from timing `run` of jobs, each several times; with `batch` two sequences as well.

    Jobs run in turn, and the shortest time of each counts: other work on the machine only adds.
    Passes wider than a block, which only batches use, come last. When the `budget` (seconds, or
    plain steps if those take longer) is spent, jobs that were not begun are left out; a plain step,
    a draft and the widest chain never are.
    """
    began, times = clock(), dict[Job, float]()
    plain, draft, widest = Job("plain", 1), Job("draft", block_size), Job("chain", block_size)
    second = [Job("draft", block_size, 2), Job("chain", 2 * (block_size // 2), 2)] * batch
    narrow = [Job("chain", rows) for rows in WIDTHS if rows < block_size]
    wide = [Job("chain", rows) for rows in WIDTHS if rows > block_size] * batch

    def fits(job: Job) -> bool:
        left = max(budget[0], budget[1] * times[plain]) - (clock() - began)
        return times.get(job, times[widest]) < left

    needed = [plain, draft, widest]
    for job in [*needed, *[*narrow, *second, *needed] * RUNS, *wide * RUNS]:
        if job in needed[len(times) :] or fits(job):
            start = clock()
            run(job)
            times[job] = min(clock() - start, times.get(job, math.inf))

    def further(job: Job) -> float:
        """Seconds that a second sequence adds to a job."""
        alone = times.get(Job(job.kind, job.rows), times[job])
        return max(0.0, times[job] - alone)

    block, sequence = [further(job) if job in times else 0.0 for job in second] or (0.0, 0.0)
    return Costs(times[plain], times[draft], chains(times), sequence=sequence, block=block)


def chains(times: dict[Job, float]) -> Knots:
    """The shortest time of each width of one sequence, a plain step's included."""
    found = {j.rows: s for j, s in times.items() if j.kind == "chain" and j.sequences == 1}
    return tuple(sorted({**found, 1: times[Job("plain", 1)]}.items()))
