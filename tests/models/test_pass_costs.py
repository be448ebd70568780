"""What our passes move and dispatch at the shapes of published pairs, by the ledger."""

from collections.abc import Callable
from functools import cache

import mlx.core as mx
import pytest
from ledger.contexts import ROWS, SLIDING, STATE
from ledger.passes import TracedPair, traced
from ledger.published import LIQUID, PAIRS, Published
from ledger.trace import Graph
from ledger.traffic import GROUPED, Cost, costs, least
from mlx import nn
from sample_trees import sample_tree

from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.models.cache import sliding
from dflash_mlx.models.packed import SequenceRows
from dflash_mlx.options import SamplingParams
from dflash_mlx.speculation.acceptance import Match
from dflash_mlx.speculation.drafts import Draft

DENSE, EXPERTS, HYBRID, GEMMA, OSS = (pair.name for pair in PAIRS)
DEPTH, BLOCK, KEPT = 4096, 16, range(5)
TREE = sample_tree(32)
PATH = TREE.path_to(31)
NAMES = tuple(pair.name for pair in PAIRS)
every_pair = pytest.mark.parametrize("name", NAMES)
with_and_without = pytest.mark.parametrize("kernels", [False, True], ids=["off", "on"])
HELD = frozenset({ROWS, SLIDING, STATE})
Pass = Callable[[TracedPair], Graph]
SLACK = 1.05  # norms, activations and sums of a block's rows
PRODUCTS = ("QuantizedMatmul", "GatherQMM")
PASSES: dict[str, Pass] = {
    "step": lambda pair: pair.verify(DEPTH, 1),
    "commit": lambda pair: pair.verify(DEPTH, BLOCK, kept=KEPT),
    "path": lambda pair: pair.verify(DEPTH, TREE.rows, TREE, PATH),
    "draft": lambda pair: pair.draft(DEPTH, BLOCK),
    "prompt": lambda pair: prompt(pair, 24),
    "packed": lambda pair: packed(pair, 4, 2),
}


@pytest.fixture(autouse=True)
def much_room(little_room: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is outside the tests."""
    monkeypatch.setattr(sliding, "ROOM", 256)


@cache
def traced_pair(name: str) -> TracedPair:
    return TracedPair(next(pair for pair in PAIRS if pair.name == name), Kernels())


def pair_of(name: str, kernels: bool) -> TracedPair:
    pair = traced_pair(name)
    pair.target.kernels = Kernels(MetalLauncher()) if kernels else Kernels()
    return pair


def prompt(pair: TracedPair, rows: int) -> Graph:
    cache = pair.cache()

    def run() -> list[mx.array]:
        tokens = mx.zeros((rows,), mx.int32)
        (found,) = pair.target.read([SequenceRows(cache, tokens, tape=False, last=True)])
        return [found.logits, found.taps]

    return pair.traced(pair.target.model, run, cache.layers, DEPTH, (rows,))


def packed(pair: TracedPair, rows: int, sequences: int) -> Graph:
    caches = [pair.cache() for _ in range(sequences)]

    def run() -> list[mx.array]:
        tokens = mx.zeros((rows,), mx.int32)
        found = pair.target.read([SequenceRows(cache, tokens) for cache in caches])
        return [part for one in found for part in (one.logits, one.taps)]

    layers = [layer for cache in caches for layer in cache.layers]
    return pair.traced(pair.target.model, run, layers, DEPTH, (rows,))


def copies(graph: Graph, labels: frozenset[str], share: float = 0.5) -> list[Cost]:
    """Operations that copy more than `share` of an input with one of these labels."""
    found = []
    for cost in costs(graph):
        sources = [name for name in cost.of if graph.inputs.get(name) in labels]
        if any(cost.copied > share * graph.arrays[name].nbytes for name in sources):
            found.append(cost)
    return found


def dispatches(graph: Graph) -> int:
    return sum(cost.dispatches for cost in costs(graph))


@pytest.mark.quick_every(12)
@every_pair
@with_and_without
@pytest.mark.parametrize("what", PASSES)
def test_no_pass_copies_a_cache_or_a_state(name: str, kernels: bool, what: str) -> None:
    """An index into an array of one row, or a stack of layers, costs gigabytes a round."""
    graph = PASSES[what](pair_of(name, kernels))
    assert copies(graph, HELD) == []


@pytest.mark.quick_every(5)
@every_pair
@pytest.mark.parametrize("rows", [1, 2, BLOCK])
def test_as_few_dispatches_as_stock(name: str, rows: int) -> None:
    """Without kernels a verify is mlx-lm's pass, with taps: no layer adds more than two."""
    pair = pair_of(name, kernels=False)
    ours, stock = pair.verify(DEPTH, rows), pair.stock_rows(DEPTH, rows)
    assert dispatches(ours) <= dispatches(stock) + 2 * pair.target.layers


@pytest.mark.parametrize("published", LIQUID, ids=lambda pair: pair.name)
def test_a_short_convolution_costs_what_it_costs_stock(published: Published) -> None:
    """Its tape is an array that it has anyway: beside mlx-lm's pass only the taps are joined."""
    pair = TracedPair(published, Kernels())
    ours, stock = pair.verify(DEPTH, BLOCK), pair.stock_rows(DEPTH, BLOCK)
    assert dispatches(ours) <= dispatches(stock) + pair.target.tapped
    assert copies(pair.verify(DEPTH, TREE.rows, TREE, PATH), HELD) == []


@pytest.mark.quick_every(5)
@every_pair
@with_and_without
def test_little_more_than_the_least_is_moved(name: str, kernels: bool) -> None:
    """Beside activations and what is known to be moved more."""
    graph = pair_of(name, kernels).verify(DEPTH, BLOCK)
    assert moved(graph) <= SLACK * least(graph) + known(graph)


def accepted(pair: TracedPair, sampling: SamplingParams) -> Graph:
    vocab = pair.target.vocab_size
    rule = Match(sampling, vocab, pair.target.kernels)

    def run(logits: mx.array) -> list[mx.array]:
        return [rule.outcome(Draft(mx.zeros((BLOCK - 1,), mx.int32)), logits, [], 0)]

    return traced(nn.Module(), run, [("logits", mx.zeros((BLOCK, vocab), mx.bfloat16))], rows=())


@every_pair
def test_decisions_read_the_logits_once(name: str) -> None:
    """A greedy one by its kernel; a sampled one sorts nothing, and moves little beside a verify."""
    without = accepted(pair_of(name, kernels=False), SamplingParams())
    pair = pair_of(name, kernels=True)
    greedy = accepted(pair, SamplingParams())
    assert moved(greedy) <= 1.01 * least(greedy)
    assert 2 * dispatches(greedy) < dispatches(without)
    sampled = accepted(pair, SamplingParams(temperature=1.0, seed=0))
    assert moved(sampled) <= 0.07 * moved(pair.verify(DEPTH, BLOCK))
    assert not any("Sort" in op.name for op in sampled.operations)


def moved(graph: Graph) -> int:
    return sum(cost.read + cost.written for cost in costs(graph))


def known(graph: Graph) -> int:
    """Matrices that are read again, rows and results of products, what is in parts or unfused.

    A product that is a kernel by itself reads its rows and writes its results, whoever wrote the
    kernel; what it writes is not the pass's, so it is not part of the least. This package's
    attention writes what it found in each split of the context, and reads it again. MLX has no
    kernel for more than 8 rows of 256 elements a head, and writes down all scores.
    """
    found = costs(graph)
    again = sum(cost.again for cost in found)
    partial = 2 * sum(cost.parts for cost in found)
    ours = "qmm", GROUPED
    products = [
        cost
        for cost in found
        if cost.op.name in PRODUCTS or any(name in name_of(cost) for name in ours)
    ]
    beside = sum(graph.arrays[cost.op.inputs[0]].nbytes + cost.written for cost in products)
    parts = [
        part
        for cost in found
        if "verify_attention_combine" in name_of(cost)
        for part in dict.fromkeys(cost.op.inputs)
    ]
    scores = [cost for cost in found if cost.op.name in ("Softmax", "Select")]
    return (
        again
        + partial
        + beside
        + 2 * sum(graph.arrays[part].nbytes for part in parts)
        + 2 * sum(cost.read + cost.written for cost in scores)
    )


def name_of(cost: Cost) -> str:
    return str(cost.op.arguments[0]) if cost.op.name == "CustomKernel" else ""
