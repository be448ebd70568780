"""The mode auto on simulated Macs with counted costs, at long contexts and on small chips."""

import re
from pathlib import Path

import pytest
from counted_macs import DRAFTERS, Recorded, auto_at, load
from simulated import WRONG

GUIDE = Path(__file__).parents[2] / "examples" / "guide" / "bench.md"
MACS = load()
CELLS = [(mac, depth) for mac in MACS for depth in mac.costs]
LONG = 131_072
LEAST = 0.97, 0.88  # of plain decoding, and of the best fixed width


def mac_named(chip: str, pair: str = "Qwen3-8B", bits: int = 4) -> Recorded:
    (found,) = (mac for mac in MACS if (mac.chip, mac.pair, mac.bits) == (chip, pair, bits))
    return found


@pytest.mark.quick_every(29)
@pytest.mark.parametrize(("mac", "depth"), CELLS, ids=[f"{mac}, {depth}" for mac, depth in CELLS])
def test_auto_loses_nothing(mac: Recorded, depth: int) -> None:
    """Whatever the drafts are worth: near plain decoding and near the best width at least."""
    for tau, drafter in {**DRAFTERS, "1": WRONG}.items():
        found = auto_at(mac, depth, drafter)
        assert found.over_plain >= LEAST[0], f"tau {tau}: {found}"
        assert found.over_best >= LEAST[1], f"tau {tau}: {found}"


@pytest.mark.slow
def test_the_guide_has_what_auto_does() -> None:
    """Each cell of its table: the rows that auto commits most tokens with, and its gain."""
    table = re.findall(r"^\| (M\d[^|]*) \| (\w[^|]*) \| (.*) \|$", GUIDE.read_text("utf-8"), re.M)
    assert len(table) == 9
    for chip, pair, cells in table:
        mac = mac_named(chip, pair)
        for depth, cell in zip((128, 8192, 32_768, LONG), cells.split("|"), strict=True):
            assert bool(cell.strip()) == (depth in mac.costs)
            if cell.strip():
                found = auto_at(mac, depth, DRAFTERS["4.3"])
                assert str(found).startswith(f"{cell.strip()},"), f"{mac}, {depth}"
