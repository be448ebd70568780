"""The count of a target pass: MLX's rules of dispatch, each by a figure that a hand can derive."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest
from count.attention import Heads, way
from count.chips import Chip, chip_named
from count.layers import attention, linear_attention
from count.models import MODELS, Mixture, Model, Recurrence, model_named
from count.operations import rms_norm
from count.passes import count, least_read, points, taped
from count.products import linear, splits, vector_limit, weights
from count.tape import MEBI, Array, Tape
from count_beside import NEAR, beside
from mlx_lm_graphs import primitives

MB = 1e6
M1, M4, M5 = (chip_named(name) for name in ("M1", "M4", "M5"))


@pytest.mark.parametrize(
    ("chip", "limits"),
    [
        ("M1", (14, 10, 6)),
        ("M1 Max", (14, 10, 7)),
        ("M2 Max", (14, 10, 6)),
        ("M3", (13, 15, 13)),
        ("M4 Max", (13, 15, 13)),
        ("M5 Max", (33, 25, 13)),
        ("M3 Ultra", (32, 18, 12)),
    ],
)
def test_row_limits(chip: str, limits: tuple[int, ...]) -> None:
    """They depend on the generation, the size of the chip and the larger side of the matrix."""
    found = [vector_limit(chip_named(chip), 2048, side) for side in (2048, 4096, 4097)]
    assert tuple(found) == limits
    assert [vector_limit(chip_named(chip), side, 64) for side in (2048, 4096, 4097)] == found


@pytest.mark.parametrize(
    ("chip", "rows", "passes"),
    [(M1, 1, 1), (M1, 5, 5), (M1, 6, 1), (M4, 5, 1), (M4, 6, 2), (M4, 12, 3), (M4, 13, 1)],
)
def test_passes_over_weights(chip: Chip, rows: int, passes: int) -> None:
    """Vectors read the weights a row each, or five rows at once; tiles read them once."""
    tape = Tape(chip)
    linear(tape, Array(rows * 4096), weights(4096, 12288, 4), rows)
    assert tape.read == passes * 4096 * 12288 * 4.5 / 8 + rows * 4096 * 2
    assert [one.op for one in tape.dispatches] == ["QuantizedMatmul"]


def test_a_split_product_is_two_dispatches() -> None:
    """128 tiles of 512 make four parts, which are written and read in float32."""
    tape = Tape(M1)
    linear(tape, Array(16 * 4096), weights(4096, 4096, 4), 16)
    assert splits(4096, 4096, 16) == 4
    assert [one.written for one in tape.dispatches] == [4 * 16 * 4096 * 4, 16 * 4096 * 2]
    assert tape.dispatches[1].read == 4 * 16 * 4096 * 4
    assert splits(4096, 12288, 16) == 1  # 384 tiles
    assert splits(5120, 48, 16) == 80  # as many parts as groups
    assert splits(12288, 4096, 33) == 2  # two rows of tiles


@pytest.mark.parametrize(
    ("heads", "rows", "expected"),
    [
        (Heads(32, 8, 128), 8, "vector"),
        (Heads(32, 4, 128), 4, "vector"),
        (Heads(32, 4, 128), 5, "unfused"),
        (Heads(32, 8, 128), 9, "full"),
        (Heads(24, 4, 256), 5, "vector"),
        (Heads(24, 4, 256), 6, "unfused"),
        (Heads(16, 4, 256), 9, "unfused"),
    ],
)
def test_ways_of_attention(heads: Heads, rows: int, expected: str) -> None:
    """Up to 8 rows by 32 products of a head of keys; wide heads of more rows are not fused."""
    assert way(heads, rows) == expected


def test_strided_norms_are_copied() -> None:
    """A norm of a view with gaps copies it first, and the copy is a dispatch of its own."""
    tape = Tape(M1)
    whole = Array(16 * 512)
    rms_norm(tape, whole.view(16 * 256, contiguous=False), None)
    assert [one.op for one in tape.dispatches] == ["Copy", "RMSNorm"]


def test_one_row_of_a_hybrid_copies_only_its_gates() -> None:
    """One row has no gaps, but for queries and gates, which lie side by side."""
    model = model_named("Qwen3.5-9B")
    assert model.recurrence
    tapes = {rows: Tape(M5) for rows in (1, 2)}
    for rows, tape in tapes.items():
        attention(tape, Array(rows * model.hidden), model, rows, 1024)
        linear_attention(tape, Array(rows * model.hidden), model, model.recurrence, rows)
    kinds = {rows: Counter(one.op for one in tape.dispatches) for rows, tape in tapes.items()}
    assert kinds[1]["Copy"] == 1  # the queries
    assert kinds[2]["Copy"] == 6  # and two ropes, queries, keys and values of the recurrence
    assert kinds[1]["Reshape"] == 1  # the gates
    assert kinds[2]["Reshape"] == 2  # and the heads of the output


def test_distinct_experts() -> None:
    """16 rows take 82.4 of 128 experts, 8 each: 128 - 128 * (15 / 16) ** 16."""
    mixture = Mixture(128, 8, 768)
    assert mixture.distinct(1) == pytest.approx(8)
    assert mixture.distinct(16) == pytest.approx(82.42, abs=0.01)
    model = model_named("Qwen3-Coder-30B-A3B")
    expert = 3 * 2048 * 768 * 4.5 / 8
    more = least_read(model, 16) - least_read(model, 1)
    assert more == pytest.approx(48 * expert * 74.42, rel=1e-3)


def test_command_buffers() -> None:
    """One is committed past 40 dispatches or past 40 Mi elements, each buffer counted once."""
    small = Array(8)
    tape = Tape(M1)
    for _ in range(81):
        tape.launch("Add", [small], small)
    assert tape.buffers == 2  # 41 and 40
    tape.launch("Add", [small], small)
    assert tape.buffers == 3  # 41, 41 and the last, which the end commits
    assert replace_chip(tape, "M1 Max").buffers == 2  # 51 and 31
    large = Tape(M1)
    weight = Array(30 * MEBI)
    for _ in range(5):
        large.launch("Matmul", [weight], small)
    assert large.buffers == 1
    large.launch("Matmul", [Array(30 * MEBI)], small)
    assert large.buffers == 2


def replace_chip(tape: Tape, name: str) -> Tape:
    """The same dispatches on another chip."""
    return Tape(chip_named(name), tape.dispatches)


# dispatches, MB read, MB written by an earlier count by hand, and who is right where they differ.
HAND = [
    ("Qwen3-8B", M1, 1, 690, 4416, 6),
    ("Qwen3-8B", M1, 16, 870, 4718, 291),
    ("Qwen3-8B", M5, 16, 726, 7115, 140),
    # It has three dispatches less in each of the 24 and 48 linear layers. concatenate_gpu
    # launches one for each of two inputs, and CustomKernel copies the values, which have gaps.
    ("Qwen3.5-9B", M1, 16, None, 4867, 347),
    ("Qwen3.6-27B", M1, 16, None, 15284, 735),
    # It has none of the three Arange of a layer (ops.cpp, indices_or_default), and one Gather of
    # the sorted rows less.
    ("Qwen3-Coder-30B-A3B", M1, 16, None, 17481, None),
    ("Qwen3-Coder-30B-A3B", M1, 4, None, 7000, None),
    ("Qwen3-Coder-30B-A3B", M4, 4, None, 4900, None),
    ("Qwen3-Coder-30B-A3B", M1, 8, None, 12800, None),
    ("Qwen3-Coder-30B-A3B", M4, 8, None, 9800, None),
    *(
        ("Qwen3-8B", chip, rows, None, 1000 * size, None)
        for chip, sizes in (
            (M1, (8.7, 17.2, 10.4, 4.6, 4.7)),
            (M4, (4.4, 4.4, 8.7, 13.0, 4.7)),
            (M5, (4.4, 4.4, 8.7, 13.0, 7.1)),
        )
        for rows, size in zip((2, 4, 8, 12, 16), sizes, strict=True)
    ),
]


@pytest.mark.parametrize(("name", "chip", "rows", "dispatches", "read", "written"), HAND)
def test_a_count_by_hand(
    name: str, chip: Chip, rows: int, dispatches: int | None, read: float, written: int | None
) -> None:
    """Within 5 % of figures that were counted by hand from the same sources."""
    one = count(model_named(name), chip, rows)
    assert one.read / MB == pytest.approx(read, rel=0.05)
    if dispatches is not None:
        assert one.dispatches == pytest.approx(dispatches, rel=0.05)
    if written is not None:
        assert one.written / MB == pytest.approx(written, rel=0.05, abs=0.5)


def test_every_point_reads_at_least_the_least() -> None:
    """Four models on three chips at six widths."""
    assert len(points()) == 72
    for model, chip, rows in points():
        one = count(model, chip, rows)
        assert one.read >= one.least, (model.name, chip.name, rows)


def test_bfloat16() -> None:
    """In bfloat16 the table of embeddings is one Gather, and five products of a layer split."""
    one = count(replace(MODELS[0], bits=None), M1, 16)
    assert (one.dispatches, round(one.read / 1e9, 1)) == (867, 15.6)


TINY = Model("tiny", 256, 2, 4, 2, 64, 512, 512)
TINIES = [
    TINY,
    replace(TINY, mixture=Mixture(16, 8, 64)),
    replace(TINY, recurrence=Recurrence(2, 4, 64, 4, 2)),
]


@pytest.fixture(scope="module")
def apart() -> Iterator[Executor]:
    """A process of its own: what mx.compile fuses depends on what a process has compiled before."""
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        yield executor


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("model", TINIES, ids=["dense", "mixture", "hybrid"])
def test_the_ops_are_those_of_mlx_lm(model: Model, rows: int, apart: Executor) -> None:
    """No op of a layer is forgotten: the graph of mlx-lm's own model has as many of each kind.

    On the CPU norms and ropes are several primitives; each has one Rsqrt, each rope one Cos.
    """
    counted = Counter(
        one.op for one in taped(model, M1, rows, 8).dispatches if one.op != "split-K sum"
    )
    traced = apart.submit(primitives, model, rows).result()
    for kind in (
        "QuantizedMatmul GatherQMM SliceUpdate Convolution ArgPartition ArgSort GatherAxis "
        "FloorDivide Divide Sigmoid"
    ).split():
        assert counted[kind] == traced[kind], kind
    assert counted["RMSNorm"] == traced["Rsqrt"]
    assert counted["RoPE"] == traced["Cos"]
    # The CPU has no kernel of the recurrence: its steps are compiled ops of their own.
    fused = sum(traced[kind] for kind in traced if "Compiled" in kind and kind not in STEPS)
    assert counted["Compiled"] == fused
    assert counted["Gather"] == traced["Gather"]


# Of gated_delta._gated_delta_step_ops, compiled.
STEPS = {
    "CompiledBroadcastMultiply",
    "CompiledAsTypeSubtractAsTypeBroadcastMultiply",
    "CompiledBroadcastBroadcastMultiplyAddAsTypeBroadcastMultiply",
}


@pytest.mark.slow
def test_the_ledger_agrees() -> None:
    """It follows MLX's rules by the graph and not op by op: 18 of the 72 points, by another way."""
    for point in beside([model_named("Qwen3-8B")]):
        assert all(abs(one) <= NEAR for one in point.apart), str(point)
