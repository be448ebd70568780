"""Measures the latencies of a pair, on scratch sequences of any depth.

Their cache rows are zeros instead of tokens that were read, which takes the same time. No other
caches are touched. The jobs run as the engine runs its rounds.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import NamedTuple

import mlx.core as mx

from dflash_mlx.drafters.base import Drafter
from dflash_mlx.models.cache.sizes import cache_bytes
from dflash_mlx.models.memory import working_set
from dflash_mlx.models.packed import SequencePass
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams
from dflash_mlx.policy.latency import Latencies
from dflash_mlx.speculation.acceptance import Match
from dflash_mlx.speculation.drafts import Draft, DraftBlock

from .sequence import Sequence

BUDGET = 8.0, 100  # seconds, or decode steps if those take longer
WARM = 0.25  # seconds of work until an idle chip reaches its full clock
TURNS = 2  # runs over all jobs: other work that slows one of them is over in the other
MORE_TURNS = 3  # at most, over the jobs whose two shortest times do not agree
AGREE = 1.2  # times one of which is at most this much longer than the other
WIDTHS = (4, 2, 8, 3, 6, 12, 16, 24, 32, 64)  # rows of chains; the budget may end before the last
STEPS = 3  # decode steps that are timed together
SHARE = 0.5  # of the free memory, for scratch sequences; the passes need the rest


class Job(NamedTuple):
    """What to time. rows: of a pass over all sequences; in a "draft", of each block.

    "plain" is a decode step among others, and "draft" only drafts. "chain" is a whole round with
    its draft, and "look" one that reads the drafter's confidence before the verify pass.
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
) -> Latencies:
    """Measure latencies with `run`, which does a job and returns its seconds.

    batch: also time two sequences, and passes wider than a block, which only batches use. drafts:
    whether there is a drafter; if not, a block takes no time. The shortest time of each job counts,
    because building kernels and other work on the machine only add to it. When the `budget`
    (seconds, or decode steps if those take longer) is spent, the remaining jobs are left out. A
    decode step, a draft and the widest chain are always timed. The latencies are `disturbed` if
    other work was running all the time: two times of a job never agreed.
    """
    plain = Job("plain", 1)
    widest = Job("chain", block_size)
    needed = [plain, *[Job("draft", block_size)] * drafts, widest]
    jobs = [*needed, *[Job("look", block_size)] * drafts]
    jobs += [Job("chain", rows) for rows in WIDTHS if rows < block_size]
    if batch:
        jobs += [Job("draft", block_size, 2)] * drafts
        jobs += [Job("chain", 2 * (block_size // 2), 2)]
        jobs += [Job("chain", rows) for rows in WIDTHS if rows > block_size]
    times: dict[Job, list[float]] = {}  # the shortest two, the shortest first
    spent = warm_up(run, widest)
    for turn in range(TURNS + MORE_TURNS):
        for job in jobs:
            first = job not in times
            if turn >= TURNS and agree(times.get(job, [])):
                continue
            steps = budget[1] * times[plain][0] if plain in times else 0.0
            if spent < max(budget[0], steps) or (first and job in needed):
                # The first run builds kernels.
                runs = [run(job) for _ in range(1 + first)]
                times[job] = sorted([*times.get(job, []), min(runs)])[:2]
                spent += sum(runs)
    shortest = {job: found[0] for job, found in times.items()}
    latencies = make_latencies(shortest, block_size)
    return replace(latencies, disturbed=not all(map(agree, times.values())))


def agree(times: list[float]) -> bool:
    """Whether sorted times of a job tell how long it takes: no other work made them longer.

    A job that was timed once is taken at its word.
    """
    return len(times) < 2 or times[1] <= AGREE * times[0]


def make_latencies(times: dict[Job, float], block_size: int) -> Latencies:
    """Latencies from the shortest times of jobs."""
    plain = times[Job("plain", 1)]
    draft = times.get(Job("draft", block_size), 0.0)
    widest = times[Job("chain", block_size)]
    chains = {job.rows: t for job, t in times.items() if job.kind == "chain" and job.sequences == 1}
    # No verify pass is faster than a decode step. If it seems to be, other work was running.
    knots = [(rows, max(plain, seconds - draft)) for rows, seconds in sorted(chains.items())]
    two_rows = 2 * (block_size // 2)
    block = max(0.0, times.get(Job("draft", block_size, 2), draft) - draft)
    alone = chains.get(two_rows, widest)
    sequence = max(0.0, times.get(Job("chain", two_rows, 2), 0.0) - alone - block)
    # Reading costs a whole draft at most. That is also assumed if no look was timed.
    read = min(draft, max(0.0, times.get(Job("look", block_size), inf) - widest))
    return Latencies(plain, draft, ((1, plain), *knots), read=read, sequence=sequence, block=block)


def warm_up(run: Callable[[Job], float], job: Job) -> float:
    """Build a job's kernels, then run it until the chip is at full clock. Returns the seconds."""
    built = run(job)
    worked = 0.0
    while worked < WARM:
        worked += run(job)
    return built + worked


class Scratch:
    """Two sequences of `depth` tokens, which draft blocks of `block_size` rows if they can."""

    def __init__(self, target: Target, drafter: Drafter | None, depth: int, block_size: int):
        self._target = target
        self._drafter = drafter
        self._depth = depth
        self._block_size = block_size
        self._rule = Match(SamplingParams(), target.vocab_size, target.kernels)
        self._sequences = [Sequence(target, drafter) for _ in range(2)]
        for sequence in self._sequences:
            sequence.read(self._ids(2))
            sequence.target_cache.fill(depth)
            sequence.target_cache.snapshot()
            if sequence.draft_cache is not None:
                sequence.draft_cache.fill(depth)
            sequence.tokens = [0] * depth
        rows = min(block_size, depth)
        (output,) = self._verify(self._sequences[:1], rows)
        self._taps = output.taps[:, : half(rows)]
        mx.eval(self._taps)
        self._sequences[0].rewind(depth)

    def run(self, job: Job) -> float:
        """Run a job, its rows shared evenly, and restore the sequences. Returns its seconds."""
        sequences = self._sequences[: job.sequences]
        caches = [s.draft_cache for s in sequences if s.draft_cache is not None]
        for cache in caches:  # the drafter has yet to read the tokens of the last round
            cache.rewind(self._depth - self._taps.shape[1])
            cache.append(self._taps, [0] * self._taps.shape[1])
        if job.kind == "plain":
            return self._plain_steps(sequences[0])
        began = time.perf_counter()
        blocks = list[DraftBlock]()
        if self._drafter is not None:
            blocks = self._drafter.draft(caches, self._ids(len(caches)), self._block_size)
        drafts = [self._rule.draft(block, None).tokens for block in blocks]
        if job.kind == "draft":
            mx.eval(drafts)
            return time.perf_counter() - began
        confidences = [block.confidence() for block in blocks] if job.kind == "look" else []
        mx.async_eval(drafts)
        for read_confidence in confidences:
            read_confidence()
        self._verify_and_commit(sequences, job.rows // len(sequences))
        seconds = time.perf_counter() - began
        for sequence in sequences:
            sequence.rewind(self._depth)
        return seconds

    def _plain_steps(self, sequence: Sequence) -> float:
        """Seconds of a decode step as the engine runs it: the next starts before it is read."""
        no_draft = Draft.none()
        began = 0.0
        (ahead,) = self._verify([sequence], 1)
        for number in range(STEPS + 1):
            output = ahead
            choice, outcome = self._rule.step(output.logits, [], number)
            mx.async_eval(outcome)
            (ahead,) = self._target.read([sequence.rows(choice, no_draft.tokens)])
            mx.async_eval(ahead.logits)
            self._rule.accept(no_draft, outcome)
            sequence.commit((0,), output.taps, all_kept=True)
            if number == 0:
                began = time.perf_counter()
        seconds = (time.perf_counter() - began) / STEPS
        mx.eval(ahead.logits, sequence.state)
        sequence.rewind(self._depth)
        return seconds

    def _verify_and_commit(self, sequences: list[Sequence], rows: int) -> None:
        """Run the rest of a round. Half of each chain is kept, whatever the target chooses."""
        outputs = self._verify(sequences, rows)
        draft = Draft(mx.array(self._ids(rows)[1:], dtype=mx.int32))
        outcomes = [self._rule.outcome(draft, output.logits, [], 0) for output in outputs]
        mx.async_eval(outcomes)
        for sequence, output, outcome in zip(sequences, outputs, outcomes, strict=True):
            self._rule.accept(draft, outcome)
            sequence.commit((0,) * half(rows), output.taps)
            if sequence.target_cache.needs_snapshots:  # states are replayed, which takes time
                mx.eval(sequence.target_cache.state)

    def _verify(self, sequences: list[Sequence], rows: int) -> list[SequencePass]:
        anchor, *drafts = self._ids(rows)
        tokens = mx.array(drafts, dtype=mx.int32)
        queries = [sequence.rows(mx.array([anchor]), tokens) for sequence in sequences]
        return self._target.read(queries, at_once=True)

    def _ids(self, count: int) -> list[int]:
        """Different tokens, so that the rows of a mixture of experts use different experts."""
        return [(7919 * number + 13) % self._target.vocab_size for number in range(count)]


def half(rows: int) -> int:
    """Rows of a chain that a typical round keeps."""
    return 1 + (rows - 1) // 2


def depth_that_fits(target: Target, drafter: Drafter | None, depth: int, free: int) -> int:
    """Halve `depth` until two scratch sequences fit into SHARE of `free` bytes."""
    item = target.dtype.size
    row = 0 if drafter is None else drafter.row_bytes(item)

    def scratch_bytes(depth: int) -> int:
        return 2 * (cache_bytes(target.caches, depth, item, target.kv_bits) + depth * row)

    while depth > 1 and scratch_bytes(depth) > SHARE * free:
        depth //= 2
    return depth


def measure(
    target: Target,
    drafter: Drafter | None,
    depth: int,
    block_size: int,
    *,
    budget: tuple[float, int] = BUDGET,
) -> Latencies:
    """Measure at `depth` tokens, or fewer if memory is short. `budget` as in `survey`."""
    depth = depth_that_fits(target, drafter, depth, working_set() - mx.get_active_memory())
    scratch = Scratch(target, drafter, depth, block_size)
    latencies = survey(
        scratch.run, block_size, batch=True, drafts=drafter is not None, budget=budget
    )
    mx.clear_cache()
    return replace(latencies, depth=depth)
