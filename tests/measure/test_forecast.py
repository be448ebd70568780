"""Forecasts for chips that nobody has here: their arithmetic, and that they say what they are."""

import re
from collections.abc import Iterator
from dataclasses import astuple, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from forecast import main, table, traced
from forecast_drafters import Figures
from forecast_errors import Row, Table, points_of
from ledger.counted import CountedPair
from ledger.fit import ROUND, STEP, Point, fit, forecast_of
from ledger.forecast import (
    Factors,
    chance_of,
    chip_named,
    chips,
    committed,
    fitted,
    forecast,
    gpu_of,
    gpu_seconds,
    passes_of,
    round_seconds,
)
from ledger.measured import Measured, load, load_drafters, pair_of
from ledger.passes import TracedPair
from ledger.published import Published, of_folders
from ledger.tally import MATRIX, MOVE, VECTOR, Tally, Work, stretched, tally
from ledger.trace import trace
from mlx.utils import tree_flatten

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.kernels.dispatch import Kernels

CHIP = replace(chip_named("M4 Max"), dispatch=0.0)
PAIR = "-m", str(bundled("target")), "-d", str(bundled("draft"))


def test_every_number_has_a_source() -> None:
    """All that is said of chips stands in one file, each number with where it is from."""
    text = files("dflash_mlx.hub").joinpath("chips.toml").read_text(encoding="utf-8")
    numbers = [line for line in text.splitlines() if " = " in line]
    assert len(numbers) == len(astuple(fitted())) + 4 * len(chips())
    assert all(re.search(r"\d  # \w", line) for line in numbers)


def test_a_chip_that_nothing_is_known_of() -> None:
    """Names are found in any case and as macOS says them; others are refused with the known."""
    for name in ("m4 max", "Apple M4 Max", "M4Max"):
        assert chip_named(name).name == "M4 Max"
    with pytest.raises(UsageError, match="M9") as caught:
        chip_named("M9")
    assert "M5 Max" in caught.value.hint


def seconds(rows: int) -> float:
    """Of a 4-bit product of so many rows."""
    packed, scale = mx.zeros((4096, 512), mx.uint32), mx.zeros((4096, 64), mx.bfloat16)

    def product(x: mx.array, w: mx.array, s: mx.array, b: mx.array) -> list[mx.array]:
        return [mx.quantized_matmul(x, w, s, b, True, 64, 4)]

    graph = trace(product, [mx.zeros((rows, 4096), mx.bfloat16), packed, scale, scale])
    return gpu_seconds(graph, CHIP)


def test_a_product_takes_its_bytes_its_rows_or_its_tiles() -> None:
    """A read of the matrix hides a few rows; more take their time, and many are done in tiles."""
    matrix, row = 4096 * 4096 * 4.5 / 8 / CHIP.bandwidth, 2 * 4096 * 4096
    assert seconds(1) == pytest.approx(matrix, rel=0.01)
    assert seconds(2) == pytest.approx(max(matrix, 2 * row / CHIP.vector), rel=0.01)
    assert seconds(12) == pytest.approx(12 * row / CHIP.vector, rel=0.03)
    tile = 32 * row / CHIP.matrix
    assert seconds(16) == pytest.approx(tile, rel=0.05)
    assert seconds(32) == pytest.approx(tile, rel=0.05)
    assert seconds(33) == pytest.approx(2 * tile, rel=0.05)


def test_an_expert_that_several_rows_chose_is_read_once() -> None:
    """16 rows of a mixture move the experts that they are expected to choose, not one a row."""
    packed, scale = mx.zeros((4, 512, 64), mx.uint32), mx.zeros((4, 512, 8), mx.bfloat16)
    chosen = mx.zeros((16,), mx.uint32)

    def product(x: mx.array, w: mx.array, s: mx.array, b: mx.array) -> list[mx.array]:
        return [mx.gather_qmm(x, w, s, b, None, chosen, True, 64, 4, sorted_indices=True)]

    graph = trace(product, [mx.zeros((16, 1, 512), mx.bfloat16), packed, scale, scale])
    expert, rows = 512 * 512 * 4.5 / 8, 2 * 16 * 2 * 512
    work = max((work for work, _ in tally(graph, CHIP.gpu).works), key=lambda one: one.flops)
    assert work.kind == VECTOR
    assert work.moved == pytest.approx(4 * (1 - 0.75**16) * expert + rows, rel=0.01)


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
    pair = TracedPair(of_folders("bundled", bundled("target"), bundled("draft")), Kernels())
    slow = replace(chip_named("M1"), dispatch=0.0, host=0.0, sync=0.0, vector=1e20, matrix=1e20)
    fast = replace(slow, bandwidth=2 * slow.bandwidth)
    passes = passes_of(pair, 64)
    one, two = (forecast(passes, chip, 5.0) for chip in (slow, fast))
    assert two.plain == pytest.approx(2 * one.plain)
    assert two.drafted == pytest.approx(2 * one.drafted)
    waits = replace(fast, sync=1.0)
    assert round_seconds(passes.draft, passes.verifies[4], waits) > 1.0


def test_the_script_says_that_it_is_a_forecast() -> None:
    """In the first line, above a line for each context."""
    target, draft = Path(PAIR[1]), Path(PAIR[3])
    passes = traced([of_folders("tiny", target, draft)], 4.0)
    lines = list(table(passes, chip_named("M1"), 4.0))
    assert lines[0] == "Forecast for M1, 4 tokens a whole block. Nobody measured it."
    assert [line.split(" | ")[1] for line in lines[2:]] == ["1,024", "8,192"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["M9"], "nothing is known of a chip 'M9'"),
        (["--tau", "99", "--folders", PAIR[1], PAIR[3]], "cannot commit 99 tokens"),
        (["--folders", "/nowhere", PAIR[3]], "no config.json"),
    ],
)
def test_the_script_counts_nothing_for_a_wrong_option(
    asked: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error comes before the minutes that counting takes."""
    monkeypatch.setattr("sys.argv", ["forecast.py", *asked])
    monkeypatch.setattr("forecast.passes_of", None)
    with pytest.raises(DFlashError, match=said):
        main()


def some_points() -> list[Point]:
    """Steps and rounds on two chips, whose measured times are still to be set."""
    found: list[Point] = []
    for chip in ("M1 Max", "M4 Max"):
        for giga in (1, 4, 16):
            step = Tally(700, ((Work(MOVE, giga * 10**9), 1),))
            found.append(Point(chip, STEP, 1.0, (step,)))
            few = Tally(700, ((Work(VECTOR, giga * 10**9, 30 * giga * 10**9), 1),))
            many = Tally(900, ((Work(MATRIX, giga * 10**9, 900 * giga * 10**9), 1),))
            found += [Point(chip, ROUND, 1.0, (few, many), slow) for slow in (False, True)]
            found.append(Point(chip, ROUND, 1.0, (few, replace(few, dispatches=2)), False))
    return found


TRUE = Factors(early=0.7, share=0.85, gap=0.8, vector=0.3, matrix=0.6, wait=300.0, slow=9000.0)
START = Factors(early=0.8, share=0.8, gap=0.5, vector=0.2, matrix=0.5, wait=300.0, slow=5000.0)


def measured_by(points: list[Point], factors: Factors) -> Iterator[Point]:
    """The points as if these factors were the truth."""
    known = {chip.name: chip for chip in chips(factors)}
    for one in points:
        yield replace(one, measured=forecast_of(one, known, factors))


def test_a_fit_finds_the_factors_of_its_points() -> None:
    """From other factors; each of them is seen by some point."""
    points = list(measured_by(some_points(), TRUE))
    assert astuple(fit(points, START)) == pytest.approx(astuple(TRUE), rel=0.02)


def test_a_point_that_is_held_out_does_not_change_a_fit() -> None:
    """However wrong it is; the same point changes the fit once it is used."""
    points = list(measured_by(some_points(), TRUE))
    wrong = replace(points[0], measured=3 * points[0].measured, used=False)
    assert fit([*points, wrong], START) == fit(points, START)
    moved = fit([*points, replace(wrong, used=True)], START)
    assert astuple(moved) != pytest.approx(astuple(TRUE), rel=0.1)


def test_an_outlier_does_not_rule_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point of thrice the time among 24 that agree; with plain squares it would."""
    points = list(measured_by(some_points(), TRUE))
    points.append(replace(points[0], measured=3 * points[0].measured))
    found = fit(points, START)
    assert found.share == pytest.approx(TRUE.share, rel=0.05)
    assert found.gap == pytest.approx(TRUE.gap, rel=0.2)
    monkeypatch.setattr("ledger.fit.softened", lambda errors: errors)
    assert fit(points, START).gap > 1.5 * TRUE.gap


def row(plain: float, drafted: float, more: int, held_out: bool = False) -> Row:
    """A measured row whose verify takes `more` times the bytes of a step; 4 tokens a round."""
    of = Measured("M4 Max", "Qwen3-4B", 4, "a source", "an engine", plain, drafted, 16, 4.0)
    step = Tally(10, ((Work(MOVE, 10**10), 1),))
    verify = Tally(10, ((Work(MOVE, more * 10**10), 1),))
    used = not held_out
    return Row(
        replace(of, held_out=held_out),
        Point("M4 Max", STEP, 1 / plain, (step,), used=used),
        Point("M4 Max", ROUND, 4 / drafted, (Tally(1, ()), verify), used=used),
        4.0,
    )


def test_who_loses() -> None:
    """A round that takes more steps than it brings tokens loses, and the measure agrees or not."""
    rows = [row(40, 80, more=2), row(40, 20, more=9), row(40, 80, more=9)]
    lines = list(Table(rows, fitted()).losers())
    verdicts = [line.split(" | ")[-1].removesuffix(" |") for line in lines[1:-1]]
    assert verdicts == ["gains, right", "loses, right", "loses, wrong"]
    assert "2 of 3 with a published tau, 0 of 0" in lines[-1]


def test_a_held_out_row_is_marked() -> None:
    """In its lines and in the summary, apart from those of the fit."""
    shown = Table([row(40, 80, more=2), row(40, 80, more=2, held_out=True)], fitted())
    marks = [line.split(" | ")[-1].removesuffix(" |") for line in list(shown.lines())[1:]]
    assert marks == ["fitted", "fitted", "held out", "held out"]
    assert [line.split(":")[0] for line in shown.summary()] == [
        "drafted, fitted",
        "drafted, held out",
        "plain, fitted",
        "plain, held out",
    ]
    used = [point.used for point in points_of(shown.rows, ())]
    assert used == [True, True, False, False]


def short(target: str, kind: str, layers: int) -> Published:
    """A pair of published sizes with fewer layers of the target."""
    pair = pair_of(target, kind, 4)
    sizes = {**pair.target, "num_hidden_layers": layers}
    return replace(pair, target=sizes)


def test_layers_that_repeat_are_stretched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two and one periods of layers tell what three are; planted: one period less."""
    pair = short("Qwen3.6-35B-A3B", "mtp", 12)

    def check() -> None:
        counted = CountedPair(pair, 8)
        whole = tally(counted.whole.verify(512, 3, kept=range(3)), CHIP.gpu)
        found = counted.verify(512, 3, CHIP.gpu)
        assert found.dispatches == whole.dispatches
        assert dict(found.works) == dict(whole.works)

    check()
    monkeypatch.setattr(
        "ledger.counted.stretched", lambda one, two, repeats: stretched(one, two, repeats - 1)
    )
    with pytest.raises(AssertionError):
        check()


def moved(counted: Tally) -> int:
    """The bytes of all kernels."""
    return sum(count * work.moved for work, count in counted.works)


def test_a_head_takes_a_pass_for_each_draft() -> None:
    """Each reads the head's weights and the target's output layer; a block costs one pass."""
    counted = CountedPair(short("Qwen3.6-27B", "mtp", 4), 8)
    two, three, four = (counted.draft(512, rows, CHIP.gpu) for rows in (2, 3, 4))
    parameters: Any = tree_flatten(counted.whole.drafter.model.parameters())
    head = sum(value.nbytes for _, value in parameters)
    output = 248_320 * 5120 * 4.5 / 8
    for less, more in ((two, three), (three, four)):
        assert moved(more) - moved(less) == pytest.approx(head + output, rel=0.02)
    block = CountedPair(short("LFM2.5-2.6B", "dspark", 30), 8)
    assert block.draft(512, 4, CHIP.gpu) == block.draft(512, 8, CHIP.gpu)
    assert counted.widths == [2, 3, 4]
    assert block.widths == [2, 4, 8, 10]


def test_figures_beside_their_forecasts() -> None:
    """An error where tokens a round are published; else those that the figure takes."""
    known, unknown = row(40, 80, more=2, held_out=True), row(40, 80, more=2, held_out=True)
    unknown = replace(unknown, of=replace(unknown.of, tau=0.0))
    shown = Figures([known, unknown])
    _, _, first, second = (line.split(" | ") for line in shown.lines())
    assert re.fullmatch(r"[\d.]+ \([+-]\d+%\)", first[8])
    assert re.fullmatch(r"takes tau [\d.]+", second[8])
    assert first[11] == "held out"
    assert set(shown.errors) == {
        "plain, not fitted",
        "DFlash, MLX's kernels, not fitted",
        "speedup",
    }
    assert len(shown.errors["plain, not fitted"]) == 2
    assert len(list(shown.summary())) == 3


def test_figures_of_drafters_take_no_part_in_a_fit() -> None:
    """They stand in a file of their own, each with a known kind, chip and target."""
    rows = load_drafters()
    assert {one.kind for one in rows} == {"mtp", "dspark", "dflash2"}
    for one in rows:
        assert one.source
        assert one.drafted
        assert one.held_out
        assert chip_named(one.chip)
        assert one.pair.target["num_hidden_layers"]


def test_public_rows_can_be_forecast() -> None:
    """Each names its source, a chip and a target that are known; every tenth is held out."""
    rows, products, left = load()
    for one in rows:
        assert one.source
        assert one.plain or one.drafted
        assert chip_named(one.chip).gpu == gpu_of(one.chip)
        assert one.pair.target["num_hidden_layers"]
    assert all(chip_named(one.chip) for one in products)
    assert all(one.reason for one in left)
    assert [at for at, one in enumerate(rows, 1) if one.held_out] == [
        at for at in range(1, len(rows) + 1) if at % 10 == 0
    ]
