"""MLX builds a library for each text of a kernel: none because a block has other rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.kernels import (
    gated_delta_inputs,
    gated_delta_replay,
    gated_delta_tape,
    gated_delta_tree,
    grouped_experts,
    small_m_qmm,
    verify_accept,
    verify_accept_sample,
    verify_attention,
)
from dflash_mlx.kernels.dispatch import Op
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.kernels.verify_attention import CORES, Scores

from .attention_rows import block
from .blocks import full, sampled
from .delta_rows import projected, rows
from .packed import KINDS, chosen, experts_of, rows_of, weights_of
from .trace import Launch, trace

HEADS = 8  # of queries and of states; no published model has fewer
SIZES = (1, 2, 4, 7, 8, 9, 17, 64)


def attention(count: int) -> Sequence[Any]:
    """A chain behind as many positions as rows, which are in more splits the more they are."""
    return *block(range(-1, count - 1), 8 * count, heads=(HEADS, 1)), Scores(0.2)


def inputs(count: int) -> Sequence[Any]:
    return projected(count, 1, HEADS, 32, 2, mx.float32)


def tape(count: int) -> Sequence[Any]:
    return rows(count, 1, HEADS, 32, 2, mx.float32, False)


def tree(count: int) -> Sequence[Any]:
    return [*tape(count), [-1] * count]


def replay(count: int) -> Sequence[Any]:
    _, k, v, g, _, state = tape(count)
    path, number = mx.arange(count, dtype=mx.int32), mx.array([count], mx.int32)
    return [*(part[None] for part in (state, v, k, g)), path, number, mx.zeros((1, count + 3, 5))]


def mixture(count: int) -> Sequence[Any]:
    """Each row takes three of 64 experts, whose matrices are of one kind."""
    layer = replace(experts_of(64, (64, 64, 64), KINDS[1]), activation=mx.multiply)
    return rows_of(count, 64), chosen(count, 3, 64), layer


def greedy(count: int) -> Sequence[Any]:
    return mx.zeros((count + 1, 40)), mx.zeros((count,), mx.int32)


def drawn(count: int, k: int = 0) -> Sequence[Any]:
    """As many drafts, from a whole distribution or from candidates, by blocks."""
    return full(sampled(1, count + 1, 40, k), block=True)


CASES: dict[str, tuple[Op, Callable[[int], Sequence[Any]]]] = {
    "attention": (verify_attention.OP, attention),
    "inputs": (gated_delta_inputs.OP, inputs),
    "exact attention": (
        replace(verify_attention.OP, launch=verify_attention.launch_exact),
        attention,
    ),
    "tape": (gated_delta_tape.OP, tape),
    "tree": (gated_delta_tree.OP, tree),
    "replay": (gated_delta_replay.OP, replay),
    "experts": (grouped_experts.OP, mixture),
    "greedy": (verify_accept.OP, greedy),
    "drawn": (verify_accept_sample.OP, drawn),
    "candidates": (verify_accept_sample.OP, lambda count: drawn(count, 5)),
}


def launches(op: Op, arguments: Sequence[Any], **options: Any) -> list[Launch]:
    """What an operation launches; nothing runs."""
    launcher = MetalLauncher()
    return trace(lambda _: op.launch(launcher, *arguments, **options), mx.zeros(1))


@pytest.mark.parametrize("name", CASES)
def test_one_text_for_all_numbers_of_rows(name: str) -> None:
    """1 to 64 rows: each kernel of the operation has one text; attention by matrices has another
    for more rows than a team of simdgroups has."""
    op, case = CASES[name]
    texts = {launch.source for count in SIZES for launch in launches(op, case(count))}
    kernels = {launch.name for launch in launches(op, case(1))}
    assert len(texts) == len(kernels) + (name == "attention")


def test_one_text_for_all_contexts() -> None:
    """One split or many, with a window or without."""
    texts = set()
    for context in (0, 15, 100, 400):
        for window in (0, 20):
            case = (*block([-1, 0], context, heads=(HEADS, 2)), Scores(0.2, window=window))
            texts |= {launch.source for launch in launches(verify_attention.OP, case, split=16)}
    assert len(texts) == 2


@pytest.mark.parametrize(("exact", "count"), [(False, 4), (True, 2)])
def test_products_have_a_text_for_each_size_of_a_threadgroup(exact: bool, count: int) -> None:
    """Not for each number of rows; and MLX names a text by all that it depends on."""
    weights, op = weights_of(40, 128, KINDS[1]), small_m_qmm.OP
    op = replace(op, launch=op.launching(exact))
    texts = dict[str, str]()
    for dtype in (mx.float32, mx.bfloat16):
        for number in range(1, 65):
            (launch,) = launches(op, (rows_of(number, 128).astype(dtype), weights))
            texts[launch.name] = launch.source
    assert len(texts) == len({*texts.values()}) == 2 * count


def test_without_sinks_nothing_is_made_for_them() -> None:
    """The two launches are all of an attention; its small arrays are made once a pass."""
    events: list[str] = []

    def record(event: dict[str, Any]) -> None:
        if event["type"] == "primitive":
            events.append(event["name"])

    *arrays, rows_of_pass, scores = attention(9)
    made = rows_of_pass.splits(scores, verify_attention.SPLIT, CORES)
    launch: Any = partial(verify_attention.launch, MetalLauncher())
    mx.export_function(record, lambda *xs: launch(*xs, rows_of_pass, scores), *arrays)
    assert events == ["CustomKernel"] * 2
    again = partial(rows_of_pass.splits, split=verify_attention.SPLIT, short=CORES)
    assert again(Scores(0.2)) is made
    assert again(Scores(0.2, window=3)) is not made
