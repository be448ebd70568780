"""The speed policy on paper: simulated machines and drafters, no clock and no model.

What is best is found by brute force on the same blocks. Faults planted in the policy (costs it does
not know, acceptance that it does not learn, drafting that is never parked) must fail these checks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

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

from dflash_mlx.policy.auto import Auto
from dflash_mlx.policy.calibration import Calibration, Confidence, Positions, steps, survivals
from dflash_mlx.policy.costs import PLAIN, Costs, Drift, Plan, words
from dflash_mlx.policy.parking import Interest, Parking
from dflash_mlx.policy.policy import Fixed

ANSWERS = 8
SPREAD = [Machine("M1", "narrow"), Machine("M4 Max", "narrow"), Machine("M5 Max", "wide"), None]


@cache
def known(machine: Machine | None) -> tuple[Costs, Costs]:
    """A machine's true costs, and those that a survey of it finds; None is the slow CPU."""
    return (CPU, CPU) if machine is None else (machine.true_costs(), machine.costs())


def against_best(machine: Machine | None, drafter: Drafter, answers: int = ANSWERS) -> float:
    """Rate of auto over that of the best fixed width, a plain step being one."""
    true, found = known(machine)
    drafters = [drafter] * answers
    best = max(fixed_rates(true, drafters).values())
    return play(Auto(found, BLOCK), true, drafters).rate / best


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
    """Learning, looking and parking together cost less than they bring: 0.98 of the best width."""
    assert against_best(machine, drafter) > 0.975


@pytest.mark.parametrize("machine", SPREAD, ids=str)
def test_a_confidence_that_says_nothing(machine: Machine | None) -> None:
    """Acceptance is learned where the drafter gives no sign of it."""
    assert against_best(machine, sim.MUTE) > 0.95


def test_confidence_pays() -> None:
    """Where passages differ, widths chosen block by block beat every fixed width."""
    gains = [against_best(m, d) for m, d in product(SPREAD, (sim.GOOD, sim.SHY))]
    assert min(gains) > 0.98
    assert np.mean(gains) > 1.08


@pytest.mark.parametrize("machine", SPREAD, ids=str)
@pytest.mark.parametrize("drafter", [sim.RANDOM, sim.WRONG, Drafter(-6.0), Drafter(-6.0, shift=8)])
def test_a_hopeless_drafter_costs_little(machine: Machine | None, drafter: Drafter) -> None:
    """At least 0.97 of plain decoding, also in a process's very first answer."""
    true, found = known(machine)
    plain = 1 / true.seconds(PLAIN)
    assert play(Auto(found, BLOCK), true, [drafter] * ANSWERS).rate > 0.98 * plain
    for seed in range(2):
        first = play(Auto(found, BLOCK), true, [drafter], seed=seed)
        assert first.rate > 0.965 * plain


def in_turn(costs: Costs, found: Costs, phases: Sequence[Drafter]) -> tuple[Played, list[Played]]:
    """One long answer in which the drafter changes; all of it, and each phase by itself."""
    policy, whole, parts = Auto(found, BLOCK), Played(), []
    policy.begin()
    for number, drafter in enumerate(phases):
        part = Played()
        blocks = iter(drafter.blocks(number) + drafter.blocks(100 + number))
        while part.tokens < 2 * TOKENS:
            sim.one_round(policy, costs, next(blocks), TOKENS, part)
        whole.tokens, whole.seconds = whole.tokens + part.tokens, whole.seconds + part.seconds
        parts.append(part)
    return whole, parts


@pytest.mark.parametrize("machine", SPREAD, ids=str)
def test_a_drafter_that_changes_in_the_middle(machine: Machine | None) -> None:
    """Drafting is parked when the drafter turns bad, and taken up when it has become good."""
    true, found = known(machine)
    phases = [sim.GOOD, sim.WRONG, sim.GOOD, sim.GOOD]
    whole, parts = in_turn(true, found, phases)
    plain = 1 / true.seconds(PLAIN)
    good = max(fixed_rates(true, [sim.GOOD] * 4).values())
    assert parts[1].rate > 0.9 * plain
    assert parts[3].rate > 0.95 * good
    assert whole.rate > plain


def test_parked_drafting_is_tried_rarely() -> None:
    """Tries grow rarer: their number in a hopeless conversation is about that of the doublings."""
    policy = Auto(CPU, BLOCK)
    played = Played()
    for block in (sim.WRONG.blocks(0) * 20)[:2500]:
        sim.one_round(policy, CPU, block, TOKENS, played)
    assert 3 <= policy.state.tries <= 16
    assert policy.state.parked
    assert "parked" in policy.state.reason


# Faults that the checks above must see.


def test_fault_costs_that_are_not_looked_at() -> None:
    """A policy that believes that width is free is far from the best."""
    machine = Machine("M4 Max", "wide")
    true, _ = known(machine)
    blind = replace(true, chain=tuple((rows, true.plain) for rows, _ in true.chain))
    drafters = [steady(1.2)] * ANSWERS
    own = play(Auto(blind, BLOCK), true, drafters, timing=lambda seconds: None).rate
    assert own < 0.9 * max(fixed_rates(true, drafters).values())


def test_fault_acceptance_that_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a smug drafter says of itself is not enough, nor what a shy one says."""
    monkeypatch.setattr(Calibration, "learn", lambda *args, **options: None)
    assert against_best(Machine("M1", "narrow"), sim.SMUG) < 0.8
    assert against_best(None, Drafter(3.0, shift=-3.0)) < 0.9


def test_fault_drafting_that_is_never_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hopeless drafter costs its drafts for ever."""
    monkeypatch.setattr(Parking, "learn", lambda *args, **options: None)
    true, found = known(Machine("M4 Max", "narrow"))
    assert play(Auto(found, BLOCK), true, [sim.WRONG] * 4).rate < 0.9 / true.seconds(PLAIN)


def test_fault_parking_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that has become good would not be used."""
    monkeypatch.setattr(Parking, "PATIENCE", (1e6, 1e9))
    monkeypatch.setattr(Parking, "RISK", -1.0)
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
    policy = Auto(costs, BLOCK)
    drafted = policy.drafts(100)
    plan = policy.plan(Confidence((0.9,) * (BLOCK - 1)), 100)
    assert drafted
    assert plan.rows in (2, 3, 4, 8, 12)


def test_drift_finds_what_was_measured_wrong() -> None:
    """A width that really takes half as long again is held against the others as such, slowly."""
    plans = [Plan(1), Plan(4), Plan(16), Plan(16, tree=True)]
    drift = Drift(plans)
    seconds = dict(zip(plans, (1.0, 1.2, 2.0, 2.1), strict=True))
    for number in range(400):
        plan = plans[number % 4]
        expected = seconds[plan] * drift.factors[number % 4]
        drift.learn(plan, expected, 3.0 * seconds[plan] * (1.5 if plan.rows == 4 else 1.0))
    factors = drift.factors
    assert factors[1] / factors[0] == pytest.approx(1.5, rel=0.06)
    assert factors[2] / factors[0] == pytest.approx(1.0, rel=0.06)


def test_drift_tells_little_of_widths_that_were_not_used() -> None:
    """Rounds that are all dearer than measured: no other width looks much cheaper for that.

    The next one must not look cheaper at all, or it would be taken without a reason.
    """
    plans = [Plan(rows) for rows in range(1, BLOCK + 1)]
    drift = Drift(plans)
    for _ in range(400):
        drift.learn(plans[-1], drift.factor(plans[-1]), 1.25)
    factors = drift.factors
    assert factors[7] / factors[-1] > 0.95
    assert factors[-2] / factors[-1] == pytest.approx(1.0, abs=0.015)


def test_one_late_round_moves_little() -> None:
    """A pause of a hundred rounds changes no choice."""
    plans = [Plan(1), Plan(8)]
    drift = Drift(plans)
    drift.learn(Plan(8), 1.0, 100.0)
    assert 1.0 < drift.factors[1] / drift.factors[0] < 1.03


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


def test_fault_lateness_that_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the costs alone drafting would be tried again and again."""
    monkeypatch.setattr(Parking, "LATELY", 0.0)
    rates = [among_plain_steps(d, seed) for d in HALF_TRAINED for seed in range(4)]
    assert np.mean(rates) < 0.97
    assert min(rates) < 0.955


# Looks.


def test_looks_that_cost_more_than_they_bring_are_rare() -> None:
    """Confidence that says nothing, at a price: positions alone do nearly as well."""
    true, found = known(Machine("M4 Max", "narrow"))
    dear = replace(found, look=0.2 * found.plain), replace(true, look=0.2 * true.plain)
    policy, looks = Auto(dear[0], BLOCK), []

    def noting() -> bool:
        looks.append(Auto.looks(policy))
        return looks[-1]

    policy.looks = noting  # type: ignore[method-assign]
    play(policy, dear[1], [sim.MUTE] * ANSWERS)
    assert 0 < sum(looks[-200:]) < 40
    assert not looks[0]


def test_looks_that_pay_are_kept() -> None:
    """A hundredth of a plain step is nothing against what confidence brings."""
    true, found = known(Machine("M4 Max", "narrow"))
    cheap = [replace(costs, look=0.01 * costs.plain) for costs in (true, found)]
    rates = [
        play(Auto(seen, BLOCK), real, [sim.GOOD] * ANSWERS).rate
        for real, seen in ((true, found), cheap)
    ]
    assert rates[1] > 0.97 * rates[0]


# Trees.


@dataclass(frozen=True)
class Nodes:
    """A tree as `best_first` gives it."""

    logs: tuple[float, ...]
    depths: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]


def best_first(slots: np.ndarray, budget: int) -> Nodes:
    """The likeliest prefixes of slots [γ, k], by trying all that can be among them."""
    found: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    open_ = list(found)
    while len(found) <= budget:
        known_ = {path for path, _ in found}
        children = [
            ((*path, rank), chance * slots[len(path), rank])
            for path, chance in open_
            if len(path) < len(slots)
            for rank in range(slots.shape[1])
            if (*path, rank) not in known_
        ]
        best = max(children, key=lambda item: (item[1], [-rank for rank in item[0]]))
        found.append(best)
        open_.append(best)
    paths = found[1:]
    return Nodes(
        tuple(np.log([chance for _, chance in paths]).tolist()),
        tuple(len(path) for path, _ in paths),
        tuple(path for path, _ in paths),
    )


def slots_of(rng: np.random.Generator, slots: int = 7, ranks: int = 4) -> np.ndarray:
    """Falling probabilities [slots, ranks], a tenth left for all else."""
    raw = np.sort(rng.dirichlet(np.full(ranks, 0.7), slots) * 0.9, axis=1)
    return raw[:, ::-1]


def test_steps_are_proposition_1() -> None:
    """What steps say of a tree is the mean match of texts drawn from the slots."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        slots = slots_of(rng)
        nodes = best_first(slots, 16)
        budgets = (1, 2, 7, 16)
        chances = np.cumprod(steps(nodes, budgets), axis=1).sum(axis=1)
        for budget, expected in zip(budgets, chances, strict=True):
            inside = set(nodes.ranks[:budget])
            match = 0.0
            for path in product(range(slots.shape[1] + 1), repeat=3):  # depth 3 by enumeration
                rows = [np.append(row, 1 - row.sum()) for row in slots[:3]]
                chance = np.prod([row[rank] for row, rank in zip(rows, path, strict=True)])
                match += chance * sum(path[:depth] in inside for depth in (1, 2, 3))
            deep = sum(
                np.exp(log)
                for log, depth in list(zip(nodes.logs, nodes.depths, strict=True))[:budget]
                if depth > 3
            )
            assert expected == pytest.approx(match + deep, rel=1e-6)


def tree_game(
    policy: Auto, costs: Costs, honest: bool, rounds: int = 400, seed: int = 4
) -> dict[str, float]:
    """Rates of auto and of the best chain and tree where siblings are right as often as is said.

    If not `honest`, only the greedy chain is ever right.
    """
    rng, totals = np.random.default_rng(seed), dict[str, list[float]]()
    trees = [Plan(rows, tree=True) for rows, _ in costs.tree]
    chains = [Plan(rows) for rows in range(1, 9)]
    played = [0.0, 0.0]
    drafts = [slots_of(np.random.default_rng((seed, number))) for number in range(30)]
    grown = [best_first(slots, 16) for slots in drafts]
    for number in range(rounds):
        slots, nodes = drafts[number % 30], grown[number % 30]
        text = []
        for row in slots:
            draw = rng.random()
            rank = int(np.searchsorted(np.cumsum(row), draw))
            text.append(rank if honest or rank == 0 else 99)
        right = [tuple(text[:depth]) for depth in range(1, len(text) + 1)]

        def kept(plan: Plan, nodes=nodes, right=right, text=text) -> int:
            if not plan.tree:
                wrong = next((d for d, rank in enumerate(text) if rank), len(text))
                return min(wrong, plan.rows - 1)
            inside = set(nodes.ranks[: plan.rows - 1])
            return next((d for d, path in enumerate(right) if path not in inside), len(right))

        for plan in (*chains, *trees):
            total = totals.setdefault(words(plan), [0.0, 0.0])
            total[0] += 1 + kept(plan)
            total[1] += costs.seconds(plan)
        plan, extra = PLAIN, 0.0
        if drafted := policy.drafts(100):
            policy.looks()
            plan = policy.plan(Confidence(tuple(slots[:, 0]), lambda nodes=nodes: nodes), 100)
            extra = costs.draft * (plan.rows == 1)
        seconds = costs.seconds(plan) + drafted * extra
        policy.learn(plan, kept(plan), kept(plan) + 1, seconds)
        played[0] += kept(plan) + 1
        played[1] += seconds
    rates = {name: tokens / seconds for name, (tokens, seconds) in totals.items()}
    return {
        "auto": played[0] / played[1],
        "chain": max(rate for name, rate in rates.items() if "tree" not in name),
        "tree": max(rate for name, rate in rates.items() if "tree" in name),
    }


FLAT = Costs(
    plain=1.0,
    draft=0.2,
    chain=tuple((rows, 1.0 + 0.01 * rows) for rows in range(1, 9)),
    tree=((4, 1.06), (8, 1.1), (16, 1.2)),
)


def test_trees_are_taken_where_they_win() -> None:
    """Cheap rows and a drafter that is right about its second choices."""
    rates = tree_game(Auto(FLAT, 8), FLAT, honest=True)
    assert rates["tree"] > 1.1 * rates["chain"]
    assert rates["auto"] > 0.97 * rates["tree"]


def test_trees_are_left_where_they_lose() -> None:
    """Second choices that are never right are found out: a tree holds less than its share."""
    rates = tree_game(Auto(FLAT, 8), FLAT, honest=False)
    assert rates["chain"] > 1.02 * rates["tree"]
    assert rates["auto"] > 0.95 * rates["chain"]


def test_dear_trees_are_hardly_built() -> None:
    """Where a tree's verify is too dear, building it is not tried every round."""
    dear = replace(FLAT, tree=((16, 6.0),), grow=0.02)
    policy, built = Auto(dear, 8), 0

    def grow(nodes: Nodes) -> Nodes:
        nonlocal built
        built += 1
        return nodes

    nodes = best_first(slots_of(np.random.default_rng(1)), 16)
    for _ in range(400):
        if policy.drafts(100):
            policy.looks()
            plan = policy.plan(Confidence((0.7,) * 7, lambda: grow(nodes)), 100)
            policy.learn(plan, min(2, plan.rows - 1), min(2, plan.rows - 1) + 1, 1.0)
        else:
            policy.learn(PLAIN, 0, 1, 1.0)
    assert 1 <= built < 120


# The parts.


def kept(expected: np.ndarray, weights: np.ndarray) -> list[float]:
    """Chances of a chain's slots by what is believed."""
    return (expected @ weights).tolist()


@pytest.mark.parametrize(("said", "true"), [(0.9, 0.5), (0.5, 0.9), (0.8, 0.8), (0.999, 0.02)])
def test_calibration_finds_the_truth(said: float, true: float) -> None:
    """What is said is put right by what happened, over and under confident alike."""
    rng, belief = np.random.default_rng(0), Calibration()
    chances = survivals(np.full(7, said))
    foreseen, happened = [], []
    for _ in range(300):
        foreseen.append(sum(kept(chances, belief.weights)))
        happened.append(int(np.cumprod(rng.random(7) < true).sum()))
        belief.learn(chances, happened[-1], 7, cut=False)
    assert np.mean(foreseen[60:]) == pytest.approx(np.mean(happened[60:]), rel=0.12, abs=0.02)


def test_calibration_forgets() -> None:
    """A drafter that was good for long is disbelieved within a few rounds."""
    belief = Calibration()
    chances = survivals(np.full(7, 0.9))
    for _ in range(100):
        belief.learn(chances, 7, 7, cut=False)
    before = kept(chances, belief.weights)[0]
    for _ in range(5):
        belief.learn(chances, 0, 7, cut=False)
    assert before > 0.95
    assert kept(chances, belief.weights)[0] < 0.5


def test_an_answer_that_ends_teaches_no_rejection() -> None:
    """The draft after a stop token was not judged."""
    ended, lost = Calibration(), Calibration()
    chances = survivals(np.full(7, 0.9))
    for _ in range(20):
        ended.learn(chances, 1, 7, cut=True)
        lost.learn(chances, 1, 7, cut=False)
    assert kept(chances, ended.weights)[1] > 0.7 > kept(chances, lost.weights)[1]
    positions = Positions()
    positions.learn(1, 7, cut=True)
    assert positions._judged == [1, 0, 0, 0, 0, 0, 0]


def test_survivals_fall() -> None:
    """Longer prefixes are never likelier, whatever is said; a 0 ends the block."""
    chances = survivals(np.array([0.0001, 1.0, 0.9, 0.0, 0.9]))
    assert (np.diff(chances, axis=0) <= 0).all()
    assert (chances[:3] > 0).all()
    assert (chances[3:] == 0).all()


def test_room_bounds_the_rows() -> None:
    """Rows for tokens that may not be committed any more are never asked for."""
    policy = Auto(FLAT, 8)
    for room in range(8, 0, -1):
        if not policy.drafts(room):
            assert room == 1
            continue
        plan = policy.plan(Confidence((0.99,) * 7), room)
        assert plan.rows <= room
        policy.learn(plan, plan.rows - 1, plan.rows, None)


def test_drafts_shorter_than_a_block() -> None:
    """A drafter may give fewer slots at the end of a context."""
    policy = Auto(FLAT, 8)
    for slots in (3, 1):
        assert policy.drafts(100)
        plan = policy.plan(Confidence((0.99,) * slots), 100)
        assert plan.rows <= slots + 1
        policy.learn(plan, plan.rows - 1, plan.rows, None)


def test_state_says_what_was_chosen() -> None:
    """Counts, seconds, acceptance and a reason, for whoever shows them."""
    policy = Auto(known(Machine("M4 Max", "wide"))[1], BLOCK)
    played = play(policy, known(Machine("M4 Max", "wide"))[0], [sim.GOOD])
    state = policy.state
    assert dict(state.plans).keys() == played.plans.keys() == dict(state.seconds).keys()
    assert "expected" in state.reason
    assert "plain steps" in state.reason
    assert 0.8 < state.acceptance[0] <= 1
    assert all(a >= b for a, b in zip(state.acceptance, state.acceptance[1:], strict=False))
    assert state.gain > 0
    assert not state.parked


def test_fixed_plans() -> None:
    """The modes without a choice: always the same; what is drafted is cut to the room."""
    chain, tree, plain = Fixed(Plan(8)), Fixed(Plan(33, tree=True)), Fixed(PLAIN)
    assert (chain.drafts(5), tree.drafts(5), plain.drafts(5)) == (True, True, False)
    assert chain.plan(None, 5) == Plan(8)
    assert tree.plan(None, 5) == Plan(33, tree=True)
    assert not tree.looks()
    chain.learn(Plan(8), 3, 4)
    assert chain.state.plans == ((Plan(8), 1),)
    assert "always a chain of 8 rows" in chain.state.reason


def test_interest_comes_back() -> None:
    """What has not paid is left, tried once in a while, and taken up when it pays again."""
    interest = Interest()

    def times(brought: float, rounds: int) -> int:
        """How often it is done in so many rounds in which it brings that."""
        done = 0
        for _ in range(rounds):
            if interest.due(1.0, 0.1):
                interest.learn(brought, 1.0)
                done += 1
        return done

    assert times(0.3, 100) == 100
    times(0.0, 200)
    assert times(0.0, 200) <= 1 + 200 // Interest.RARELY
    times(2.0, 200)
    assert times(2.0, 100) == 100


def test_trees_of_one_size_say_nothing_of_positions() -> None:
    """How deep they were is not known where their rounds are counted; chains say it."""
    tree, chain = Fixed(Plan(9, tree=True)), Fixed(Plan(9))
    for policy, plan in ((tree, Plan(9, tree=True)), (chain, Plan(9))):
        for _ in range(50):
            policy.learn(plan, 2, 3)
    assert tree.state.acceptance == ()
    assert chain.state.acceptance[1] > 0.8 > 0.2 > chain.state.acceptance[2]
