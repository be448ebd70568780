"""The speed policy on paper: simulated machines and drafters, no clock and no model.

What is best is found by brute force on the same blocks. Faults planted in the policy (costs it does
not know, acceptance that it does not learn, drafting that never waits) must fail these checks.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import simulated as sim
from simulated import (
    BLOCK,
    CPU,
    MACHINES,
    QUICK,
    TOKENS,
    Drafter,
    Machine,
    Played,
    fixed_rates,
    play,
)

import dflash_mlx.policy.account as account
from dflash_mlx.policy.auto import Auto
from dflash_mlx.policy.belief import Belief
from dflash_mlx.policy.costs import PLAIN, Costs
from dflash_mlx.policy.drift import Drift
from dflash_mlx.policy.policy import Fixed, Outcome, Text
from dflash_mlx.policy.worth import RARELY, Worth
from dflash_mlx.types import Plan

ANSWERS = 8
SPREAD = [Machine("M1", "narrow"), Machine("M4 Max", "narrow"), Machine("M5 Max", "wide"), None]


@cache
def known(machine: Machine | None) -> tuple[Costs, Costs]:
    """A machine's true costs, and those that a survey of it finds; None is the slow CPU."""
    return (CPU, CPU) if machine is None else (machine.true_costs(), machine.costs())


def against_best(machine: Machine | None, drafter: Drafter, seeds: Sequence[int] = (0,)) -> float:
    """Rate of auto over that of the best fixed width, a plain step being one; mean over seeds."""
    true, found = known(machine)
    drafters, rates = [drafter] * ANSWERS, []
    for seed in seeds:
        best = max(fixed_rates(true, drafters, seed=seed).values())
        rates.append(play(Auto(found, BLOCK), true, drafters, seed=seed).rate / best)
    return float(np.mean(rates))


def steady(mean: float) -> Drafter:
    """Every block is like every other, and the drafter says how sure it may be."""
    return Drafter(mean, spread=0.0, noise=0.0)


def widths(machine: Machine, mean: float) -> tuple[float, float]:
    """Rate of the width that auto commits most tokens with, and its own, over the best width's."""
    true, found = known(machine)
    drafters = [steady(mean)] * ANSWERS
    rates = fixed_rates(true, drafters)
    played = play(Auto(found, BLOCK), true, drafters)
    rows = played.plans.most_common(1)[0][0].rows
    return rates[rows] / max(rates.values()), played.rate / max(rates.values())


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_the_width_is_the_one_that_brute_force_finds(machine: Machine) -> None:
    """Guards the arithmetic of costs and chances: within 3 % of the best width on every chip."""
    for mean in (0.5, 1.2, 2.0, 3.0, 4.0):
        by_width, own = widths(machine, mean)
        assert by_width > 0.97, f"mean {mean}"
        assert own > 0.965, f"mean {mean}"


@pytest.mark.parametrize("machine", SPREAD, ids=str)
@pytest.mark.parametrize("drafter", [sim.GOOD, sim.FAIR, sim.POOR, sim.SMUG, sim.SHY])
def test_never_below_the_best_fixed_width(machine: Machine | None, drafter: Drafter) -> None:
    """Learning, reading and waiting together cost less than they bring."""
    assert against_best(machine, drafter, (0, 50, 100, 150)) > 0.975


@pytest.mark.parametrize("machine", SPREAD, ids=str)
def test_a_confidence_that_says_nothing(machine: Machine | None) -> None:
    """Acceptance is learned where the drafter gives no sign of it."""
    assert against_best(machine, sim.MUTE, (0, 50, 100, 150)) > 0.95


def test_confidence_pays() -> None:
    """Where passages differ, widths chosen block by block beat every fixed width."""
    gains = [against_best(m, d) for m, d in product(SPREAD, (sim.GOOD, sim.SHY))]
    assert min(gains) > 0.98
    assert np.mean(gains) > 1.08


@pytest.mark.parametrize("machine", SPREAD, ids=str)
@pytest.mark.parametrize("drafter", [sim.RANDOM, sim.WRONG, Drafter(-6.0), Drafter(-6.0, shift=8)])
def test_a_hopeless_drafter_costs_little(machine: Machine | None, drafter: Drafter) -> None:
    """At least 0.98 of plain decoding, 0.955 in a process's very first answer."""
    true, found = known(machine)
    plain = 1 / true.seconds(PLAIN)
    assert play(Auto(found, BLOCK), true, [drafter] * ANSWERS).rate > 0.98 * plain
    for seed in range(2):
        first = play(Auto(found, BLOCK), true, [drafter], seed=seed)
        assert first.rate > 0.955 * plain


def in_turn(costs: Costs, found: Costs, phases: Sequence[Drafter]) -> tuple[Played, list[Played]]:
    """One long answer in which the drafter changes; all of it, and each phase by itself."""
    policy, whole, parts = Auto(found, BLOCK), Played(), []
    belief = policy.new_belief()
    for number, drafter in enumerate(phases):
        part = Played()
        blocks = iter(drafter.blocks(number) + drafter.blocks(100 + number))
        while part.tokens < 2 * TOKENS:
            sim.one_round(policy, costs, belief, next(blocks), TOKENS, part)
        whole.tokens, whole.seconds = whole.tokens + part.tokens, whole.seconds + part.seconds
        parts.append(part)
    return whole, parts


@pytest.mark.parametrize("machine", SPREAD, ids=str)
def test_a_drafter_that_changes_in_the_middle(machine: Machine | None) -> None:
    """Drafting waits when the drafter turns bad, and is taken up when it has become good."""
    true, found = known(machine)
    phases = [sim.GOOD, sim.WRONG, sim.GOOD, sim.GOOD]
    whole, parts = in_turn(true, found, phases)
    plain = 1 / true.seconds(PLAIN)
    good = max(fixed_rates(true, [sim.GOOD] * 4).values())
    assert parts[1].rate > 0.9 * plain
    assert parts[3].rate > 0.95 * good
    assert whole.rate > plain


def test_drafting_that_does_not_pay_is_tried_rarely() -> None:
    """Tries grow rarer, and all of them cost little of a long hopeless answer."""
    policy = Auto(CPU, BLOCK)
    belief, played = policy.new_belief(), Played()
    for block in (sim.WRONG.blocks(0) * 20)[:2500]:
        sim.one_round(policy, CPU, belief, block, TOKENS, played)
    assert 3 <= policy.state.tries <= 16
    assert not policy.state.drafting
    assert "next try" in policy.state.reason
    assert played.rate * CPU.plain > 0.985


def test_the_wait_begins_again_with_a_new_text() -> None:
    """What one text has lost says little of the next one, where drafts were ever kept."""
    policy = Auto(CPU, BLOCK)
    belief, played = policy.new_belief(), Played()
    for block in [*sim.GOOD.blocks(0), *sim.WRONG.blocks(0)]:
        sim.one_round(policy, CPU, belief, block, TOKENS, played)
    assert policy.drafts([Text(belief, 100)]) == [False]
    assert policy.drafts([Text(policy.new_belief(), 100)]) == [True]


def test_the_wait_goes_on_where_no_draft_was_ever_kept() -> None:
    """A drafter that never was right is not tried anew by every short answer."""
    policy = Auto(CPU, BLOCK)
    belief, played = policy.new_belief(), Played()
    while policy.drafts([Text(belief, 100)]) == [True]:
        sim.one_round(policy, CPU, belief, sim.WRONG.blocks(0)[0], TOKENS, played)
    assert policy.drafts([Text(policy.new_belief(), 100)]) == [False]


# Faults that the checks above must see.


def test_fault_costs_that_are_ignored() -> None:
    """A policy that believes that width is free is far from the best."""
    machine = Machine("M4 Max", "wide")
    true, _ = known(machine)
    blind = replace(true, chain=tuple((rows, true.plain) for rows, _ in true.chain))
    drafters = [steady(1.2)] * ANSWERS
    own = play(Auto(blind, BLOCK), true, drafters, timing=lambda seconds: None).rate
    assert own < 0.9 * max(fixed_rates(true, drafters).values())


def test_fault_acceptance_that_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a smug drafter says of itself is not enough, nor what a shy one says."""
    monkeypatch.setattr(Belief, "_regress", lambda *args: None)
    assert against_best(Machine("M1", "narrow"), sim.SMUG) < 0.8
    assert against_best(None, Drafter(3.0, shift=-3.0)) < 0.9


def test_fault_drafting_that_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hopeless drafter costs its drafts for ever."""
    monkeypatch.setattr(account, "DOUBT", 1e9)
    true, found = known(Machine("M4 Max", "narrow"))
    assert play(Auto(found, BLOCK), true, [sim.WRONG] * 4).rate < 0.9 / true.seconds(PLAIN)


def test_fault_a_wait_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that has become good would not be used."""
    monkeypatch.setattr(account, "PATIENCE", 1e6)
    _, parts = in_turn(CPU, CPU, [sim.WRONG, sim.GOOD, sim.GOOD])
    good = max(fixed_rates(CPU, [sim.GOOD] * 4).values())
    assert parts[2].rate < 0.95 * good


# Costs.


def test_no_width_is_cheaper_than_its_measured_neighbours() -> None:
    """Products step up somewhere between two measured widths: nobody knows where."""
    costs = Costs(plain=1.0, draft=0.1, chain=((1, 1.0), (4, 1.1), (8, 3.0), (12, 2.0)))
    found = [costs.verify(rows) for rows in range(1, 13)]
    assert found == [1.0, 1.1, 1.1, 1.1, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.0]
    assert costs.verify(13) == costs.verify(24) == 4.0
    assert costs.verify(25) == 6.0
    policy = proven(Auto(costs, BLOCK))
    text = [Text(policy.new_belief(), 100)]
    assert policy.drafts(text) == [True]
    (plan,) = policy.choose(text, [(0.9,) * (BLOCK - 1)])
    assert plan.rows in (4, 12)


def test_drift_finds_what_was_measured_wrong() -> None:
    """A width that really takes half as long again is held against the others as such."""
    drift, measured = Drift(), (1.0, 1.2, 2.0, 2.1)
    for number in range(400):
        of = measured[number % 4]
        drift.learn(of, of * drift.factor(of), 3.0 * of * (1.5 if of == 1.2 else 1.0))
    assert drift.factor(1.2) / drift.factor(1.0) == pytest.approx(1.5, rel=0.06)
    assert drift.factor(2.0) / drift.factor(1.0) == pytest.approx(1.0, rel=0.06)


def test_drift_tells_little_of_widths_that_were_not_used() -> None:
    """Rounds that are all dearer than measured: no other width looks much cheaper for that."""
    drift = Drift()
    for _ in range(400):
        drift.learn(1.0, drift.factor(1.0), 1.25)
    assert drift.factor(0.9) / drift.factor(1.0) > 0.85


def test_one_late_round_moves_little() -> None:
    """A pause of a hundred rounds changes no choice, and no account."""
    drift = Drift()
    assert drift.learn(1.0, 1.0, 100.0) == 2.0
    assert 1.0 < drift.factor(1.0) < 1.03


@pytest.mark.parametrize("drafter", [sim.GOOD, sim.RANDOM])
def test_noisy_clocks(drafter: Drafter) -> None:
    """Other work on the machine: every round up to twice as long, some ten times."""
    rng = np.random.default_rng(3)
    true, found = known(Machine("M5 Max", "wide"))
    drafters = [drafter] * ANSWERS

    def timing(seconds: float) -> float:
        return seconds * float(rng.uniform(1, 2)) * (10 if rng.random() < 0.03 else 1)

    quiet = play(Auto(found, BLOCK), true, drafters).rate
    assert play(Auto(found, BLOCK), true, drafters, timing=timing).rate > 0.97 * quiet


def test_costs_that_were_measured_wrong_are_put_right() -> None:
    """Wide verifies that take twice what was measured: the rounds' own times say so."""
    machine = Machine("M5 Max", "wide")
    true, found = known(machine)
    slow = replace(true, chain=tuple((r, s * (1 if r < 6 else 2)) for r, s in true.chain))
    drafters = [sim.GOOD] * 24
    best = max(fixed_rates(slow, drafters).values())
    told = play(Auto(found, BLOCK), slow, drafters).rate
    untold = play(Auto(found, BLOCK), slow, drafters, timing=lambda seconds: None).rate
    assert told > max(0.92 * best, 1.1 * untold)


def among_plain_steps(drafter: Drafter, seed: int) -> float:
    """Rate over plain decoding's where drafts pay by measured costs, but not by the clock."""
    cold = sim.Cold(replace(QUICK, chain=tuple((r, 1.15 * s) for r, s in QUICK.chain)), 1.0)
    noise = np.random.default_rng(seed)

    def timing(seconds: float) -> float:
        return seconds * float(np.exp(noise.normal(0, 0.1)))

    rate = play(Auto(QUICK, BLOCK), cold, [drafter] * ANSWERS, seed=seed, timing=timing).rate
    return rate * QUICK.plain


HALF_TRAINED = [Drafter(mean, noise=1.0) for mean in (-2.0, -1.5, -1.0, -0.5)]


def test_rounds_that_are_late_among_plain_steps() -> None:
    """What looks like a small gain, and is a loss each time it is tried, is soon left."""
    rates = [among_plain_steps(d, seed) for d in HALF_TRAINED for seed in range(4)]
    assert np.mean(rates) > 0.975
    assert min(rates) > 0.97


def test_fault_a_clock_that_nobody_reads() -> None:
    """By the measured costs alone drafting would be tried again and again."""
    cold = sim.Cold(replace(QUICK, chain=tuple((r, 1.15 * s) for r, s in QUICK.chain)), 1.0)
    rates = [
        play(Auto(QUICK, BLOCK), cold, [d] * ANSWERS, seed=seed, timing=lambda s: None).rate
        for d in HALF_TRAINED
        for seed in range(4)
    ]
    assert np.mean(rates) * QUICK.plain < 0.97


# Confidence.


def test_confidence_that_costs_more_than_it_brings_is_rarely_read() -> None:
    """Confidence that says nothing, at a price: positions alone do nearly as well."""
    true, found = known(Machine("M4 Max", "narrow"))
    dear = replace(found, read=0.2 * found.plain), replace(true, read=0.2 * true.plain)
    policy, reads = Auto(dear[0], BLOCK), []

    def noting(count: int) -> bool:
        reads.append(Auto.reads(policy, count))
        return reads[-1]

    policy.reads = noting  # type: ignore[method-assign]
    rate = play(policy, dear[1], [sim.MUTE] * ANSWERS).rate
    assert 0 < sum(reads[-200:]) < 40
    assert rate > 0.93 * max(fixed_rates(true, [sim.MUTE] * ANSWERS).values())


def test_confidence_that_pays_is_read() -> None:
    """A hundredth of a plain step is nothing against what confidence brings."""
    true, found = known(Machine("M4 Max", "narrow"))
    cheap = [replace(costs, read=0.01 * costs.plain) for costs in (true, found)]
    rates = [
        play(Auto(seen, BLOCK), real, [sim.GOOD] * ANSWERS).rate
        for real, seen in ((true, found), cheap)
    ]
    assert rates[1] > 0.97 * rates[0]


FLAT = Costs(plain=1.0, draft=0.2, chain=tuple((rows, 1.0 + 0.01 * rows) for rows in range(1, 9)))

# Batches.


def batch(policy: Auto, machine: Machine, drafters: Sequence[Drafter], rounds: int) -> Played:
    """So many rounds of several texts at once, which never end."""
    played, beliefs = Played(), [policy.new_belief() for _ in drafters]
    blocks = [drafter.blocks(n) * 9 for n, drafter in enumerate(drafters)]
    for number in range(rounds):
        texts = [Text(belief, 1000) for belief in beliefs]
        plans, drafted = [PLAIN] * len(texts), policy.drafts(texts)
        at = [place for place, drafts in enumerate(drafted) if drafts]
        if at:
            said = [blocks[n][number].confidence for n in at]
            chosen = policy.choose([texts[n] for n in at], said, len(texts) - len(at))
            for place, plan in zip(at, chosen, strict=True):
                plans[place] = plan
        done = []
        for belief, own, plan, drafts in zip(beliefs, blocks, plans, drafted, strict=True):
            count = min(own[number].right, plan.rows - 1)
            done.append(Outcome(belief, plan, plan.rows - 1, count, count + 1, drafts))
        seconds = machine.verify(sum(plan.rows for plan in plans)) + machine.draft * bool(at)
        policy.learn(done, seconds)
        played.tokens += sum(one.committed for one in done)
        played.seconds += seconds
    return played


def wide(machine: Machine) -> Costs:
    """All costs of a machine, also those of passes over the rows of several sequences."""
    widths = tuple((rows, machine.verify(rows)) for rows in range(1, 8 * BLOCK + 1))
    return replace(machine.true_costs(), chain=widths)


def best_of_all(machine: Machine, drafters: Sequence[Drafter], rounds: int) -> float:
    """Tokens a second where all sequences verify the same number of rows: the brute force."""
    blocks = [drafter.blocks(n) * 9 for n, drafter in enumerate(drafters)]
    rates = []
    for rows in range(1, BLOCK + 1):
        tokens = sum(min(own[n].right, rows - 1) + 1 for own in blocks for n in range(rounds))
        seconds = machine.verify(rows * len(blocks)) + machine.draft * (rows > 1)
        rates.append(tokens / (rounds * seconds))
    return max(rates)


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("drafter", [sim.GOOD, sim.FAIR, sim.WRONG])
def test_a_batch_is_never_below_the_best_width(
    machine: Machine, count: int, drafter: Drafter
) -> None:
    """Several texts at once: within 3 % of the best width for all of them, or better."""
    drafters = [drafter] * count
    best = best_of_all(machine, drafters, 300)
    assert batch(Auto(wide(machine), BLOCK), machine, drafters, 300).rate > 0.97 * best


def test_rows_go_to_the_text_that_keeps_them() -> None:
    """A good and a hopeless text at once: better than the best width for both."""
    machine = Machine("M4 Max", "narrow")
    drafters = [sim.GOOD, sim.WRONG]
    best = best_of_all(machine, drafters, 300)
    assert batch(Auto(wide(machine), BLOCK), machine, drafters, 300).rate > 1.05 * best


def test_the_best_next_row_gets_the_next_row() -> None:
    """What is verified are the likeliest drafts of all texts together."""
    costs = Costs(1.0, 0.0, tuple((rows, 1.0 + 0.5 * (rows > 12)) for rows in range(1, 33)))
    policy = proven(Auto(costs, BLOCK))
    texts = [Text(policy.new_belief(), 100) for _ in range(2)]
    policy.drafts(texts)
    said = [(0.99,) * 15, (0.5,) * 15]
    sure, unsure = policy.choose(texts, said)
    assert sure.rows + unsure.rows == 12
    assert sure.rows > 8 > unsure.rows


def test_a_smaller_batch_ends_the_wait() -> None:
    """Rows that were too dear among many sequences may pay among few."""
    policy = Auto(CPU, BLOCK)
    texts = [Text(policy.new_belief(), 100) for _ in range(3)]
    while all(policy.drafts(texts)):
        plans = policy.choose(texts, [(0.9,) * 15] * 3)
        done = [
            Outcome(t.belief, plan, plan.rows - 1, 0, 1, True)
            for t, plan in zip(texts, plans, strict=True)
        ]
        policy.learn(done, None)
    assert policy.drafts(texts) == [False] * 3
    assert policy.rests(texts)
    assert policy.drafts(texts[:2]) == [True] * 2


# The parts.


def proven(policy: Auto) -> Auto:
    """One that has seen drafts kept."""
    policy._proven = True
    return policy


@pytest.mark.parametrize(("said", "true"), [(0.9, 0.5), (0.5, 0.9), (0.8, 0.8), (0.999, 0.02)])
def test_belief_finds_the_truth(said: float, true: float) -> None:
    """What is said is put right by what happened, over and under confident alike."""
    rng, belief, block = np.random.default_rng(0), Belief(), (said,) * 7
    foreseen, happened = [], []
    for _ in range(300):
        foreseen.append(sum(belief.survivals(block, 7)))
        happened.append(int(np.cumprod(rng.random(7) < true).sum()))
        belief.learn(block, 7, happened[-1], cut=False)
    assert np.mean(foreseen[60:]) == pytest.approx(np.mean(happened[60:]), rel=0.12, abs=0.02)


def test_belief_forgets() -> None:
    """A drafter that was good for long is disbelieved soon after its drafts had to wait."""
    belief, block = Belief(), (0.9,) * 7
    for _ in range(100):
        belief.learn(block, 7, 7, cut=False)
    before = belief.survivals(block, 7)[0]
    belief.doubt()
    for _ in range(5):
        belief.learn(block, 7, 0, cut=False)
    assert before > 0.95
    assert belief.survivals(block, 7)[0] < 0.5


def test_an_answer_that_ends_teaches_no_rejection() -> None:
    """The draft after a stop token was not verified."""
    ended, lost, block = Belief(), Belief(), (0.9,) * 7
    for _ in range(20):
        ended.learn(block, 7, 1, cut=True)
        lost.learn(block, 7, 1, cut=False)
    assert ended.survivals(block, 7)[1] > 0.7 > lost.survivals(block, 7)[1]
    assert ended._verified[1:] == [0] * 6
    assert lost._verified[1] > 0 == lost._verified[2]


def test_survivals_fall() -> None:
    """Longer prefixes are never likelier, whatever is said; a 0 ends the block."""
    found = Belief().survivals((0.0001, 1.0, 0.9, 0.0, 0.9), 7)
    assert len(found) == 3
    assert found == sorted(found, reverse=True)
    assert found[-1] > 0


def test_a_fork_learns_by_itself() -> None:
    """Two sequences that begin alike do not change each other's belief."""
    one, block = Belief(), (0.9,) * 7
    other = one.fork()
    other.learn(block, 7, 0, cut=False)
    assert one.survivals(block, 7) == Belief().survivals(block, 7) != other.survivals(block, 7)


def test_room_bounds_the_rows() -> None:
    """Rows for tokens that may not be committed any more are never asked for."""
    policy = proven(Auto(FLAT, 8))
    belief = policy.new_belief()
    for room in range(8, 0, -1):
        text = [Text(belief, room)]
        if policy.drafts(text) == [False]:
            assert room == 1
            continue
        (plan,) = policy.choose(text, [(0.99,) * 7])
        assert plan.rows <= room
        done = Outcome(belief, plan, plan.rows - 1, plan.rows - 1, plan.rows, True)
        policy.learn([done], None)


def test_drafts_shorter_than_a_block() -> None:
    """A drafter may give fewer drafts at the end of a context."""
    policy = proven(Auto(FLAT, 8))
    belief = policy.new_belief()
    for count in (3, 1):
        assert policy.drafts([Text(belief, 100)]) == [True]
        (plan,) = policy.choose([Text(belief, 100)], [(0.99,) * count])
        assert plan.rows <= count + 1
        done = Outcome(belief, plan, plan.rows - 1, plan.rows - 1, plan.rows, True)
        policy.learn([done], None)


def test_state_says_what_was_chosen() -> None:
    """Counts, acceptance and a reason, for whoever shows them."""
    policy = Auto(known(Machine("M4 Max", "wide"))[1], BLOCK)
    played = play(policy, known(Machine("M4 Max", "wide"))[0], [sim.GOOD])
    state = policy.state
    assert dict(state.plans).keys() == played.plans.keys()
    assert "expected" in state.reason
    assert "plain steps" in state.reason
    assert 0.8 < state.acceptance[0] <= 1
    assert all(a >= b for a, b in zip(state.acceptance, state.acceptance[1:], strict=False))
    assert state.drafting


def test_fixed_plans() -> None:
    """The modes without a choice: always the same."""
    chain, tree, plain = Fixed(Plan(8)), Fixed(Plan(33, tree=True)), Fixed(PLAIN)
    texts = [Text(chain.new_belief(), 5)] * 2
    assert chain.drafts(texts) == tree.drafts(texts) == [True, True]
    assert plain.drafts(texts) == [False, False]
    assert plain.rests(texts)
    assert chain.choose(texts, [None, None]) == [Plan(8)] * 2
    assert tree.choose(texts, [None, None]) == [Plan(33, tree=True)] * 2
    assert not tree.reads(2)
    chain.learn([Outcome(texts[0].belief, Plan(8), 7, 3, 4, True)], None)
    assert chain.state.plans == ((Plan(8), 1),)
    assert "always a chain of 8 rows" in chain.state.reason


def test_what_did_not_pay_comes_back() -> None:
    """It is left, tried once in a while, and done again when it pays again."""
    worth = Worth()

    def times(brought: float, rounds: int) -> int:
        """How often it is done in so many rounds in which it brings that."""
        done = 0
        for _ in range(rounds):
            if worth.due(0.1):
                worth.learn(brought)
                done += 1
        return done

    assert times(0.3, 100) == 100
    times(0.0, 200)
    assert times(0.0, 200) <= 1 + 200 // RARELY
    times(3.0, 200)
    assert times(3.0, 100) == 100


def test_trees_of_one_size_say_nothing_of_positions() -> None:
    """How deep they were is not known where their rounds are counted; chains say it."""
    tree, chain = Fixed(Plan(9, tree=True)), Fixed(Plan(9))
    for policy, plan in ((tree, Plan(9, tree=True)), (chain, Plan(9))):
        for _ in range(50):
            policy.learn([Outcome(policy.new_belief(), plan, 8, 2, 3, True)], None)
    assert tree.state.acceptance == ()
    assert chain.state.acceptance[1] > 0.8 > 0.2 > chain.state.acceptance[2]


def short_texts(policy: Auto, true: Costs, drafters: Sequence[Drafter]) -> list[Played]:
    """Texts of 40 tokens by each drafter in turn; what each drafter's texts took."""
    parts = [Played() for _ in drafters]
    for number in range(24):
        for part, drafter in zip(parts, drafters, strict=True):
            belief, left = policy.new_belief(), 40
            blocks = iter(drafter.blocks(number))
            while left:
                left -= sim.one_round(policy, true, belief, next(blocks), left, part)
    return parts


@pytest.mark.parametrize("machine", SPREAD, ids=str)
@pytest.mark.parametrize("own", [True, False], ids=["own", "fault: gains pay for other texts"])
def test_a_text_does_not_live_on_what_others_gained(machine: Machine | None, own: bool) -> None:
    """Short texts whose drafts are wrong lose little among those whose drafts are right."""
    true, found = known(machine)
    policy: Any = Auto(found, BLOCK)
    honest = policy.new_belief

    def keeping() -> Belief:
        debt, belief = policy._account.debt, honest()
        policy._account.debt = debt
        return belief

    if not own:
        policy.new_belief = keeping
    good, bad = short_texts(policy, true, [sim.GOOD, sim.WRONG])
    assert good.rate > 1.05 / true.plain
    assert (bad.rate > 0.91 / true.plain) is own
