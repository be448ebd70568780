"""What passes move and dispatch, counted at the shapes of published pairs; nothing is computed.

No pass may copy a cache or a state, dispatch much more than stock mlx-lm does for the same rows, or
move much more than it has to. A fault of each kind is planted, and seen.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from count.chips import Chip, chip_named
from ledger.buffers import command_buffers
from ledger.contexts import ROWS, SLIDING, STATE
from ledger.fold import fold
from ledger.fused import patterns
from ledger.layout import Layout, reshaped
from ledger.least import least
from ledger.passes import TracedPair, sample_tree
from ledger.published import LIQUID, PAIRS, Published
from ledger.report import HEAD, Line
from ledger.trace import Graph, trace
from ledger.traffic import GROUPED, Cost, copies, costs
from mlx import nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.cache import RotatingKVCache

from dflash_mlx.drafters.dflash.model import CachedRows
from dflash_mlx.kernels.dispatch import Kernels
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.models import gated_delta as deltas
from dflash_mlx.models import recurrent as layers
from dflash_mlx.models.attention import Attention, MaskedRows
from dflash_mlx.models.cache import recurrent, sliding
from dflash_mlx.models.cache.sliding import SlidingCache
from dflash_mlx.options import SamplingParams

ROOT = Path(__file__).parents[2]
M1, M4, M5 = (chip_named(name) for name in ("M1", "M4", "M5"))
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
    "step": lambda pair: pair.step(DEPTH),
    "commit": lambda pair: pair.verify(DEPTH, BLOCK, kept=KEPT),
    "path": lambda pair: pair.verify(DEPTH, TREE.rows, TREE, PATH),
    "draft": lambda pair: pair.draft(DEPTH),
    "prompt": lambda pair: pair.prompt(DEPTH, 24),
    "packed": lambda pair: pair.packed(DEPTH, 4, 2),
}


@pytest.fixture(autouse=True)
def much_room(little_room: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is outside the tests."""
    monkeypatch.setattr(sliding, "ROOM", 256)


@cache
def traced_pair(name: str) -> TracedPair:
    """One pair, whose kernels are switched."""
    return TracedPair(next(pair for pair in PAIRS if pair.name == name), Kernels())


def pair_of(name: str, kernels: bool) -> TracedPair:
    """A pair with all kernels or with none."""
    pair = traced_pair(name)
    pair.target.kernels = Kernels(MetalLauncher()) if kernels else Kernels()
    return pair


def dispatches(graph: Graph) -> int:
    """Of the whole pass."""
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


@every_pair
def test_decisions_read_the_logits_once(name: str) -> None:
    """A greedy one by its kernel; a sampled one sorts nothing, and moves little beside a verify."""
    without = pair_of(name, kernels=False).accept(BLOCK, SamplingParams())
    pair = pair_of(name, kernels=True)
    greedy = pair.accept(BLOCK, SamplingParams())
    assert moved(greedy) <= 1.01 * least(greedy)
    assert 2 * dispatches(greedy) < dispatches(without)
    sampled = pair.accept(BLOCK, SamplingParams(temperature=1.0, seed=0))
    assert moved(sampled) <= 0.07 * moved(pair.verify(DEPTH, BLOCK))
    assert not any("Sort" in op.name for op in sampled.operations)


def moved(graph: Graph) -> int:
    """Bytes read and written."""
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
    """A kernel's."""
    return str(cost.op.arguments[0]) if cost.op.name == "CustomKernel" else ""


def same(x: mx.array) -> mx.array:
    """An array as one that an index gives: copied."""
    return x[0][None]


def indexed_cache(patch: pytest.MonkeyPatch) -> None:
    """Keys and values for the kernel are taken by an index."""
    honest = MaskedRows.cached

    def cached(*args: Any) -> Any:
        found = honest(*args)
        assert found is not None
        return replace(found, keys=same(found.keys), values=same(found.values))

    patch.setattr(MaskedRows, "cached", cached)


def indexed_state(patch: pytest.MonkeyPatch) -> None:
    """So is the state before a recurrent layer's rows."""
    honest = deltas.read

    def read(*args: Any) -> Any:
        kernels, net, fed, state, tree = args
        return honest(kernels, net, fed, same(state), tree)

    patch.setattr(layers, "read", read)


def stacked_states(patch: pytest.MonkeyPatch) -> None:
    """A replay puts the states of all layers into one array first."""
    honest = deltas.replay

    def replay(tapes: Any, rows: Any) -> Any:
        together = mx.split(mx.concatenate([tape.state for tape in tapes]), len(tapes))
        each = zip(tapes, together, strict=True)
        return honest([replace(tape, state=state) for tape, state in each], rows)

    patch.setattr(recurrent, "replay", replay)


def joined_rows(patch: pytest.MonkeyPatch) -> None:
    """A draft's context and block are put into new arrays."""

    def joined(self: CachedRows, keys: mx.array, values: mx.array) -> Any:
        held: Any = self.cache.keys_and_values()
        each = zip(held, (keys, values), strict=True)
        return tuple(mx.concatenate([*parts], axis=2) for parts in each)

    patch.setattr(CachedRows, "joined", joined)


def windows_of_mlx_lm(patch: pytest.MonkeyPatch) -> None:
    """A sliding layer's window is written anew by every pass."""
    patch.setattr(SlidingCache, "update_and_fetch", RotatingKVCache.update_and_fetch)


@pytest.mark.parametrize(
    ("fault", "name", "what"),
    [
        (indexed_cache, DENSE, "commit"),
        (indexed_cache, OSS, "path"),
        (indexed_state, HYBRID, "path"),
        (stacked_states, HYBRID, "commit"),
        (joined_rows, DENSE, "draft"),
        (windows_of_mlx_lm, GEMMA, "commit"),
    ],
)
def test_planted_copies_are_found(fault: Callable[..., None], name: str, what: str) -> None:
    """Each way in which passes did copy."""
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        graph = PASSES[what](pair_of(name, kernels=True))
    assert copies(graph, HELD)


def test_a_planted_operation_a_layer_is_found() -> None:
    """Three more a layer are too many."""
    pair = pair_of(DENSE, kernels=False)
    stock = dispatches(pair.stock_rows(DEPTH, BLOCK))
    with pytest.MonkeyPatch.context() as patch:
        honest = Attention._attend

        def attend(*args: Any) -> mx.array:
            return honest(*args) * 2.0 + 1.0 - 1.0

        patch.setattr(Attention, "_attend", attend)
        ours = dispatches(pair.verify(DEPTH, BLOCK))
    assert ours > stock + 2 * pair.target.layers


def test_weights_that_are_read_twice_are_found() -> None:
    """The least does not grow with them."""
    pair = pair_of(DENSE, kernels=False)
    with pytest.MonkeyPatch.context() as patch:
        honest = nn.QuantizedLinear.__call__

        def halves(self: Any, x: mx.array) -> mx.array:
            return mx.concatenate([honest(self, part) for part in mx.split(x, 2, axis=1)], axis=1)

        patch.setattr(nn.QuantizedLinear, "__call__", halves)
        graph = pair.verify(DEPTH, 2 * BLOCK)
    assert moved(graph) > SLACK * least(graph) + known(graph)


def row(x: mx.array) -> list[mx.array]:
    """An index into the first axis."""
    return [x[0]]


def written_behind(x: mx.array, y: mx.array) -> list[mx.array]:
    """Rows 4 and 5 of an array are written, and its first six are looked at."""
    x[:, 4:6] = y
    return [x[:, :6]]


@pytest.mark.parametrize(
    ("fn", "shapes", "count", "nbytes"),
    [
        (row, [(1, 8, 4)], 1, 2 * 64 + 4),
        (lambda x: [x.squeeze(0)], [(1, 8, 4)], 0, 0),
        (lambda x: [x.swapaxes(0, 1)[2:4]], [(8, 4)], 0, 0),
        (lambda x: [x.swapaxes(0, 1).reshape(4, 2, 4)], [(8, 4)], 0, 0),
        (lambda x: [x.swapaxes(0, 1).reshape(32)], [(8, 4)], 1, 2 * 64),
        (lambda x, y: [mx.concatenate([x, y, x])], [(8, 4), (2, 4)], 3, 2 * (64 + 16 + 64)),
        (lambda x, y: [mx.stack([x, y])], [(8, 4), (8, 4)], 2, 4 * 64),
        (lambda x, y: [x * y], [(8, 4), (4,)], 1, 2 * 64 + 8),
        (written_behind, [(1, 8, 4), (1, 2, 4)], 1, 2 * 16),
    ],
    ids="index squeeze slice split-axis flatten concatenate stack broadcast update".split(),
)
def test_rules(fn: Callable[..., Any], shapes: list[Any], count: int, nbytes: int) -> None:
    """Dispatches and bytes of single operations on 16-bit arrays, by hand."""
    graph = trace(fn, [mx.zeros(shape, mx.bfloat16) for shape in shapes])
    assert dispatches(graph) == count
    assert moved(graph) == nbytes


def test_a_product_of_few_rows_reads_its_matrix_for_each() -> None:
    """Five share a read from M3 on. Of a mixture it reads the experts that are picked.

    They are read once each where many rows are sorted by expert.
    """
    x, packed = mx.zeros((16, 64), mx.bfloat16), mx.zeros((16, 8), mx.uint32)
    scales, biases = mx.zeros((16, 1), mx.bfloat16), mx.zeros((16, 1), mx.bfloat16)
    matrix = packed.nbytes + scales.nbytes + biases.nbytes

    def product(x: mx.array, w: mx.array, s: mx.array, b: mx.array) -> list[mx.array]:
        return [mx.quantized_matmul(x, w, s, b, True, 64, 4)]

    four = trace(product, [x[:4], packed, scales, biases])
    for chip, times in ((M1, 4), (M4, 1)):
        (cost,) = costs(four, chip)
        assert (cost.read, cost.again) == (times * matrix + x.nbytes // 4, (times - 1) * matrix)
    for ordered, again in ((False, 14), (True, 0)):

        def experts(*args: mx.array, ordered: bool = ordered) -> list[mx.array]:
            *given, at = args
            return [mx.gather_qmm(*given, rhs_indices=at, sorted_indices=ordered)]

        wide = [mx.broadcast_to(part, (2, *part.shape)) for part in (packed, scales, biases)]
        graph = trace(experts, [x[:, None], *wide, mx.zeros((16,), mx.uint32)])
        cost = costs(graph)[-1]
        assert cost.read == pytest.approx((2 + again) * matrix + x.nbytes + 2 * 64, rel=1e-3)
        assert cost.again == pytest.approx(again * matrix, rel=1e-3)


@pytest.mark.parametrize(
    ("chip", "rows", "count", "times", "partial"),
    [
        (M1, 16, 2, 1, 4 * 16 * 4096 * 4),  # 128 tiles of 512
        (M4, 14, 1, 3, 0),  # vectors below 15 rows
        (M4, 15, 2, 1, 4 * 15 * 4096 * 4),
        (M5, 16, 1, 4, 0),  # and below 25
    ],
)
def test_a_product_in_parts(chip: Chip, rows: int, count: int, times: int, partial: int) -> None:
    """A product of matrices with few results is cut, and a second dispatch adds the parts."""
    packed, scale = mx.zeros((4096, 512), mx.uint32), mx.zeros((4096, 64), mx.bfloat16)

    def product(x: mx.array, w: mx.array, s: mx.array, b: mx.array) -> list[mx.array]:
        return [mx.quantized_matmul(x, w, s, b, True, 64, 4)]

    graph = trace(product, [mx.zeros((rows, 4096), mx.bfloat16), packed, scale, scale])
    (cost,) = costs(graph, chip)
    matrix = packed.nbytes + 2 * scale.nbytes
    assert (cost.dispatches, cost.again, cost.parts) == (count, (times - 1) * matrix, partial)
    assert cost.written == rows * 4096 * 2 + partial


def test_norms_and_ropes_copy_what_lies_apart() -> None:
    """A norm of a slice of heads does; a rope of a part of a head does, but of one row."""
    whole = mx.zeros((1, 4, 2, 128), mx.bfloat16)

    def normed(x: mx.array) -> list[mx.array]:
        return [mx.fast.rms_norm(x[..., :64], mx.ones((64,), mx.bfloat16), 1e-5)]

    def turned(x: mx.array) -> list[mx.array]:
        x = x.swapaxes(1, 2)
        return [mx.fast.rope(x, 32, traditional=False, base=1e4, scale=1.0, offset=5)]

    def names(fn: Callable[..., Any], x: mx.array) -> list[tuple[str, int]]:
        found = costs(fold(trace(fn, [x]), patterns(())))
        return [(cost.op.name, cost.copied) for cost in found if "R" in cost.op.name]

    half = whole.nbytes // 2
    assert names(normed, whole) == [("RMSNorm", half), ("RMSNorm", 0)]
    assert names(turned, whole) == [("PartialRoPE", whole.nbytes), ("PartialRoPE", 0)]
    assert names(turned, whole[:, :1]) == [("PartialRoPE", 0)]


def test_a_scaled_norm_is_two_operations() -> None:
    """A scalar is no weight."""
    graph = trace(
        lambda x: [0.5 * mx.fast.rms_norm(x, None, 1e-5)], [mx.zeros((1, 3, 8), mx.bfloat16)]
    )
    assert dispatches(fold(graph, patterns(()))) == 2


@pytest.mark.parametrize(("chip", "count"), [("M1", 1), ("M4 Max", 2)])
def test_attention_splits_the_keys_on_large_chips(chip: str, count: int) -> None:
    """From 1,024 keys on, and on others from 4,096."""
    q, kv = mx.zeros((1, 8, 2, 128), mx.bfloat16), mx.zeros((1, 2, 1024, 128), mx.bfloat16)

    def attend(q: mx.array, k: mx.array, v: mx.array) -> list[mx.array]:
        return [mx.fast.scaled_dot_product_attention(q, k, v, scale=0.5)]

    graph = fold(trace(attend, [q, kv, kv]), patterns(()))
    (cost,) = costs(graph, chip_named(chip))
    parts = 64 * (q.nbytes + 8 * 2 * 8) if count == 2 else 0  # 64 blocks
    assert (cost.dispatches, cost.parts) == (count, parts)


def test_the_least_of_a_mixture_is_what_its_rows_pick_on_average() -> None:
    """Two rows of a mixture of 4 experts, one each, pick 4 * (1 - (3 / 4) ** 2) of them."""
    x = mx.zeros((2, 1, 64), mx.bfloat16)
    packed, scale = mx.zeros((4, 16, 8), mx.uint32), mx.zeros((4, 16, 1), mx.bfloat16)

    def experts(*args: mx.array) -> list[mx.array]:
        *given, at = args
        return [mx.gather_qmm(*given, rhs_indices=at)]

    graph = trace(experts, [x, packed, scale, scale, mx.zeros((2,), mx.uint32)])
    expert = (packed.nbytes + 2 * scale.nbytes) / 4
    rest = x.nbytes + 2 * 4 + 2 * 16 * 2
    assert least(graph) == pytest.approx(1.75 * expert + rest, abs=2)


def test_compiled_functions_are_one_operation() -> None:
    """And an operation behind one is another."""
    arrays = [mx.zeros((1, 3, 8), mx.bfloat16)] * 2
    for fn, count in ((lambda a, b: [swiglu(a, b)], 1), (lambda a, b: [swiglu(a, b) + a], 2)):
        assert dispatches(fold(trace(fn, arrays), patterns(()))) == count


def test_views_follow_strides() -> None:
    """A transposed array keeps its memory until strides cannot say where its elements are."""
    turned = Layout((4, 8), (1, 4), "x")
    assert not turned.contiguous
    assert reshaped(turned, (4, 2, 4)) == Layout((4, 2, 4), (1, 16, 4), "x")
    assert reshaped(turned, (32,)) is None
    assert Layout((4, 8), (0, 1), "x").elements == 8


def test_a_line_of_the_table() -> None:
    """Its columns stand under their titles."""
    line = str(
        Line("verify 16", 1024, "stock", 727, 32, 4_534_000_000, 0, 106_600_000, 4_418_300_000)
    )
    assert len(line) == len(HEAD)
    assert line.split()[-1] == "1.05"


def test_command_buffers() -> None:
    """41 dispatches fill one of a base chip, 51 one of a large chip; so do as many Mi elements."""

    def many(x: mx.array) -> list[mx.array]:
        for _ in range(60):
            x = mx.exp(x)
        return [x]

    graph = trace(many, [mx.zeros((8,), mx.bfloat16)])
    assert command_buffers(graph, M1) == 2
    large = trace(lambda x, y: [mx.exp(x), mx.exp(y)], [mx.zeros((41, 1 << 19))] * 2)
    assert command_buffers(large, M1) == 3  # each operation names 41 Mi elements
    assert command_buffers(large, chip_named("M1 Max")) == 2
    assert command_buffers(trace(many, [mx.zeros((8,))]), chip_named("M1 Max")) == 2


def test_a_round_of_another_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cuts rejected rows off costs as much as stock's pass; one that copies, that too."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "measure"))
    theirs = import_module("ledger_others").Theirs
    pair = pair_of(DENSE, kernels=False)

    class Cut(theirs):
        """A pass of mlx-lm, and a trim."""

        def __init__(self) -> None:
            self.pair = pair

        def round(self, tokens: mx.array, caches: list[Any], kept: int) -> list[mx.array]:
            found = pair.stock(tokens, cache=caches)
            for one in caches:
                one.trim(tokens.shape[1] - kept)
            return [found]

    class Copied(Cut):
        """Its rows are put into a new array."""

        def round(self, tokens: mx.array, caches: list[Any], kept: int) -> list[mx.array]:
            found = super().round(tokens, caches, kept)
            for one in caches:
                one.keys = mx.concatenate([one.keys, one.keys[:, :, :1]], axis=2)
            return found

    stock = pair.stock_rows(DEPTH, BLOCK)
    assert dispatches(Cut().verify(DEPTH, BLOCK, 5)) == dispatches(stock)
    assert copies(Copied().verify(DEPTH, BLOCK, 5), HELD)
