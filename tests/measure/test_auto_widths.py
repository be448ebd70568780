"""The mode auto on simulated Macs with counted costs, at long contexts and on small chips.

At 128k tokens attention is most of a pass, and it grows with the rows. What is held: auto never
falls below 0.96 of plain decoding. It is within 5 % of the best fixed width in most cells, and
within 12 % in all: where drafts cost half a decode step or more and gain little, pauses of auto are
too long.
"""

from functools import cache
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from auto_widths import DRAFTERS, LEAST, cell
from counted_macs import LOW, Outcome, auto_at, costs_at, counted_mac, outcome
from ledger.costs import FAR, NEAR, STOCK_ATTENTION, CountedPair, shortened
from ledger.fold import fold
from ledger.forecast import chip_named
from ledger.fused import patterns
from ledger.layout import layouts
from ledger.measured import load as measured
from ledger.passes import TracedPair
from ledger.raced import Clock, Pass, Product, kernels, raced
from ledger.recorded import CONTEXTS, MEMORY, Recorded, load, published
from ledger.trace import Graph, trace
from simulated import Drafter

from dflash_mlx.engine import latency_table
from dflash_mlx.kernels import verify_attention
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.kernels.verify_attention import Rows, Scores

MACS = load()
CELLS = [(mac, depth) for mac in MACS for depth in mac.costs]
LONG = CONTEXTS[-1]


def mac_named(chip: str, pair: str = "Qwen3-8B", bits: int = 4) -> Recorded:
    """A recorded pair on a chip."""
    (found,) = (mac for mac in MACS if (mac.chip, mac.pair, mac.bits) == (chip, pair, bits))
    return found


@pytest.mark.quick_every(29)
@pytest.mark.parametrize(("mac", "depth"), CELLS, ids=[f"{mac}, {depth}" for mac, depth in CELLS])
def test_auto_loses_nothing(mac: Recorded, depth: int) -> None:
    """Whatever the drafts are worth: near plain decoding and near the best width at least."""
    for tau, drafter in DRAFTERS.items():
        found = auto_at(mac, depth, drafter)
        assert found.over_plain >= LEAST[0], f"tau {tau}: {cell(found)}"
        assert found.over_best >= 0.88, f"tau {tau}: {cell(found)}"


def with_costs_of(mac: Recorded, surveyed: int, depth: int, drafter: Drafter) -> Outcome:
    """Mode auto after `depth` tokens, with the costs of `surveyed` tokens."""
    return outcome(counted_mac(mac, depth), counted_mac(mac, surveyed), drafter)


def test_fault_costs_without_depth() -> None:
    """Costs of a short context, or of 8,192 tokens, let auto draft where drafts lose."""
    mac = mac_named("M5 Max")
    for surveyed in (128, 8192):
        assert with_costs_of(mac, surveyed, LONG, LOW).over_plain < LEAST[0]
    assert with_costs_of(mac, LONG, LONG, LOW).over_plain >= LEAST[0]


def test_fault_depths_that_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through the table's own choice of a depth."""
    monkeypatch.setattr(latency_table, "DEPTHS", latency_table.DEPTHS[:5])
    assert auto_at(mac_named("M5 Max"), LONG, LOW).over_plain < LEAST[0]


@pytest.mark.parametrize(("tau", "drafter"), DRAFTERS.items())
def test_the_drafts_are_worth_what_is_said(tau: str, drafter: Drafter) -> None:
    """Tokens of a round of 16 rows, in the long run."""
    right = [block.right for seed in range(60) for block in drafter.blocks(seed)]
    assert 1 + np.mean(right) == pytest.approx(float(tau), rel=0.02)


def test_costs_grow_with_depth_and_rows() -> None:
    """Nothing is cheaper after more tokens; between two depths costs are in between."""
    for mac in MACS:
        depths = sorted(mac.costs)
        for less, more in pairwise(depths):
            one, two = mac.costs[less], mac.costs[more]
            assert all(a <= b for a, b in zip(one.verify, two.verify, strict=True)), str(mac)
            assert one.draft <= two.draft
        middle = costs_at(mac, (depths[0] + depths[1]) // 2)
        assert mac.costs[depths[0]].verify[3] <= middle.verify[3] <= mac.costs[depths[1]].verify[3]
        assert costs_at(mac, 10 * depths[-1]) == mac.costs[depths[-1]]


def test_what_is_recorded_fits_the_memory() -> None:
    """Every chip and pair is there, and no weights larger than what models may use."""
    assert {mac.chip for mac in MACS} == {*MEMORY}
    assert len({(mac.pair, mac.bits) for mac in MACS}) == 12
    assert all(mac.weights < MEMORY[mac.chip] for mac in MACS)


# The costs.


def attended(heads: int, groups: int, dim: int, rows: int, keys: int, ours: bool) -> Graph:
    """Attention of a chain over a context of `keys` tokens, by stock MLX or by our kernel."""
    q, cache = (
        mx.zeros((1, count, length, dim), mx.bfloat16)
        for count, length in ((heads, rows), (groups, keys))
    )
    block = Rows.of(keys - rows, range(-1, rows - 1))

    def run(q: mx.array, k: mx.array, v: mx.array) -> list[mx.array]:
        if ours:
            return [verify_attention.launch(MetalLauncher(), q, k, v, block, Scores(0.1))]
        return [mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1, mask="causal")]

    return fold(trace(run, [q, cache, cache]), patterns(())).reached()


# What mlx-dspark measured on an M4 Pro after 32k tokens: MLX's attention, and its own, which has
# nearly the design of ours. Heads, heads of keys, elements, rows; milliseconds.
ATTENTION = [
    ((32, 8, 128, 8), 3.05, 0.96),
    ((32, 8, 128, 16), 4.7, 2.0),
    ((24, 4, 256, 8), 7.5, 1.56),
    ((24, 4, 256, 16), 8.0, 3.3),
]


@pytest.mark.parametrize(("shape", "stock", "ours"), ATTENTION)
def test_attention_takes_what_was_measured(
    shape: tuple[int, int, int, int], stock: float, ours: float
) -> None:
    """Within a third."""
    clock = Clock(chip_named("M4 Pro"))
    for by_us, ms in ((False, stock), (True, ours)):
        graph = attended(*shape, 32_768, by_us)
        took = sum(clock.of(kernel) for kernel in kernels(graph, clock, 0))
        assert 1e3 * took == pytest.approx(ms, rel=0.34), "ours" if by_us else "MLX's"


@cache
def product_of(inputs: int, outputs: int) -> Product:
    """A product with a matrix in 4 bits."""
    packed = mx.zeros((outputs, inputs // 8), mx.uint32)
    scale = mx.zeros((outputs, inputs // 64), mx.bfloat16)

    def run(x: mx.array, w: mx.array, s: mx.array, b: mx.array) -> list[mx.array]:
        return [mx.quantized_matmul(x, w, s, b, True, 64, 4)]

    graph = trace(run, [mx.zeros((1, 16, inputs), mx.bfloat16), packed, scale, scale])
    return Product.of(graph.operations[-1], graph, layouts(graph))


# The same project's kernel for products, in milliseconds by rows.
@pytest.mark.parametrize(("rows", "ms"), [(5, 0.313), (8, 0.314), (12, 0.531), (16, 0.533)])
def test_our_products_take_what_was_measured(rows: int, ms: float) -> None:
    """Within a tenth, as MLX's own."""
    clock, product = Clock(chip_named("M4 Pro")), product_of(5120, 17_408)
    assert 1e3 * clock.of(product.ours(rows, clock)) == pytest.approx(ms, rel=0.1)
    (stock,) = (one.ms for one in measured()[1] if one.rows == rows)
    assert 1e3 * clock.of(product.stock(rows, clock)) == pytest.approx(stock, rel=0.1)


def test_few_layers_stand_for_all() -> None:
    """A pass counted from one and two layers takes as long as one of all layers; taps aside."""
    pair, clock = published("Qwen3-8B", 4), Clock(chip_named("M4 Max"))
    whole = TracedPair(pair, STOCK_ATTENTION)

    def passes(one: TracedPair) -> Pass:
        near, far = (one.verify(depth, 4, kept=range(4)) for depth in (NEAR, FAR))
        return raced(near, far, (NEAR, FAR), clock)

    short, longer, full = map(passes, (shortened(pair, 1), shortened(pair, 2), whole))
    counted = short.with_layers(longer, 35)
    for depth in (128, LONG):
        assert counted.seconds(clock, depth) == pytest.approx(full.seconds(clock, depth), rel=0.01)


@pytest.mark.slow
def test_the_record_is_what_is_counted() -> None:
    """If not, the ledger or what is known of chips has changed: run `auto_widths.py --count`."""
    mac = mac_named("M4 Max")
    counted = CountedPair(published(mac.pair, mac.bits)).on(chip_named(mac.chip))
    for depth, costs in mac.costs.items():
        found = counted.at(depth)
        assert costs.verify == pytest.approx(found.verify, rel=0.01)
        assert (costs.draft, costs.host) == pytest.approx((found.draft, found.host), rel=0.01)
