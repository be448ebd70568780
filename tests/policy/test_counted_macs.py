"""The mode auto on simulated Macs with counted costs, at long contexts and on small chips.

At 128k tokens attention is most of a pass, and it grows with the rows. What is held: auto never
falls below 0.96 of plain decoding. It is within 5 % of the best fixed width in most cells, and
within 12 % in all: where drafts cost half a decode step or more and gain little, pauses of auto are
too long.
"""

import re
from itertools import pairwise
from pathlib import Path

import counted_macs
import numpy as np
import pytest
from counted_macs import DRAFTERS, auto_at, costs_at, counted_mac, outcome
from ledger.chips import chip_named
from ledger.recorded import CONTEXTS, MEMORY, Recorded, costs_of, counted_pair, load
from simulated import GOOD, WRONG, Drafter

import dflash_mlx.policy.adaptive as adaptive
from dflash_mlx.engine import latency_table
from dflash_mlx.policy.acceptance import Averages

GUIDE = Path(__file__).parents[2] / "examples" / "guide" / "bench.md"
MACS = load()
CELLS = [(mac, depth) for mac in MACS for depth in mac.costs]
LONG = CONTEXTS[-1]
LOW = DRAFTERS["2"]
LEAST = 0.96, 0.88  # of plain decoding, and of the best fixed width


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


def test_fault_costs_without_depth() -> None:
    """Costs of a short context, or of 8,192 tokens, let auto draft where drafts lose."""
    mac = mac_named("M5 Max")

    def over_plain(surveyed: int) -> float:
        return outcome(counted_mac(mac, LONG), counted_mac(mac, surveyed), LOW).over_plain

    assert over_plain(128) < LEAST[0]
    assert over_plain(8192) < LEAST[0]
    assert over_plain(LONG) >= LEAST[0]


def test_fault_depths_that_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through the table's own choice of a depth."""
    monkeypatch.setattr(latency_table, "DEPTHS", latency_table.DEPTHS[:5])
    assert auto_at(mac_named("M5 Max"), LONG, LOW).over_plain < LEAST[0]


def test_fault_drafting_that_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that is always wrong would cost its drafts for ever."""
    mac = mac_named("M4 Max")
    assert auto_at(mac, 2048, WRONG).over_plain >= LEAST[0]
    monkeypatch.setattr(adaptive, "LOSS", 1e9)
    assert auto_at(mac, 2048, WRONG).over_plain < 0.9


def test_fault_positions_that_were_never_verified_look_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where confidence is dear, wide chains would never be found."""
    mac = mac_named("M4 Max", "Qwen3-Coder-30B-A3B")
    honest_probability = Averages.probability

    def probability(averages: Averages, number: int, prior: float) -> float:
        return honest_probability(averages, number, 0.5)

    monkeypatch.setattr(counted_macs, "PARTS", 1)  # a look costs all of the building
    honest = auto_at(mac, 128, GOOD).over_best
    monkeypatch.setattr(Averages, "probability", probability)
    assert auto_at(mac, 128, GOOD).over_best < honest - 0.1


@pytest.mark.parametrize(("tau", "drafter"), DRAFTERS.items())
def test_the_drafts_are_worth_what_is_said(tau: str, drafter: Drafter) -> None:
    """Tokens of a round of 16 rows, in the long run."""
    right = [block.right for seed in range(60) for block in drafter.blocks(seed)]
    assert 1 + np.mean(right) == pytest.approx(float(tau), rel=0.02)


def test_costs_grow_with_depth() -> None:
    """Nothing is cheaper after more tokens; between two depths costs are in between."""
    assert {mac.chip for mac in MACS} == {*MEMORY}
    for mac in MACS:
        depths = sorted(mac.costs)
        for less, more in pairwise(depths):
            one, two = mac.costs[less], mac.costs[more]
            assert all(a <= b for a, b in zip(one.verify, two.verify, strict=True)), str(mac)
            assert one.draft <= two.draft
        middle = costs_at(mac, (depths[0] + depths[1]) // 2)
        assert mac.costs[depths[0]].verify[3] <= middle.verify[3] <= mac.costs[depths[1]].verify[3]
        assert costs_at(mac, 10 * depths[-1]) == mac.costs[depths[-1]]


@pytest.mark.slow
def test_the_record_is_what_is_counted() -> None:
    """If not, the ledger or what is known of chips has changed: run `ledger record`."""
    mac = mac_named("M4 Max")
    pair, chip = counted_pair(mac.pair, mac.bits), chip_named(mac.chip)
    for depth, costs in mac.costs.items():
        assert costs == costs_of(pair, depth, chip)
