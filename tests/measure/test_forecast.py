"""Forecasts for chips that nobody has here: their arithmetic, and that they say what they are."""

from dataclasses import replace
from importlib import import_module

import mlx.core as mx
import pytest
from ledger.chips import chip_named
from ledger.counted import CountedPair, shortened
from ledger.errors import Measured, Row, Table, load
from ledger.fold import fold
from ledger.forecast import chance_of, committed, forecast, round_of, table
from ledger.fused import patterns
from ledger.products import Product
from ledger.published import of_folders, published
from ledger.tally import ours, raced, tally
from ledger.trace import Graph, trace

from dflash_mlx.errors import UsageError
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.kernels import verify_attention
from dflash_mlx.kernels.source import MetalLauncher
from dflash_mlx.kernels.verify_attention import Rows, Scores

CHIP = replace(chip_named("M4 Max"), dispatch=0.0)
PRO = chip_named("M4 Pro")


def test_a_chip_that_nothing_is_known_of() -> None:
    """Names are found in any case and as macOS says them; others are refused with the known."""
    for name in ("m4 max", "Apple M4 Max", "M4Max"):
        assert chip_named(name).name == "M4 Max"
    with pytest.raises(UsageError, match="M9") as caught:
        chip_named("M9")
    assert "M5 Max" in caught.value.hint


def product(rows: int, inputs: int = 4096, outputs: int = 4096) -> Graph:
    packed = mx.zeros((outputs, inputs // 8), mx.uint32)
    scale = mx.zeros((outputs, inputs // 64), mx.bfloat16)

    def run(x: mx.array, w: mx.array, s: mx.array, b: mx.array) -> list[mx.array]:
        return [mx.quantized_matmul(x, w, s, b, True, 64, 4)]

    return trace(run, [mx.zeros((rows, inputs), mx.bfloat16), packed, scale, scale])


def test_a_product_takes_its_bytes_its_rows_or_its_tiles() -> None:
    """A read of the matrix hides a few rows; more take their time, and many are done in tiles."""

    def seconds(rows: int) -> float:
        return tally(product(rows), CHIP).seconds(CHIP)

    matrix, row = 4096 * 4096 * 4.5 / 8 / CHIP.bandwidth, 2 * 4096 * 4096
    assert seconds(1) == pytest.approx(matrix, rel=0.01)
    assert seconds(2) == pytest.approx(max(matrix, 2 * row / CHIP.vector), rel=0.01)
    assert seconds(12) == pytest.approx(12 * row / CHIP.vector, rel=0.03)
    tile = 32 * row / CHIP.matrix
    assert seconds(16) == pytest.approx(tile, rel=0.05)
    assert seconds(33) == pytest.approx(2 * tile, rel=0.05)


def test_tokens_of_narrower_rounds() -> None:
    """Drafts are kept one by one with the chance that gives the whole block its tokens."""
    assert committed(chance_of(5.0, 16), 16) == pytest.approx(5.0)
    assert committed(chance_of(5.0, 16), 4) < 4
    assert chance_of(16.0, 16) == pytest.approx(1.0)
    for wrong in (0.5, 17.0):
        with pytest.raises(UsageError, match="cannot commit"):
            chance_of(wrong, 16)


def test_a_forecast_follows_the_chip() -> None:
    """Rates grow with the bandwidth, and no round is quicker than its wait."""
    pair = CountedPair(of_folders("bundled", bundled("target"), bundled("draft")), 0)
    slow = replace(chip_named("M1"), dispatch=0.0, host=0.0, sync=0.0, vector=1e20, matrix=1e20)
    fast = replace(slow, bandwidth=2 * slow.bandwidth)
    one, two = (forecast(pair, 64, chip, 5.0) for chip in (slow, fast))
    assert two.plain == pytest.approx(2 * one.plain)
    assert two.drafted == pytest.approx(2 * one.drafted)
    assert round_of(pair.draft(64, 16, fast), pair.verify(64, 4, fast), replace(fast, sync=1)) > 1
    lines = list(table({"bundled": pair}, [slow], 64, 5.0))
    assert lines[2] == f"| M1 | {one.plain:.0f} → {one.drafted:.0f} ({one.rows}) |"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["forecast", "M9"], "nothing is known of a chip 'M9'"),
        (["forecast", "--tau", "99"], "cannot commit 99 tokens"),
    ],
)
def test_the_command_counts_nothing_for_a_wrong_option(
    asked: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error comes before the minutes that counting takes."""
    monkeypatch.setattr("sys.argv", ["ledger", *asked])
    monkeypatch.setattr("ledger.passes.trace", None)
    with pytest.raises(SystemExit, match=said):
        import_module("ledger.__main__").main()


def test_layers_that_repeat_are_stretched() -> None:
    """Two and one periods of layers tell what three are; a chain of fewer layers does not."""
    pair = published("Qwen3.6-35B-A3B")
    taps = {**pair.drafter["dflash_config"], "target_layer_ids": [0]}
    drafter = {**pair.drafter, "num_target_layers": 12, "dflash_config": taps}
    pair = replace(pair, target={**pair.target, "num_hidden_layers": 12}, drafter=drafter)
    counted, kept = CountedPair(pair, 8), range(3)
    found = counted.verify(512, 3, CHIP)
    assert found == tally(counted.whole.verify(512, 3, kept=kept), CHIP)
    assert found != tally(shortened(pair, 8).verify(512, 3, kept=kept), CHIP)


def test_figures_beside_their_forecasts() -> None:
    """An error where tokens a round are published; held-out rows are a group of their own."""
    one = Measured("M4 Max", "Qwen3-4B", 4, "a source", "an engine", 40.0, 80.0, tau=4.0)
    rows = [
        Row(one, 0.02, 0.04, 4.0),  # gains, and says so
        Row(replace(one, held_out=True), 0.02, 0.16, 4.0),  # gains, and is called a loser
        Row(replace(one, tau=0.0), 0.02, 0.04, 5.0),
    ]
    shown = Table(rows)
    marks = [line.split(" | ")[-1].removesuffix(" |") for line in shown.lines[2:]]
    assert marks == ["fitted", "fitted", "held out", "held out", "fitted", "tau assumed"]
    assert shown.errors["drafted, held out"] == [pytest.approx(-0.6875)]
    assert len(shown.errors["drafted, fitted"]) == 1
    assert "right for 1 of 2 rows" in list(shown.summary())[-1]


def test_public_rows_can_be_forecast() -> None:
    """Each names its source, a chip and a target that are known; every tenth is held out."""
    rows = load()
    for one in rows:
        assert one.source
        assert one.plain or one.drafted
        assert chip_named(one.chip).name == one.chip
        assert published(one.target, one.bits).target["num_hidden_layers"]
    assert [at for at, one in enumerate(rows, 1) if one.held_out] == [*range(10, len(rows), 10)]


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
