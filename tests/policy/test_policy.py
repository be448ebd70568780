"""The speed policy on paper: simulated machines and drafters, no clock and no model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

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
    TrueCosts,
    auto,
    fixed_rates,
    play,
)

from dflash_mlx.policy.acceptance import Acceptance
from dflash_mlx.policy.adaptive import AdaptivePolicy
from dflash_mlx.policy.costs import Batch
from dflash_mlx.policy.policy import Choice, DraftState, FixedPolicy, StepResult
from dflash_mlx.types import DECODE_STEP, Plan

ANSWERS = 8
SPREAD = [Machine("M1", "narrow"), Machine("M4 Max", "narrow"), Machine("M5 Max", "wide"), None]


ALONE = Batch(1, 0.0)


@cache
def true_of(machine: Machine | None) -> TrueCosts:
    """A machine's costs; None is the slow CPU."""
    return CPU if machine is None else machine.true_costs()


def drafting(policy: AdaptivePolicy, acceptance: Acceptance, room: int = 100) -> bool:
    return policy.choose_drafters([[DraftState(acceptance, room)]], ALONE) != [None]


def warm(policy: AdaptivePolicy, step: float = 1.0) -> AdaptivePolicy:
    """After its first decode steps, of so many seconds."""
    for _ in range(3):
        policy.update([result_of(Acceptance(), DECODE_STEP, 0)], step)
    return policy


def proven(policy: AdaptivePolicy) -> AdaptivePolicy:
    policy._proven = True
    return warm(policy)


def result_of(acceptance: Acceptance, plan: Plan, accepted: int) -> StepResult:
    return StepResult(
        acceptance,
        plan,
        verified=plan.rows - 1,
        accepted=accepted,
        committed=accepted + 1,
        choice=Choice(0, plan.drafted) if plan.drafted else None,
    )


def against_best(machine: Machine | None, drafter: Drafter, seeds: Sequence[int] = (0,)) -> float:
    """Rate of auto over that of the best fixed width, a plain step being one; mean over seeds."""
    true = true_of(machine)
    drafters, rates = [drafter] * ANSWERS, []
    for seed in seeds:
        best = max(fixed_rates(true, drafters, seed=seed).values())
        rates.append(play(auto(true), true, drafters, seed=seed).rate / best)
    return float(np.mean(rates))


def steady(mean: float) -> Drafter:
    return Drafter(mean, spread=0.0)


def widths(machine: Machine, mean: float) -> tuple[float, float]:
    """Rate of the width that auto commits most tokens with, and its own, over the best width's."""
    true = true_of(machine)
    drafters = [steady(mean)] * ANSWERS
    rates = fixed_rates(true, drafters)
    played = play(auto(true), true, drafters)
    rows = played.plans.most_common(1)[0][0].rows
    return rates[rows] / max(rates.values()), played.rate / max(rates.values())


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_the_width_is_the_one_that_brute_force_finds(machine: Machine) -> None:
    """Guards the arithmetic of costs and chances: within 3 % of the best width on every chip."""
    for mean in (0.5, 1.2, 2.0, 3.0, 4.0):
        by_width, own = widths(machine, mean)
        assert by_width > 0.97, f"mean {mean}"
        assert own > 0.94, f"mean {mean}"


@pytest.mark.parametrize("machine", SPREAD, ids=str)
@pytest.mark.parametrize("drafter", [sim.GOOD, sim.FAIR, sim.POOR, sim.STEADY])
def test_never_below_the_best_fixed_width(machine: Machine | None, drafter: Drafter) -> None:
    """Learning and waiting together cost little."""
    assert against_best(machine, drafter, (0, 50, 100, 150)) > 0.95


@pytest.mark.parametrize("machine", SPREAD, ids=str)
@pytest.mark.parametrize("drafter", [sim.RANDOM, sim.WRONG])
def test_a_hopeless_drafter_costs_little(machine: Machine | None, drafter: Drafter) -> None:
    """At least 0.98 of plain decoding, 0.955 in a process's very first answer."""
    true = true_of(machine)
    plain = 1 / true.seconds(DECODE_STEP)
    assert play(auto(true), true, [drafter] * ANSWERS).rate > 0.98 * plain
    for seed in range(2):
        first = play(auto(true), true, [drafter], seed=seed)
        assert first.rate > 0.955 * plain


def in_turn(costs: TrueCosts, phases: Sequence[Drafter]) -> tuple[Played, list[Played]]:
    """One long answer in which the drafter changes; all of it, and each phase by itself."""
    policy, whole, parts = auto(costs), Played(), []
    (acceptance,) = policy.new_sequence(1)
    for number, drafter in enumerate(phases):
        part = Played()
        blocks = iter(drafter.blocks(number) + drafter.blocks(100 + number))
        while part.tokens < 2 * TOKENS:
            sim.one_round(policy, costs, acceptance, next(blocks), TOKENS, part)
        whole.tokens, whole.seconds = whole.tokens + part.tokens, whole.seconds + part.seconds
        parts.append(part)
    return whole, parts


@pytest.mark.parametrize("machine", SPREAD, ids=str)
def test_a_drafter_that_changes_in_the_middle(machine: Machine | None) -> None:
    """Drafting waits when the drafter turns bad, and is taken up when it has become good."""
    true = true_of(machine)
    phases = [sim.GOOD, sim.WRONG, sim.GOOD, sim.GOOD]
    whole, parts = in_turn(true, phases)
    plain = 1 / true.seconds(DECODE_STEP)
    good = max(fixed_rates(true, [sim.GOOD] * 4).values())
    assert parts[1].rate > 0.84 * plain
    assert parts[3].rate > 0.91 * good
    assert whole.rate > plain


def test_drafting_that_does_not_pay_is_tried_rarely() -> None:
    """Tries grow rarer, and all of them cost little of a long hopeless answer."""
    policy = auto(CPU)
    (acceptance,), played = policy.new_sequence(1), Played()
    tries = []
    for number, block in enumerate((sim.WRONG.blocks(0) * 20)[:2500]):
        before = played.plans[DECODE_STEP]
        sim.one_round(policy, CPU, acceptance, block, TOKENS, played)
        tries += [number] * (played.plans[DECODE_STEP] == before)
    drafted = len(tries)
    assert 3 <= drafted <= 16
    assert "next try" in policy.state.reason
    assert played.rate * CPU.plain > 0.985


def test_the_wait_begins_again_with_a_new_text() -> None:
    """What one text has lost says little of the next one, where drafts were ever kept."""
    policy = auto(CPU)
    (acceptance,), played = policy.new_sequence(1), Played()
    for block in [*sim.GOOD.blocks(0), *sim.WRONG.blocks(0)]:
        sim.one_round(policy, CPU, acceptance, block, TOKENS, played)
    assert not drafting(policy, acceptance)
    assert drafting(policy, policy.new_sequence(1)[0])


def test_the_wait_goes_on_where_no_draft_was_ever_kept() -> None:
    """A drafter that never was right is not tried anew by every short answer."""
    policy = auto(CPU)
    (acceptance,), played = policy.new_sequence(1), Played()
    while drafting(policy, acceptance):
        sim.one_round(policy, CPU, acceptance, sim.WRONG.blocks(0)[0], TOKENS, played)
    assert not drafting(policy, policy.new_sequence(1)[0])


# Faults that the checks above must see.


def once() -> Callable[[float], float | None]:
    """A clock that tells the first two rounds that it is asked for, decode steps, and no other."""
    left = [1, 1]
    return lambda seconds: seconds if left and left.pop() else None


# Costs.


def test_rows_that_were_never_run_cost_what_their_neighbours_do() -> None:
    """A prior that is wrong of all widths is put right by one of them."""
    costs = replace(CPU, chain=tuple((r, 2 * s * (r > 1) or s) for r, s in CPU.chain)).prior()
    costs.learn_step(CPU.plain, ALONE, 1)
    before = costs.verify(16, ALONE)
    for _ in range(30):
        costs.learn({("verify", 8): costs.verify(8, ALONE)}, CPU.verify(8))
    assert costs.verify(8, ALONE) == pytest.approx(CPU.verify(8), rel=0.05)
    assert costs.verify(16, ALONE) == pytest.approx(before / 2, rel=0.05)


def test_one_bad_minute_spoils_nothing() -> None:
    """Rounds that other work makes six times as long teach little, and are soon forgotten."""
    costs = CPU.prior()
    for _ in range(5):
        costs.learn_step(CPU.plain, ALONE, 1)
    part = "verify", 8
    for late in [1.0] * 20 + [6.0] * 3:
        costs.learn({part: costs.verify(8, ALONE)}, CPU.verify(8) * late)
    assert costs.verify(8, ALONE) < 1.15 * CPU.verify(8)
    for _ in range(20):
        costs.learn({part: costs.verify(8, ALONE)}, CPU.verify(8))
    assert costs.verify(8, ALONE) == pytest.approx(CPU.verify(8), rel=0.05)


def test_a_machine_that_has_changed_is_learned() -> None:
    """Rounds that go on to take six times as long are no disturbance."""
    costs = CPU.prior()
    for _ in range(5):
        costs.learn_step(CPU.plain, ALONE, 1)
    for late in [1.0] * 20 + [6.0] * 12:
        costs.learn({("verify", 8): costs.verify(8, ALONE)}, CPU.verify(8) * late)
    assert costs.verify(8, ALONE) > 5 * CPU.verify(8)


def test_the_wait_ends_when_other_work_does() -> None:
    """What drafts lost beside other work says nothing of the quiet machine."""
    policy = proven(auto(CPU))
    (text,) = policy.new_sequence(1)
    while drafting(policy, text):
        policy.update([result_of(text, Plan(8, drafted=8), 0)], 50.0)
    policy.update([result_of(text, DECODE_STEP, 0)], 1.0)
    assert not drafting(policy, text)
    policy.update([result_of(text, DECODE_STEP, 0)], 0.4)
    policy._steps_due = 0
    assert drafting(policy, text)


@pytest.mark.parametrize("drafter", [sim.GOOD, sim.RANDOM])
def test_noisy_clocks(drafter: Drafter) -> None:
    """Other work on the machine: every round up to twice as long, some ten times."""
    rng = np.random.default_rng(3)
    true = true_of(Machine("M5 Max", "wide"))
    drafters = [drafter] * ANSWERS

    def timing(seconds: float) -> float:
        return seconds * float(rng.uniform(1, 2)) * (10 if rng.random() < 0.03 else 1)

    quiet = play(auto(true), true, drafters).rate
    assert play(auto(true), true, drafters, timing=timing).rate > 0.9 * quiet


def test_costs_that_were_measured_wrong_are_put_right() -> None:
    """Wide verifies that take twice what was measured: the rounds' own times say so."""
    machine = Machine("M5 Max", "wide")
    true = true_of(machine)
    slow = replace(true, chain=tuple((r, s * (1 if r < 6 else 2)) for r, s in true.chain))
    drafters = [sim.GOOD] * 24
    best = max(fixed_rates(slow, drafters).values())
    told = play(auto(true), slow, drafters).rate
    untold = play(auto(true), slow, drafters, timing=once()).rate
    assert told > max(0.97 * best, 1.03 * untold)


def among_plain_steps(drafter: Drafter, seed: int) -> float:
    """Rate over plain decoding's where drafts pay by measured costs, but not by the clock."""
    cold = sim.Cold(replace(QUICK, chain=tuple((r, 1.15 * s) for r, s in QUICK.chain)), 1.0)
    noise = np.random.default_rng(seed)

    def timing(seconds: float) -> float:
        return seconds * float(np.exp(noise.normal(0, 0.1)))

    rate = play(auto(QUICK), cold, [drafter] * ANSWERS, seed=seed, timing=timing).rate
    return rate * QUICK.plain


HALF_TRAINED = [Drafter(mean) for mean in (-2.0, -1.5, -1.0, -0.5)]


def test_rounds_that_are_late_among_plain_steps() -> None:
    """What looks like a small gain, and is a loss each time it is tried, is soon left."""
    rates = [among_plain_steps(d, seed) for d in HALF_TRAINED for seed in range(4)]
    assert np.mean(rates) > 0.975
    assert min(rates) > 0.96


FLAT = TrueCosts(1.0, tuple((rows, 1.0 + 0.01 * rows) for rows in range(1, 9)), ((8, 0.2),))

# Batches.


def batch(
    policy: AdaptivePolicy, machine: Machine, drafters: Sequence[Drafter], rounds: int
) -> Played:
    """So many rounds of several texts at once, which never end."""
    played = Played()
    texts = [policy.new_sequence(1)[0] for _ in drafters]
    blocks = [drafter.blocks(n) * 9 for n, drafter in enumerate(drafters)]
    for number in range(rounds):
        states = [DraftState(text, 1000) for text in texts]
        together = Batch(len(texts), 0.0)
        chosen = policy.choose_drafters([[state] for state in states], together)
        at = [place for place, choice in enumerate(chosen) if choice is not None]
        plans = [DECODE_STEP] * len(texts)
        width = 0
        if at:
            drafts = []
            for n in at:
                choice = chosen[n]
                assert choice is not None
                width = choice.width
                drafts.append(replace(states[n], choice=choice))
            lengths = policy.choose_plans(drafts, len(texts) - len(at))
            for place, plan in zip(at, lengths, strict=True):
                plans[place] = plan
        results = []
        for text, own, plan in zip(texts, blocks, plans, strict=True):
            count = min(own[number], plan.rows - 1)
            results.append(result_of(text, plan, count))
        seconds = machine.verify(sum(plan.rows for plan in plans))
        seconds += machine.draft(len(at) * width) if at else 0.0
        policy.update(results, seconds)
        played.tokens += sum(result.committed for result in results)
        played.seconds += seconds
    return played


def wide(machine: Machine) -> TrueCosts:
    widths = tuple((rows, machine.verify(rows)) for rows in range(1, 8 * BLOCK + 1))
    drafts = tuple((rows, machine.draft(rows)) for rows in range(2, 8 * BLOCK + 1))
    return replace(machine.true_costs(), chain=widths, drafts=drafts)


def best_of_all(machine: Machine, drafters: Sequence[Drafter], rounds: int) -> float:
    """Tokens a second where all sequences verify the same number of rows: the brute force."""
    blocks = [drafter.blocks(n) * 9 for n, drafter in enumerate(drafters)]
    rates = []
    for rows in range(1, BLOCK + 1):
        tokens = sum(min(own[n], rows - 1) + 1 for own in blocks for n in range(rounds))
        drafted = machine.draft(rows * len(blocks)) if rows > 1 else 0.0
        seconds = machine.verify(rows * len(blocks)) + drafted
        rates.append(tokens / (rounds * seconds))
    return max(rates)


@pytest.mark.quick_every(3)
@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("drafter", [sim.GOOD, sim.FAIR, sim.WRONG])
def test_a_batch_is_never_below_the_best_width(
    machine: Machine, count: int, drafter: Drafter
) -> None:
    """Several texts at once: within 3 % of the best width for all of them, or better."""
    drafters = [drafter] * count
    best = best_of_all(machine, drafters, 300)
    assert batch(auto(wide(machine)), machine, drafters, 300).rate > 0.96 * best


def test_rows_go_to_the_text_that_keeps_them() -> None:
    """A good and a hopeless text at once: no row of the pass goes to hopeless drafts for long."""
    machine = Machine("M4 Max", "narrow")
    drafters = [sim.GOOD, sim.WRONG]
    best = best_of_all(machine, drafters, 300)
    assert batch(auto(wide(machine)), machine, drafters, 300).rate > 0.92 * best


def test_the_best_next_row_gets_the_next_row() -> None:
    """What is verified are the likeliest drafts of all texts together."""
    chain = tuple((rows, 1.0 + 0.5 * (rows > 12)) for rows in range(1, 33))
    policy = proven(auto(TrueCosts(1.0, chain, ((16, 0.01),))))
    texts = [policy.new_sequence(1)[0] for _ in range(2)]
    policy.choose_drafters([[DraftState(text, 100)] for text in texts], Batch(2, 0.0))
    whole = Choice(0, BLOCK)
    drafts = [
        DraftState(text, 100, (own,) * 15, choice=whole)
        for text, own in zip(texts, (0.99, 0.5), strict=True)
    ]
    sure, unsure = policy.choose_plans(drafts)
    assert sure.rows + unsure.rows == 12
    assert sure.rows > 8 > unsure.rows


def test_a_smaller_batch_ends_the_wait() -> None:
    """Rows that were too dear among many sequences may pay among few."""
    policy = auto(CPU)
    texts = [[DraftState(policy.new_sequence(1)[0], 100)] for _ in range(3)]
    three = Batch(3, 0.0)
    warm(policy, CPU.plain)
    while None not in (chosen := policy.choose_drafters(texts, three)):
        drafts = [
            replace(state, choice=choice) for (state,), choice in zip(texts, chosen, strict=True)
        ]
        plans = policy.choose_plans(drafts)
        results = [result_of(d.acceptance, plan, 0) for d, plan in zip(drafts, plans, strict=True)]
        policy.update(results, None)
    assert policy.choose_drafters(texts, three) == [None] * 3
    assert not any(map(policy.may_draft, texts))
    assert policy.choose_drafters(texts[:2], three) == [None] * 2  # no fewer sequences
    assert None not in policy.choose_drafters(texts[:2], Batch(2, 0.0))


# The parts.


@pytest.mark.parametrize(("stated", "true"), [(0.9, 0.5), (0.5, 0.9), (0.8, 0.8), (0.999, 0.02)])
@pytest.mark.parametrize("read", [True, False], ids=["confidence", "position"])
def test_acceptance_finds_the_truth(stated: float, true: float, read: bool) -> None:
    """What is stated is put right by what happened, over and under confident alike."""
    rng, acceptance = np.random.default_rng(0), Acceptance()
    confidence = (stated,) * 7 if read else None
    expected, happened = [], []
    for _ in range(300):
        expected.append(sum(acceptance.survivals(confidence, 7)))
        happened.append(int(np.cumprod(rng.random(7) < true).sum()))
        acceptance.update(confidence, 7, happened[-1], ended=False)
    assert np.mean(expected[60:]) == pytest.approx(np.mean(happened[60:]), rel=0.12, abs=0.04)


def test_acceptance_forgets() -> None:
    """A drafter that was good for long is known to be bad after a few blocks."""
    acceptance, block = Acceptance(), (0.9,) * 7
    for _ in range(100):
        acceptance.update(block, 7, 7, ended=False)
    assert acceptance.survivals(block, 7)[0] > 0.95
    for _ in range(60):
        acceptance.update(block, 7, 0, ended=False)
    assert acceptance.survivals(block, 7)[0] < 0.5
    assert acceptance.survivals(None, 7)[0] < 0.5


def test_an_answer_that_ends_teaches_no_rejection() -> None:
    """The draft after a stop token was not verified."""
    for block in ((0.9,) * 7, None):
        ended, lost = Acceptance(), Acceptance()
        for _ in range(20):
            ended.update(block, 7, 1, ended=True)
            lost.update(block, 7, 1, ended=False)
        assert ended.survivals(block, 7)[1] > 0.7 > lost.survivals(block, 7)[1]


def test_room_bounds_the_rows() -> None:
    """Rows for tokens that may not be committed any more are never asked for."""
    policy = proven(AdaptivePolicy(FLAT.prior(), 8))
    (acceptance,) = policy.new_sequence(1)
    for room in range(8, 0, -1):
        if not drafting(policy, acceptance, room):
            assert room == 1
            continue
        (plan,) = policy.choose_plans(
            [DraftState(acceptance, room, (0.99,) * 7, choice=Choice(0, 8))]
        )
        assert plan.rows <= room
        policy.update([result_of(acceptance, plan, plan.rows - 1)], None)

    # Near the end of a context a drafter may give fewer drafts than a block has.
    for count in (3, 1):
        assert drafting(policy, acceptance)
        (plan,) = policy.choose_plans(
            [DraftState(acceptance, 100, (0.99,) * count, choice=Choice(0, 8))]
        )
        assert plan.rows <= count + 1
        policy.update([result_of(acceptance, plan, plan.rows - 1)], None)


def test_state_says_what_was_chosen() -> None:
    """Counts, acceptance and a reason, for whoever shows them."""
    true = true_of(Machine("M4 Max", "wide"))
    policy = auto(true)
    played = play(policy, true, [sim.GOOD])
    state = policy.state
    assert dict(state.plans).keys() == played.plans.keys()
    assert "tokens a pass" in state.reason
    assert "plain decoding" in state.reason
    assert 0.8 < state.acceptance[0] <= 1
    assert all(a >= b for a, b in zip(state.acceptance, state.acceptance[1:], strict=False))


def test_fixed_plans() -> None:
    """The modes without a choice: always the same."""
    chain = FixedPolicy(Plan(8, drafted=8))
    tree = FixedPolicy(Plan(33, tree=True))
    plain = FixedPolicy(DECODE_STEP)
    states = [DraftState(acceptance, 5, block=16) for acceptance in chain.new_sequence(2)]
    sequences = [[states[0], None], [None, states[1]], [None, None]]
    assert chain.choose_drafters(sequences, ALONE) == [(0, 8), (1, 8), None]
    assert tree.choose_drafters(sequences, ALONE) == [(0, 16), (1, 16), None]
    assert plain.choose_drafters(sequences, ALONE) == [None] * 3
    assert [chain.may_draft(drafts) for drafts in sequences] == [True, True, False]
    assert not plain.may_draft(sequences[0])
    assert chain.choose_plans(states) == [Plan(8, drafted=8)] * 2
    assert tree.choose_plans(states) == [Plan(33, tree=True)] * 2
    chain.update([result_of(states[0].acceptance, Plan(8, drafted=8), 3)], None)
    assert chain.state.plans == ((Plan(8, drafted=8), 1),)
    assert "always 7 drafts" in chain.state.reason


def test_trees_of_one_size_say_nothing_of_positions() -> None:
    """How deep they were is not known where their rounds are counted; chains say it."""
    tree, chain = FixedPolicy(Plan(9, tree=True)), FixedPolicy(Plan(9, drafted=9))
    for policy, plan in ((tree, Plan(9, tree=True)), (chain, Plan(9, drafted=9))):
        for _ in range(50):
            policy.update([result_of(policy.new_sequence(1)[0], plan, 2)], None)
    assert tree.state.acceptance == ()
    assert chain.state.acceptance[1] > 0.8 > 0.2 > chain.state.acceptance[2]


# Several drafters.


def test_the_drafter_with_the_most_tokens_per_second_drafts() -> None:
    """One that takes time and one that is free: by what is expected of each just now."""
    costs = FLAT.prior()
    policy = proven(AdaptivePolicy(replace(costs, drafters=[*costs.drafters, None]), 8))
    made, copied = policy.new_sequence(2)
    for _ in range(20):
        policy.update([result_of(made, Plan(8, drafted=8), 3)], None)
    warm(policy)

    def chosen(*states: DraftState | None) -> int | None:
        (choice,) = policy.choose_drafters([states], ALONE)
        return None if choice is None else choice.drafter

    def copies(stated: float) -> DraftState:
        return DraftState(copied, 100, (stated,) * 7, free=True)

    assert chosen(DraftState(made, 100), copies(0.95)) == 1
    assert chosen(DraftState(made, 100), copies(0.3)) == 0
    assert chosen(DraftState(made, 100), None) == 0
    assert chosen(None, None) is None
    assert chosen(None, copies(0.001)) is None


def test_each_drafter_has_its_own_acceptance() -> None:
    """What one drafter's drafts were worth says nothing of another's."""
    costs = FLAT.prior()
    policy = AdaptivePolicy(replace(costs, drafters=[*costs.drafters, None]), 8)
    first, second = policy.new_sequence(2)
    for _ in range(30):
        policy.update([result_of(first, Plan(8, drafted=8), 0)], None)
        good = replace(result_of(second, Plan(8, drafted=8), 7), choice=Choice(1, 8), free=True)
        policy.update([good], None)
    later = policy.new_sequence(2)
    assert later[0].survivals(None, 1)[0] < 0.2 < 0.8 < later[1].survivals(None, 1)[0]


def short_texts(
    policy: AdaptivePolicy, true: TrueCosts, drafters: Sequence[Drafter]
) -> list[Played]:
    """Texts of 40 tokens by each drafter in turn; what each drafter's texts took."""
    parts = [Played() for _ in drafters]
    for number in range(24):
        for part, drafter in zip(parts, drafters, strict=True):
            (acceptance,), left = policy.new_sequence(1), 40
            blocks = iter(drafter.blocks(number))
            while left:
                left -= sim.one_round(policy, true, acceptance, next(blocks), left, part)
    return parts


@pytest.mark.parametrize("machine", SPREAD, ids=str)
def test_a_text_does_not_live_on_what_others_gained(machine: Machine | None) -> None:
    """Short texts whose drafts are wrong lose little among those whose drafts are right."""
    true = true_of(machine)
    good, bad = short_texts(auto(true), true, [sim.GOOD, sim.WRONG])
    assert good.rate > 1.05 / true.plain
    assert bad.rate > 0.78 / true.plain
