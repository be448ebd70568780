"""The pairs that a first start offers, and the forecast of their speeds."""

import re
from pathlib import Path

import pytest

from dflash_mlx.hub import forecast, registry
from dflash_mlx.hub.registry import COMFORTABLE_SHARE, suggested_pairs

GUIDE = Path(__file__).parents[2] / "examples" / "guide" / "forecast.md"
DISK = 10**13
# What Metal recommends on Macs of 8 to 128 GB, in bytes, about.
LIMITS = [
    int(gigabytes * 1e9) for gigabytes in (5.7, 11.8, 13.6, 17.2, 22.9, 28.9, 38.6, 51.5, 103)
]


@pytest.mark.parametrize("limit", LIMITS)
def test_three_that_fit(limit: int) -> None:
    """Each fits the memory, says what it is good at, and is another target."""
    pairs = suggested_pairs(limit, DISK)
    assert len({entry.published for entry in pairs}) == len(pairs) == 3
    for entry in pairs:
        assert entry.memory_bytes is not None
        assert entry.memory_bytes < COMFORTABLE_SHARE * limit
        assert entry.supported
        assert not entry.gated
        assert 0 < len(entry.good) <= 32
    assert pairs[0].strength == "answers"
    assert "speed" in [entry.strength for entry in pairs]
    answers = [pair for pair in pairs if pair.strength == "answers"]
    assert answers == sorted(answers, key=lambda pair: -(pair.params or 0))


def test_what_does_not_fit_is_not_offered() -> None:
    """A full disk offers smaller ones, then none; so does little memory."""
    assert suggested_pairs(LIMITS[1], 1_000_000_000) == []
    assert suggested_pairs(1_000_000_000, DISK) == []
    small = suggested_pairs(LIMITS[1], 6_500_000_000)
    assert small
    assert all((entry.download_bytes or 0) < 4_500_000_000 for entry in small)


NAMES = {
    "Qwen3-8B-4bit": "mlx-community/Qwen3-8B-4bit",
    "Qwen3-Coder-30B-A3B-4bit": "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit",
    "Qwen3.5-9B-4bit": "mlx-community/Qwen3.5-9B-4bit",
    "gemma-4-26B-A4B-4bit": "mlx-community/gemma-4-26b-a4b-it-4bit",
}


def counted() -> list[tuple[str, str, int]]:
    """Chip, pair and tokens per second of the guide's table, which counts every kernel."""
    lines = re.findall(r"^\| (.*) \|$", GUIDE.read_text(encoding="utf-8"), re.M)
    table = [line.split(" | ") for line in lines if line.startswith(("chip | Qwen", "M"))]
    _, *names = table[0]
    return [
        (chip, name, int(cell.split()[0]))
        for chip, *cells in table[1:]
        for name, cell in zip(names, cells, strict=True)
    ]


def test_the_forecast_is_near_the_one_that_counts_kernels() -> None:
    """Within a fifth; of a chip with two numbers of cores it is the slower one's."""
    slower = {"M3 Max (30 cores)": "M3 Max", "M4 Max (32 cores)": "M4 Max"}
    checked = 0
    for chip, name, plain in counted():
        if name in NAMES and chip not in slower.values():
            entry = registry.find(NAMES[name])
            assert entry
            speed = forecast.plain_speed(entry, f"Apple {slower.get(chip, chip)}")
            assert speed == pytest.approx(plain, rel=0.2), (chip, name)
            checked += 1
    assert checked > 60
