"""The rules by which the ledger counts operations, each by a figure that a hand can derive."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from ledger.chips import gpu_of
from ledger.fold import fold
from ledger.fused import patterns
from ledger.layout import Layout, reshaped
from ledger.trace import Graph, trace
from ledger.traffic import costs, least
from mlx_lm.models.activations import swiglu

from dflash_mlx.device import Chip

M1, M4, M5 = (gpu_of(name) for name in ("M1", "M4", "M5"))


def dispatches(graph: Graph) -> int:
    return sum(cost.dispatches for cost in costs(graph))


def row(x: mx.array) -> list[mx.array]:
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
    assert sum(cost.read + cost.written for cost in costs(graph)) == nbytes


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


@pytest.mark.parametrize(("chip", "count"), [("M1", 1), ("M4 Max", 2)])
def test_attention_splits_the_keys_on_large_chips(chip: str, count: int) -> None:
    """From 1,024 keys on, and on others from 4,096."""
    q, kv = mx.zeros((1, 8, 2, 128), mx.bfloat16), mx.zeros((1, 2, 1024, 128), mx.bfloat16)

    def attend(q: mx.array, k: mx.array, v: mx.array) -> list[mx.array]:
        return [mx.fast.scaled_dot_product_attention(q, k, v, scale=0.5)]

    graph = fold(trace(attend, [q, kv, kv]), patterns(()))
    (cost,) = costs(graph, gpu_of(chip))
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
    """And an operation behind one is another; a scalar is no weight of a norm."""
    arrays = [mx.zeros((1, 3, 8), mx.bfloat16)] * 2
    for fn, count in (
        (lambda a, b: [swiglu(a, b)], 1),
        (lambda a, b: [swiglu(a, b) + a], 2),
        (lambda a, _: [0.5 * mx.fast.rms_norm(a, None, 1e-5)], 2),
    ):
        assert dispatches(fold(trace(fn, arrays), patterns(()))) == count


def test_views_follow_strides() -> None:
    """A transposed array keeps its memory until strides cannot say where its elements are."""
    turned = Layout((4, 8), (1, 4), "x")
    assert not turned.contiguous
    assert reshaped(turned, (4, 2, 4)) == Layout((4, 2, 4), (1, 16, 4), "x")
    assert reshaped(turned, (32,)) is None
    assert Layout((4, 8), (0, 1), "x").elements == 8
