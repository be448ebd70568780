"""The costs that mode auto begins with on Macs are counted: here beside what others measured."""

import mlx.core as mx
import pytest
from ledger.chips import chip_named
from ledger.fold import fold
from ledger.fused import patterns
from ledger.products import Product
from ledger.tally import ours, raced
from ledger.trace import Graph, trace

from dflash_mlx.kernels import verify_attention
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.kernels.verify_attention import Rows, Scores

PRO = chip_named("M4 Pro")


def product(rows: int, inputs: int = 4096, outputs: int = 4096) -> Graph:
    packed = mx.zeros((outputs, inputs // 8), mx.uint32)
    scale = mx.zeros((outputs, inputs // 64), mx.bfloat16)

    def run(x: mx.array, w: mx.array, s: mx.array, b: mx.array) -> list[mx.array]:
        return [mx.quantized_matmul(x, w, s, b, True, 64, 4)]

    return trace(run, [mx.zeros((rows, inputs), mx.bfloat16), packed, scale, scale])


# Products of a 4-bit matrix that mlx-dspark measured on an M4 Pro in milliseconds by rows: with
# MLX's kernels, and with its own, which have nearly the design of ours.
@pytest.mark.parametrize(
    ("rows", "stock", "mine"),
    [(5, 0.379, 0.313), (8, 0.580, 0.314), (12, 0.863, 0.531), (16, 0.939, 0.533)],
)
def test_products_take_what_was_measured(rows: int, stock: float, mine: float) -> None:
    """Within a tenth."""
    graph = product(rows, 5120, 17_408)
    counted = Product.of(graph.operations[-1], graph.arrays)
    assert 1e3 * PRO.seconds(*counted.alone(PRO.gpu)) == pytest.approx(stock, rel=0.1)
    assert 1e3 * PRO.seconds(*ours(counted)) == pytest.approx(mine, rel=0.1)
    assert raced(graph, PRO).seconds(PRO) == pytest.approx(PRO.seconds(*ours(counted)))


# The same of attention after 32k tokens. Heads, heads of keys, elements, rows; milliseconds.
@pytest.mark.parametrize(
    ("shape", "stock", "mine"),
    [
        ((32, 8, 128, 8), 3.05, 0.96),
        ((32, 8, 128, 16), 4.7, 2.0),
        ((24, 4, 256, 8), 7.5, 1.56),
        ((24, 4, 256, 16), 8.0, 3.3),
    ],
)
def test_attention_takes_what_was_measured(
    shape: tuple[int, int, int, int], stock: float, mine: float
) -> None:
    """Within a third, by MLX's and by our kernel."""
    heads, groups, dim, rows = shape
    q = mx.zeros((1, heads, rows, dim), mx.bfloat16)
    cache = mx.zeros((1, groups, 32_768, dim), mx.bfloat16)
    block = Rows.of(32_768 - rows, range(-1, rows - 1))

    def theirs(q: mx.array, k: mx.array, v: mx.array) -> list[mx.array]:
        return [mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1, mask="causal")]

    def our(q: mx.array, k: mx.array, v: mx.array) -> list[mx.array]:
        return [verify_attention.launch(MetalLauncher(), q, k, v, block, Scores(0.1))]

    for run, ms in ((theirs, stock), (our, mine)):
        graph = fold(trace(run, [q, cache, cache]), patterns(())).reached()
        assert 1e3 * raced(graph, PRO).seconds(PRO) == pytest.approx(ms, rel=0.34)
