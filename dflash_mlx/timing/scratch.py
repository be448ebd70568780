"""Sequences to time passes on: they pretend to hold some depth of tokens that were never read.

Their rows are zeros, which take the time that any rows take; nobody's caches are touched. Runs the
jobs of a survey; does not know their order, or what their times are for.
"""

import math
import time
from dataclasses import replace

import mlx.core as mx

from dflash_mlx.drafter.drafter import Drafter
from dflash_mlx.policy.costs import Costs
from dflash_mlx.sequence import Sequence
from dflash_mlx.target.packed import SequencePass
from dflash_mlx.target.target import Target

from .measure import BUDGET, Job, survey

WARM = 12  # passes at most to warm up: a process begins slowly


class Scratch:
    """Two sequences of `depth` tokens."""

    def __init__(self, target: Target, drafter: Drafter, depth: int):
        self._target, self._drafter, self._depth = target, drafter, depth
        self._sequences = [Sequence(target, drafter) for _ in range(2)]
        for sequence in self._sequences:
            sequence.read(self._ids(2))
            sequence.target_cache.fill(depth)
            assert sequence.draft_cache is not None
            sequence.draft_cache.fill(depth)
            sequence.tokens = [0] * depth

    def run(self, job: Job) -> None:
        """One job to its end, its rows shared evenly; afterwards the sequences are as before."""
        some = self._sequences[: job.sequences]
        if job.kind == "draft":
            caches = [s.draft_cache for s in some if s.draft_cache is not None]
            blocks = self._drafter.draft(caches, self._ids(len(some)), job.rows)
            mx.eval([block.greedy().tokens for block in blocks])
            return
        found = self._verify(some, job.rows // len(some))
        mx.eval([(mx.argmax(part.logits, axis=-1), part.taps) for part in found])
        for sequence, part in zip(some, found, strict=True):
            # A commit's work is part of a round: half of a chain is kept.
            kept = min(1 + len(part.logits) // 2, len(part.logits))
            sequence.target_cache.rewind(self._depth + kept)
            assert sequence.draft_cache is not None
            sequence.draft_cache.absorb(part.taps[:, :kept])
            mx.eval(sequence.state)
            sequence.rewind(self._depth)

    def building(self, rows: int) -> float:
        """Seconds in which the host builds the graph of a verify, without computing it."""
        began = time.perf_counter()
        self._verify(self._sequences[:1], rows)
        took = time.perf_counter() - began
        self._sequences[0].target_cache.rewind(self._depth)
        return took

    def warm_up(self, rows: int) -> None:
        """Run a chain of so many rows until it is no faster than the time before."""
        last = math.inf
        for _ in range(WARM):
            began = time.perf_counter()
            self.run(Job("chain", rows))
            took = time.perf_counter() - began
            if took > 0.95 * last:
                return
            last = took

    def _verify(self, some: list[Sequence], rows: int) -> list[SequencePass]:
        anchor, *drafts = self._ids(rows)
        tokens = mx.array(drafts, dtype=mx.int32)
        return self._target.read([s.rows(mx.array([anchor]), tokens) for s in some])

    def _ids(self, count: int) -> list[int]:
        """Different tokens: rows of a mixture of experts must not all go to the same."""
        return [(7919 * number + 13) % self._target.vocab_size for number in range(count)]


def measure(
    target: Target,
    drafter: Drafter,
    depth: int,
    block_size: int,
    *,
    budget: tuple[float, int] = BUDGET,
) -> Costs:
    """The costs of a pair at a context of `depth` tokens; `budget` as in `survey`."""
    scratch = Scratch(target, drafter, depth)
    scratch.warm_up(block_size)
    costs = survey(scratch.run, block_size, batch=True, budget=budget)
    # A verify is built while the drafter runs, and after it where the host waits for the drafts.
    graph = min(scratch.building(block_size) for _ in range(5))
    mx.clear_cache()
    return replace(costs, read=min(costs.draft, graph), depth=depth)
