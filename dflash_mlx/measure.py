"""What a plain step, a draft and verifies of several widths take on this machine, measured once.

Runs passes of a loaded pair on caches of its own, which pretend to hold a context of some depth:
their rows are zeros, which take the time that any rows take. A conversation's caches are not
touched. Costs are kept in the user's cache folder. Does not know how they are used.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median
from typing import Any

import mlx.core as mx

from .context import Context
from .costs import Costs, knots
from .pair import Pair
from .stretch import stretch

Clock = Callable[[], float]
Job = tuple[str, int]  # what is measured, and its rows

BUDGET = 0.4  # seconds, or as many plain steps as follow, if that is more
STEPS = 16
REPEATS = 3
WIDTHS = (8, 4, 2, 16, 24, 32, 64)  # in the order of their use
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

    Every job runs once unmeasured, then up to three times in turn with the others; its median
    counts. What time is left looks for the widths at which costs step up, between measured ones.
    When the budget is spent, jobs that were not begun are left out; a plain step, a draft and the
    widest chain never are.
    """
    began, times = clock(), dict[Job, list[float]]()

    def once(job: Job) -> None:
        start = clock()
        run(job)
        times.setdefault(job, []).append(clock() - start)

    def left() -> float:
        spent = clock() - began
        least = min(times.get(("plain", 1), [0.0]))
        return max(budget, STEPS * least) - spent

    def dear(job: Job) -> float:
        return 2 * min(times[job]) if job in times else 0.0

    must: list[Job] = [("plain", 1), ("draft", block_size), ("chain", block_size)]
    wanted: list[Job] = [("chain", rows) for rows in WIDTHS if rows < block_size]
    wanted += [("tree", rows) for rows in trees]
    for job in (*must, *wanted):
        if job in must or left() > dear(must[2]):
            once(job)  # builds what is built once for a shape
            once(job)
    for _ in range(REPEATS - 1):
        for job in list(times):
            if left() > dear(job):
                once(job)
    while (rows := hidden(times)) and left() > dear(must[2]):
        for _ in range(REPEATS):
            once(("chain", rows))
    took = {job: median(found[1:]) for job, found in times.items()}
    plain = took["plain", 1]
    return Costs(
        plain=plain,
        draft=took["draft", block_size],
        chain=knots([(1, plain), *((rows, s) for (kind, rows), s in took.items() if kind == "chain")]),
        tree=knots((rows, s) for (kind, rows), s in took.items() if kind == "tree"),
    )


def hidden(times: dict[Job, list[float]]) -> int:
    """The width to measure next: in the middle of the highest step between two chains, or 0."""
    took = sorted((rows, median(s[1:])) for (kind, rows), s in times.items() if kind == "chain")
    took.insert(0, (1, median(times["plain", 1][1:])))
    gaps = [
        (more - less, (low + high) // 2)
        for (low, less), (high, more) in zip(took, took[1:], strict=False)
        if high - low > 1 and more > NOTABLE * less
    ]
    return max(gaps, default=(0.0, 0))[1]


class Scratch:
    """A context of `depth` tokens that were never read, to time passes on."""

    def __init__(self, pair: Pair, depth: int, tree_of: Callable[[int], Any] | None = None):
        """`tree_of` gives a draft tree of so many nodes, for the verify of a tree."""
        assert pair.drafter is not None
        self._context: Any = Context(pair.target, pair.drafter)
        self._tree_of, self._vocab = tree_of, pair.target.vocab_size
        self._context.fill(self._ids(2), lambda done: None)
        stretch(self._context, depth)
        self._depth = depth
        self.build = 0.0

    def run(self, job: Job) -> None:
        """One job, to its end; afterwards the context is as it was before."""
        kind, rows = job
        if kind == "draft":
            mx.eval(self._context.draft_cache.slots(self._ids(1)[0], rows).likeliest().tokens)
            return
        began = time.perf_counter()
        anchor, *drafts = self._ids(rows)
        tree = () if kind != "tree" or self._tree_of is None else (self._tree_of(rows - 1),)
        logits, taps = self._context.verify(anchor, mx.array(drafts, dtype=mx.int32), *tree)
        best = mx.argmax(logits, axis=-1)
        mx.async_eval(best)
        self.build = time.perf_counter() - began
        mx.eval(best, taps)
        kept = 1 + rows // 2
        if tree:
            self._context.target_cache.rewind(self._depth)
        else:
            self._context.target_cache.rewind(self._depth + min(kept, rows))
        self._context.draft_cache.absorb(taps[:, :kept])
        mx.eval(self._context.draft_cache.state, self._context.target_cache.state)
        self._context.target_cache.rewind(self._depth)
        self._context.draft_cache.rewind(self._depth)

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
    budget: float = BUDGET,
) -> Costs:
    """The costs of a pair at a context of `depth` tokens, in a few tenths of a second.

    `grow` are the seconds that building a tree takes on the host.
    """
    assert pair.drafter is not None
    scratch = Scratch(pair, depth, tree_of)
    size = block_size or pair.drafter.config.block_size
    costs = survey(scratch.run, size, trees if tree_of else (), budget=budget)
    # Without a look the verify's graph is built while the drafter still runs.
    scratch.run(("chain", size))
    look = min(scratch.build, costs.draft)
    mx.clear_cache()
    return replace(costs, look=look, grow=grow, depth=depth)
