"""The mode auto on Macs that exist on paper: five chips, five shapes of pairs, four drafters.

A process begins cold: the first pass of each kernel takes longer, though its library was built when
the pair was loaded, and the chip's clock rises. Either it surveys its costs, or it has them from a
process before and meets all that in its answers. Rates are those after the first answer, without
the building of kernels, which every way of decoding pays once.
"""

import macs
import numpy as np
import pytest
from counted_macs import best_width
from macs import CHIPS, PAIRS, Mac, MacProcess
from simulated import FAIR, GOOD, POOR, WRONG, Drafter, fixed_rates, play

import dflash_mlx.policy.adaptive as adaptive
from dflash_mlx.policy.acceptance import Averages
from dflash_mlx.policy.adaptive import AdaptivePolicy

ANSWERS = 4  # after the first
PROCESSES = 4  # of each way: an answer is short, and which drafts are kept is luck
# Whether costs are surveyed in the same process, and seconds of a build.
WAYS = ((True, 0.05), (False, 0.02))


def rates(mac: Mac, drafter: Drafter) -> tuple[float, float]:
    """The rate of auto over that of the best fixed width, and over that of plain decoding."""
    true, tokens, seconds, fixed = mac.true_costs(), 0, 0.0, list[float]()
    best = best_width(mac, drafter)
    for place, (surveys, hitch) in enumerate(PROCESSES * WAYS):
        seed = 50 * place
        process = MacProcess(mac, hitch)
        costs = process.survey()
        process = process if surveys else MacProcess(mac, hitch)
        policy = AdaptivePolicy(costs, mac.pair.block)
        play(policy, process, [drafter], seed=seed)
        built = process.building
        for number in range(seed + 1, seed + 1 + ANSWERS):
            played = play(policy, process, [drafter], seed=number)
            tokens, seconds = tokens + played.tokens, seconds + played.seconds
            fixed.append(1 / fixed_rates(true, [drafter], seed=number)[best])
        seconds -= process.building - built
    return tokens / seconds * float(np.mean(fixed)), tokens / seconds * true.plain


# The least rate of all pairs on all chips over the best fixed width's, and the mean. Where drafts
# gain little, an answer is over before that is sure.
BARS = [(GOOD, 0.97, 1.05), (FAIR, 0.96, 1.015), (POOR, 0.94, 0.98), (WRONG, 0.99, 0.993)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "least", "mean"), BARS, ids=["good", "fair", "poor", "hopeless"]
)
def test_auto_is_near_the_best_width_and_not_below_plain_steps(
    drafter: Drafter, least: float, mean: float
) -> None:
    """Guards what waits for drafts that lose, and what learns which widths pay."""
    over_best = dict[str, float]()
    for mac in [Mac(chip, pair) for chip in CHIPS for pair in PAIRS]:
        over_best[str(mac)], over_plain = rates(mac, drafter)
        assert over_plain > 0.97, str(mac)
    assert min(over_best.values()) > least, over_best
    assert np.mean([*over_best.values()]) > mean


# Faults that the check above must see.


def test_fault_positions_that_were_never_verified_look_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where confidence is dear, wide chains would never be found."""

    honest_probability = Averages.probability

    def probability(averages: Averages, number: int, prior: float) -> float:
        return honest_probability(averages, number, 0.5)

    mac = Mac(CHIPS[3], PAIRS[1])
    monkeypatch.setattr(macs, "PARTS", 1)  # a look costs all of the building
    honest, _ = rates(mac, GOOD)
    monkeypatch.setattr(Averages, "probability", probability)
    assert rates(mac, GOOD)[0] < honest - 0.02


def test_fault_drafting_that_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hopeless drafter would cost its drafts for ever."""
    monkeypatch.setattr(adaptive, "LOSS", 1e9)
    assert rates(Mac(CHIPS[3], PAIRS[1]), WRONG)[1] < 0.9
