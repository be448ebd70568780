"""The mode auto on simulated Macs with counted costs, at long contexts and on small chips.

At 128k tokens attention is most of a pass, and it grows with the rows. What is held: auto never
falls below 0.97 of plain decoding, and all but a few cells are within 5 % of the best fixed width.
"""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from counted_macs import CHIPS, DRAFTERS, Recorded, auto_at, costs_at, load
from simulated import WRONG, Drafter

import dflash_mlx.policy.adaptive as adaptive

GUIDE = Path(__file__).parents[2] / "examples" / "guide" / "bench.md"
MACS = load()
CELLS = [(mac, depth) for mac in MACS for depth in mac.costs]
LONG = 131_072
LOW = DRAFTERS["2"]
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


def test_fault_drafting_that_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that is always wrong would cost its drafts for ever."""
    mac = mac_named("M4 Max")
    assert auto_at(mac, 2048, WRONG).over_plain >= LEAST[0]
    monkeypatch.setattr(adaptive, "LOSS", 1e9)
    assert auto_at(mac, 2048, WRONG).over_plain < 0.9


@pytest.mark.parametrize(("tau", "drafter"), DRAFTERS.items())
def test_the_drafts_are_worth_what_is_said(tau: str, drafter: Drafter) -> None:
    """Tokens of a round of 16 rows, in the long run."""
    right = [count for seed in range(60) for count in drafter.blocks(seed)]
    assert 1 + np.mean(right) == pytest.approx(float(tau), rel=0.02)


def test_costs_grow_with_depth() -> None:
    """Nothing is cheaper after more tokens; between two depths costs are in between."""
    assert {mac.chip for mac in MACS} == {chip for names in CHIPS.values() for chip in names}
    for mac in MACS:
        depths = sorted(mac.costs)
        for less, more in pairwise(depths):
            one, two = mac.costs[less], mac.costs[more]
            assert all(a <= b for a, b in zip(one.verify, two.verify, strict=True)), str(mac)
            assert one.draft <= two.draft
        middle = costs_at(mac, (depths[0] + depths[1]) // 2)
        assert mac.costs[depths[0]].verify[3] <= middle.verify[3] <= mac.costs[depths[1]].verify[3]
        assert costs_at(mac, 10 * depths[-1]) == mac.costs[depths[-1]]
