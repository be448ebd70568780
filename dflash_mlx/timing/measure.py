"""What a plain step, a draft and verifies of several widths take on this machine, measured once.

Runs passes of a loaded pair on caches of its own, which pretend to hold a context of some depth:
their rows are zeros, which take the time that any rows take. A conversation's caches are not
touched. Costs are kept in the user's cache folder. Does not know how they are used.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import mlx.core as mx

from dflash_mlx.context import Context, Pass
from dflash_mlx.pair import Pair
from dflash_mlx.policy.costs import Costs

from .stretch import stretch

Clock = Callable[[], float]
Job = tuple[str, int]  # what is measured, and its rows
Times = dict[Job, list[float]]

BUDGET = 0.4  # seconds, or as many plain steps as follow, if that is more
STEPS = 24
BUILDS, WARM = 5, 12
REPEATS, FINER = 3, 2  # runs after the first; widths that are added before the first of them
PLAIN = ("plain", 1)
WIDTHS = (4, 2, 8, 16, 24, 32, 64)  # in the order of their use
ALIKE, MOST = 1.08, 8  # what two runs that nothing disturbed may differ by; runs of one pass
NOTABLE = 1.06  # a cost that is this much higher hides a step worth finding


def survey(
    run: Callable[[Job], None],
    block_size: int,
    trees: Iterable[int] = (),
    *,
    budget: float = BUDGET,
    clock: Clock = time.perf_counter,
) -> Costs:
    """Costs from timing `run` of jobs ("plain", 1), ("draft", B), ("chain", rows), ("tree", rows).

    Every job runs once, then up to three times more in turn with the others, those more often that
    look too dear beside the others. The shortest time counts: other work on the machine only adds,
    and so does what is built in a first run. Widths are added on the way, to find where between
    measured ones the costs step up. When the budget is spent, jobs that were not begun are left
    out; a plain step, a draft and the widest chain never are. On a machine that is not quiet it
    takes up to half as long again.
    """
    began, times = clock(), dict[Job, list[float]]()

    def once(job: Job) -> None:
        start = clock()
        run(job)
        times.setdefault(job, []).append(clock() - start)

    def fits(job: Job, more: float = 1.0) -> bool:
        """Whether there is time for this job, once or twice."""
        most = more * max(budget, STEPS * min(times[PLAIN]))
        return clock() - began + min(times.get(job, times[widest])) < most

    widest = ("chain", block_size)
    wanted: list[Job] = [("chain", rows) for rows in WIDTHS if rows < block_size]
    wanted += [("tree", rows) for rows in trees]
    for job in (PLAIN, ("draft", block_size), widest, *wanted):
        if widest not in times or fits(job):
            once(job)
    for number in range(1, REPEATS + 1):
        for job in filter(fits, odd(times)):  # or a step would be sought where there is none
            once(job)
        for _ in range(number * FINER):
            if (rows := hidden(times)) and fits(widest):
                once(("chain", rows))
                once(("chain", rows))
        for job in filter(fits, [*odd(times), *times]):
            once(job)
    while (job := doubtful(times)) and fits(job, 1.5):
        once(job)
    return Costs(
        plain=min(times[PLAIN]),
        draft=min(times["draft", block_size]),
        chain=tuple(chains(times)),
        tree=tuple(sorted((rows, min(t)) for (kind, rows), t in times.items() if kind == "tree")),
    )


def chains(times: Times) -> list[tuple[int, float]]:
    """The shortest time of each width, a plain step's included."""
    found = [(rows, min(t)) for (kind, rows), t in times.items() if kind == "chain"]
    return sorted([(1, min(times[PLAIN])), *found])


def odd(times: Times) -> list[Job]:
    """Passes that took longer than wider ones, or more for each row than narrower ones."""
    found, jobs = chains(times), []
    trees = [(rows, min(t)) for (kind, rows), t in times.items() if kind == "tree"]
    for place, (rows, seconds) in enumerate(found):
        wider = [other for count, other in found + trees if count > rows]
        narrower = [other / count for count, other in found[:place]]
        if any(seconds > 1.05 * other for other in wider) or any(
            seconds / rows > 1.2 * other for other in narrower
        ):
            jobs.append(("chain", rows) if rows > 1 else PLAIN)
    return jobs


def doubtful(times: Times) -> Job | None:
    """The passes whose two shortest runs differ, or that are odd: the one that ran least."""
    runs = {job: sorted(took) for job, took in times.items()}
    unlike = [job for job, took in runs.items() if len(took) > 1 and took[1] > ALIKE * took[0]]
    found = [job for job in [*unlike, *odd(times)] if len(times[job]) < MOST]
    return min(found, key=lambda job: len(times[job]), default=None)


def hidden(times: Times) -> int:
    """The width to measure next, or 0: amid a high step between two chains, cheap ones first."""
    gaps = [
        (abs(more - less) / less**2, (low + high) // 2)
        for (low, less), (high, more) in pairwise(chains(times))
        if high - low > 1 and max(more, less) > NOTABLE * min(more, less)
    ]
    return max(gaps, default=(0.0, 0))[1]


class Scratch:
    """A context of `depth` tokens that were never read, to time passes on."""

    def __init__(self, pair: Pair, depth: int, tree_of: Callable[[int], Any] | None = None):
        """`tree_of` gives a draft tree of so many nodes, for the verify of a tree."""
        self._context: Any = Context(pair.target, pair.drafter)
        self._tree_of, self._vocab = tree_of, pair.target.vocab_size
        self._context.fill(self._ids(2), lambda done: None)
        stretch(self._context, depth)
        self._depth = depth

    def run(self, job: Job) -> None:
        """One job, to its end; afterwards the context is as it was before."""
        kind, rows = job
        if kind == "draft":
            anchor = self._ids(1)[0]
            mx.eval(self._context.draft_cache.slots(anchor, rows).likeliest().tokens)
            return
        tree = [self._tree_of(rows - 1)] if kind == "tree" and self._tree_of else []
        logits, taps = self._verify(rows, *tree)
        mx.eval(mx.argmax(logits, axis=-1), taps)
        target, draft = self._context.target_cache, self._context.draft_cache
        kept = rows if tree else 1 + rows // 2  # a commit's work is part of a round
        target.rewind(self._depth + (0 if tree else min(kept, rows)))
        draft.absorb(taps[:, :kept])
        mx.eval(draft.state, target.state)
        target.rewind(self._depth)
        draft.rewind(self._depth)

    def building(self, rows: int, clock: Clock = time.perf_counter) -> float:
        """Seconds in which the host builds the graph of a verify, without computing it."""
        began = clock()
        self._verify(rows)
        took = clock() - began
        self._context.target_cache.rewind(self._depth)
        return took

    def _verify(self, rows: int, *tree: Any) -> Pass:
        anchor, *drafts = self._ids(rows)
        return self._context.verify(anchor, mx.array(drafts, dtype=mx.int32), *tree)

    def _ids(self, count: int) -> list[int]:
        """Different tokens: rows of a mixture of experts must not all go to the same."""
        return [(7919 * number + 13) % self._vocab for number in range(count)]


def measure(
    pair: Pair,
    depth: int,
    *,
    block_size: int | None = None,
    trees: Iterable[int] = (),
    tree_of: Callable[[int], Any] | None = None,
    grow: float = 0.0,
    ponder: float = 0.0,
    budget: float = BUDGET,
) -> Costs:
    """The costs of a pair at a context of `depth` tokens, in a few tenths of a second.

    `grow` and `ponder` are the seconds that building a tree, and deciding by a look, take on the
    host.
    """
    assert pair.drafter is not None
    size = block_size or pair.drafter.config.block_size
    scratch = Scratch(pair, depth, tree_of)
    warm_up(scratch.run, size)
    costs = survey(scratch.run, size, trees if tree_of else (), budget=budget)
    # A verify is built while the drafter runs, and after it where the host waits for the drafts.
    build = min(scratch.building(size) for _ in range(BUILDS))
    look = min(costs.draft, build) + ponder
    mx.clear_cache()
    return replace(costs, look=look, grow=grow, depth=depth)


def warm_up(
    run: Callable[[Job], None], block_size: int, *, clock: Clock = time.perf_counter
) -> None:
    """Run the widest chain until it is no faster than the time before.

    What a process does first is slow all over, and wide passes the most.
    """
    last = math.inf
    for _ in range(WARM):
        began = clock()
        run(("chain", block_size))
        took = clock() - began
        if took > 0.95 * last:
            return
        last = took
