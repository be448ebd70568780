"""Sequences to time rounds on: they pretend to hold some depth of tokens that were never read.

Their rows are zeros, which take the time that any rows take; nobody's caches are touched. Runs the
jobs of a survey as the engine runs its rounds; does not know their order, or what times are for.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import mlx.core as mx

from dflash_mlx.drafters.base import DraftSource
from dflash_mlx.models.memory import cache_bytes, working_set
from dflash_mlx.models.packed import SequencePass
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams
from dflash_mlx.policy.costs import Costs
from dflash_mlx.speculation.acceptance import Match
from dflash_mlx.speculation.drafts import Draft, DraftBlock

from .sequence import Sequence

# What a plain step, a draft and verifies of several widths take, from the times of rounds.

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


STEPS = 3  # plain steps that are timed at once
SHARE = 0.5  # of the free memory that scratch sequences may take; passes need some, too


class Scratch:
    """Two sequences of `depth` tokens, which draft blocks of `block_size` rows.

    Without a drafter "draft" is no job of theirs.
    """

    def __init__(self, target: Target, drafter: DraftSource | None, depth: int, block_size: int):
        self._target, self._drafter, self._depth = target, drafter, depth
        self._block_size, self._none = block_size, Draft.none()
        self._rule = Match(SamplingParams(), target.vocab_size, target.kernels)
        self._sequences = [Sequence(target, drafter) for _ in range(2)]
        for sequence in self._sequences:
            sequence.read(self._ids(2))
            sequence.target_cache.fill(depth)
            sequence.target_cache.snapshot()
            if sequence.draft_cache is not None:
                sequence.draft_cache.fill(depth)
            sequence.tokens = [0] * depth
        (found,) = self._verify(self._sequences[:1], min(block_size, depth))
        self._taps = found.taps[:, : half(min(block_size, depth))]
        mx.eval(self._taps)
        self._sequences[0].rewind(depth)

    def run(self, job: Job) -> float:
        """Seconds of one job, its rows shared evenly; afterwards the sequences are as before.

        "plain" is a step among others, "draft" a block by itself, "chain" a whole round, "look" one
        that reads the drafter's confidence before the verify is built.
        """
        some = self._sequences[: job.sequences]
        caches = [s.draft_cache for s in some if s.draft_cache is not None]
        for cache in caches:  # what the round before committed waits for the drafter
            cache.rewind(self._depth - self._taps.shape[1])
            cache.absorb(self._taps, [0] * self._taps.shape[1])
        if job.kind == "plain":
            return self._plain_steps(some[0])
        began = time.perf_counter()
        blocks = self._draft(some)
        drafts = [self._rule.draft(block, []).tokens for block in blocks]
        if job.kind == "draft":
            mx.eval(drafts)
            return time.perf_counter() - began
        said = [block.confidence() for block in blocks] if job.kind == "look" else []
        mx.async_eval(drafts)
        for read in said:
            read()
        self._verify_and_commit(some, job.rows // len(some))
        seconds = time.perf_counter() - began
        for sequence in some:
            sequence.rewind(self._depth)
        return seconds

    def _plain_steps(self, sequence: Sequence) -> float:
        """Seconds of a plain step, as the engine takes them: the next begins before it is read."""
        began, ahead = 0.0, self._verify([sequence], 1)[0]
        for number in range(STEPS + 1):
            passed = ahead
            choice, outcome = self._rule.step(passed.logits, [], number)
            mx.async_eval(outcome)
            (ahead,) = self._target.read([sequence.rows(choice, self._none.tokens)])
            mx.async_eval(ahead.logits)
            self._rule.accept(self._none, outcome)
            sequence.commit((0,), passed.taps, all_kept=True)
            if number == 0:
                began = time.perf_counter()
        seconds = (time.perf_counter() - began) / STEPS
        mx.eval(ahead.logits, sequence.state)
        sequence.rewind(self._depth)
        return seconds

    def _draft(self, some: list[Sequence]) -> list[DraftBlock]:
        """A block each; evaluates nothing."""
        caches = [s.draft_cache for s in some if s.draft_cache is not None]
        if self._drafter is None:
            return []
        return self._drafter.draft(caches, self._ids(len(some)), self._block_size)

    def _verify_and_commit(self, some: list[Sequence], rows: int) -> None:
        """The rest of a round; half of each chain is kept, whatever the target says."""
        found = self._verify(some, rows)
        draft = Draft(mx.array(self._ids(rows)[1:], dtype=mx.int32))
        outcomes = [self._rule.outcome(draft, part.logits, [], 0) for part in found]
        mx.async_eval(outcomes)
        for sequence, part, outcome in zip(some, found, outcomes, strict=True):
            self._rule.accept(draft, outcome)
            sequence.commit((0,) * half(rows), part.taps)
            if sequence.target_cache.needs_snapshots:  # states are replayed, which takes time
                mx.eval(sequence.target_cache.state)

    def _verify(self, some: list[Sequence], rows: int) -> list[SequencePass]:
        anchor, *drafts = self._ids(rows)
        tokens = mx.array(drafts, dtype=mx.int32)
        parts = [s.rows(mx.array([anchor]), tokens) for s in some]
        return self._target.read(parts, at_once=True)

    def _ids(self, count: int) -> list[int]:
        """Different tokens: rows of a mixture of experts must not all go to the same."""
        return [(7919 * number + 13) % self._target.vocab_size for number in range(count)]


def half(rows: int) -> int:
    """Rows of a chain that a typical round keeps."""
    return 1 + (rows - 1) // 2


def depth_that_fits(target: Target, drafter: DraftSource | None, depth: int, free: int) -> int:
    """As deep as two scratch sequences fit into a share of `free` bytes, `depth` at most."""
    item = target.embed(mx.array([0])).dtype.size
    row = 0 if drafter is None else drafter.row_bytes(item)
    while depth > 1 and 2 * (cache_bytes(target.config, depth, item) + depth * row) > SHARE * free:
        depth //= 2
    return depth


def measure(
    target: Target,
    drafter: DraftSource | None,
    depth: int,
    block_size: int,
    *,
    budget: tuple[float, int] = BUDGET,
) -> Costs:
    """The costs of a pair at a context of `depth` tokens, or less where memory is short.

    Of a sharded target these are rank 0's times, and the slowest rank decides them: each layer's
    sums wait for all ranks, so that no pass ends here before it can end everywhere. `budget` as in
    `survey`.
    """
    depth = depth_that_fits(target, drafter, depth, working_set() - mx.get_active_memory())
    scratch = Scratch(target, drafter, depth, block_size)
    costs = survey(scratch.run, block_size, batch=True, drafts=drafter is not None, budget=budget)
    mx.clear_cache()
    return replace(costs, depth=depth)
