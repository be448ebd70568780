"""Forecasts for chips that nobody has here: their arithmetic, and that they say what they are."""

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import mlx.core as mx
import pytest
from forecast import table
from ledger.forecast import (
    chance_of,
    chip_named,
    chips,
    committed,
    forecast,
    gpu_seconds,
    round_seconds,
)
from ledger.passes import TracedPair
from ledger.published import of_folders
from ledger.trace import trace

from dflash_mlx.errors import UsageError
from dflash_mlx.hub.resolve import bundled
from dflash_mlx.kernels.dispatch import Kernels

CHIP = replace(chip_named("M4 Max"), dispatch=0.0)
PAIR = "-m", str(bundled("target")), "-d", str(bundled("draft"))


def test_every_number_has_a_source() -> None:
    """All that is said of chips stands in one file, each number with where it is from."""
    text = files("ledger").joinpath("chips.toml").read_text(encoding="utf-8")
    numbers = [line for line in text.splitlines() if " = " in line]
    assert len(numbers) == 3 + 5 * len(chips())
    assert all(re.search(r"\d  # \w", line) for line in numbers)


def test_a_chip_that_nothing_is_known_of() -> None:
    """Names are found in any case; others are refused with those that are known."""
    assert chip_named("m4 max").name == "M4 Max"
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
    matrix = 4096 * 4096 * 4.5 / 8 / CHIP.bandwidth
    assert seconds(1) == pytest.approx(matrix, rel=0.01)
    assert seconds(2) == pytest.approx(matrix, rel=0.01)
    assert seconds(6) == pytest.approx(6 / CHIP.free_rows * matrix, rel=0.02)
    tile = 2 * 32 * 4096 * 4096 / CHIP.flops
    assert seconds(12) == pytest.approx(12 / CHIP.free_rows * matrix, rel=0.03)
    assert seconds(16) == seconds(32) == pytest.approx(tile)
    assert seconds(33) == pytest.approx(2 * tile)


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
    slow = replace(chip_named("M1"), dispatch=0.0, host=0.0, sync=0.0, flops=1e20, free_rows=1e9)
    fast = replace(slow, bandwidth=2 * slow.bandwidth)
    (one,), (two,) = (forecast(pair, chip, [64], 5.0) for chip in (slow, fast))
    assert two.plain == pytest.approx(2 * one.plain)
    assert two.drafted == pytest.approx(2 * one.drafted)
    waits = replace(fast, sync=1.0)
    assert round_seconds(pair.draft(64), pair.verify(64, 4), waits) > 1.0


def test_the_script_says_that_it_is_a_forecast() -> None:
    """In the first line, and the page of the guide is what it prints."""
    target, draft = Path(PAIR[1]), Path(PAIR[3])
    lines = list(table([of_folders("tiny", target, draft)], "m1", 4.0))
    assert lines[0] == "Forecast for M1, 4 tokens a whole block. Nobody measured it."
    assert [line.split(" | ")[1] for line in lines[2:]] == ["1,024", "8,192"]
