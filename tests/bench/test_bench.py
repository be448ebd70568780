"""What `dflash bench` measures: statistics, the order of a run, its answers, differences."""

import gc
import json
import weakref
from dataclasses import replace

import mlx.core as mx
import pytest
from bench_records import KEY, record, schedule_of, turn
from golden_pair import GOLDEN

import dflash_mlx
from dflash_mlx import bench
from dflash_mlx.bench import questions, results, runner, summary
from dflash_mlx.bench import schedule as modes
from dflash_mlx.bench.records import Rounds, record_of
from dflash_mlx.errors import UsageError
from dflash_mlx.kernels.dispatch import Kernels


@pytest.fixture(scope="module")
def pair() -> dflash_mlx.Pair:
    return dflash_mlx.load(GOLDEN / "target", GOLDEN / "draft")


def asked(*turns, number=1, task="s") -> questions.Question:
    return questions.Question("s", number, task, questions.from_user(list(turns)))


# --- statistics -------------------------------------------------------------------------------


def test_speedup_is_the_ratio_in_the_same_repeat():
    """A machine twice as slow in the second repeat changes nothing."""
    records = []
    for repeat, slow in ((1, 1.0), (2, 2.0)):
        records += [
            record(KEY, turn(seconds=4.0 * slow), mode="baseline", repeat=repeat),
            record(KEY, turn(seconds=1.0 * slow), repeat=repeat),
        ]
    plain, fast = summary.summarise(records)
    assert plain.speedup is None
    assert plain.mean_speedup is None
    assert fast.speedup == summary.Spread(4, 4, 4)
    assert fast.mean_speedup == pytest.approx(4)
    assert fast.decode == summary.Spread(6.25, 7.5, 8.75)
    assert fast.prefill == summary.Spread(40, 40, 40)
    assert (fast.questions, fast.answers, fast.identical, fast.compared) == (1, 2, 2, 2)


def test_speedups_are_those_of_questions():
    """Ratios 2, 4 and 9 of three questions: the median is 4; means are over seconds a token."""
    records = []
    for number, ratio in enumerate((2.0, 4.0, 9.0), 1):
        records += [
            record(KEY, turn(seconds=36.0), mode="baseline", number=number),
            record(KEY, turn(seconds=36.0 / ratio), number=number),
        ]
    row = summary.summarise(records)[1]
    assert row.speedup == summary.Spread(3, 4, 6.5)
    assert row.mean_speedup == pytest.approx(108 / (18 + 9 + 4))


def test_acceptance_is_pooled():
    """Two verifies of 3 drafts keep 2 and 0: rate 1/3, τ 2, by position 50 %, 50 %, 0 %."""
    one = turn(
        verifies=2, drafted=6, accepted=2, accepted_by_position=(1, 1, 0),
        rounds=(Rounds(4, 2, 4, 1.0),),
    )  # fmt: skip
    row = summary.summarise([record(KEY, one), record(KEY, one, repeat=2)])[0]
    assert row.acceptance_rate == pytest.approx(1 / 3)
    assert row.tau == summary.Spread(2, 2, 2)
    assert row.by_position == (0.5, 0.5, 0)
    assert row.rounds == (Rounds(4, 4, 8, 2.0),)
    assert row.speedup is None  # there is no baseline


def test_modes_have_one_order_in_all_tables():
    """That of the first question, although each question is asked in another one."""
    orders = (["dflash", "ddtree", "lookup"], ["lookup", "dflash", "ddtree"])
    records = [
        record(task=task, number=number, mode=mode)
        for number, (task, modes) in enumerate(zip("ab", orders, strict=True), 1)
        for mode in (*modes, "baseline")
    ]
    found = [(row.task, row.mode) for row in summary.summarise(records)]
    order = ("baseline", *orders[0])
    assert found == [(task, mode) for task in ("a", "b", "all") for mode in order]


def test_short_answers_have_no_rate():
    """One pass more or less, begun with the first token, would be a large part of their time."""
    for count, seconds in ((1, 0.0), (2, 1e-4), (7, 0.5)):
        assert summary.summarise([record(KEY, turn(count, seconds))])[0].decode is None
    assert summary.summarise([record(KEY, turn(8, 0.5))])[0].decode == summary.Spread(14, 14, 14)


# --- the order, and the runner ------------------------------------------------------------------


def test_modes_take_turns():
    """Each question and repeat begins with another mode; answers to one question stay together."""
    schedule = schedule_of("baseline,dflash,dflash:4", temperatures=(0.0, 1.0), repeats=2)
    keys = [key for key, _, _ in schedule.keys([asked("a"), asked("b", number=2)])]
    assert len(set(keys)) == len(keys) == 3 * 2 * 2 * 2
    begins = [keys[i].mode for i in range(0, len(keys), 6)]
    assert begins == ["baseline", "dflash", "dflash", "dflash:4"]
    assert {(k.number, k.repeat) for k in keys[:6]} == {(1, 1)}


def test_every_question_and_repeat_has_its_own_seed():
    schedule = schedule_of(temperatures=(0.0, 0.7), repeats=2, seed=5)
    seeds = {
        schedule.options(k, v).sampling.seed
        for k, _, v in schedule.keys([asked("a"), asked("b", number=2)])
        if k.temperature and v.mode == "dflash"
    }
    assert len(seeds) == 4
    assert schedule.options(KEY, schedule.modes[1]).sampling.seed is None


def test_run_answers_in_sessions(pair):
    """Two turns of a chat are one session: the second one reads only what is new."""
    schedule, chat = schedule_of(max_tokens=6), asked("hello", "and again")
    made = list(runner.run(pair, [chat], schedule, {}))
    assert [r.key.mode for r in made] == ["baseline", "dflash"]
    assert made[0].turns[0].tokens == made[1].turns[0].tokens
    for one in made:
        first, second = one.turns
        assert first.cached_tokens == 0
        assert second.cached_tokens >= first.prompt_tokens
        assert 1 < len(first.tokens) <= 6
        for part in one.turns:
            assert sum(r.tokens for r in part.rounds) == len(part.tokens) - 1
            assert sum(r.seconds for r in part.rounds) == pytest.approx(part.decode_seconds)
            assert part.first_token_seconds >= part.prefill_seconds > 0
        assert one.peak_bytes > 0
        assert record_of(json.loads(json.dumps(one.data()))) == one
    assert {r.rows for r in made[0].turns[0].rounds} == {1}
    assert max(r.rows for r in made[1].turns[0].rounds) == 6  # the rest of six tokens, not 8
    done = {made[0].key: made[0]}
    assert [r.key for r in runner.run(pair, [chat], schedule, done)] == [made[1].key]


def test_watch_stops_between_blocks(pair):
    """The cooldown is no pause that Ctrl-C must wait for."""

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(runner.run(pair, [asked("hello")], schedule_of(), {}, stop))
    with pytest.raises(KeyboardInterrupt):
        runner.cool_down(1000, stop)


def test_a_chat_that_may_outgrow_the_context_is_named(pair):
    """Before the run: in its midst an hour of answers would be lost with it."""
    chat, room = asked("hello", "and again", number=3), pair.target.context_length
    least, most = runner.prompt_lengths(
        dflash_mlx.Session(pair), chat, schedule_of(max_tokens=room // 2)
    )
    assert least < room // 2 < most < room
    runner.check(pair, schedule_of(max_tokens=room // 2), [chat])
    with pytest.raises(UsageError, match="question 3 of 's' with its answers can have"):
        runner.check(pair, schedule_of(max_tokens=room), [chat])
    runner.check(pair, schedule_of(max_tokens=room), [asked("hello")])  # a last answer is cut
    with pytest.raises(UsageError, match="question 7 of 's' has"):
        runner.check(pair, schedule_of(), [asked("x" * (room + 1), number=7)])


def test_peak_memory_is_that_of_one_mode(pair):
    """A session's caches go with it, not when the collector comes round."""
    gc.disable()
    try:
        for mode in ("auto", "dflash", "ddtree", "baseline"):
            session = dflash_mlx.Session(pair, mode=mode)
            list(session.stream("hello", max_tokens=4))
            caches = weakref.ref(session.sequence)
            del session
            assert caches() is None
    finally:
        gc.enable()


def test_costs_of_every_width(pair, monkeypatch):
    """Also where the context hardly holds the passes."""
    monkeypatch.setattr(pair.target, "context_length", 150)
    found = bench.measure(pair, 10**9)
    assert [rows for rows, _ in found.verify] == [1, 2, 4, 8, 16, 24, 32, 64]
    assert all(seconds > 0 for _, seconds in found.verify)
    assert found.depth == 150 - 64 - 8 * 6
    assert found.draft is not None
    assert found.draft[0] == 8


def test_facts_know_what_computed(pair, monkeypatch):
    """Stand-ins for layers leave the weights what they are; kernels and exactness are facts."""
    found = []
    for kernels in (
        Kernels(),
        Kernels(exact=True),
        Kernels(lambda *_, **__: [], on=frozenset({"b", "a"})),
    ):
        monkeypatch.setattr(pair.target, "kernels", kernels)
        found.append(results.facts_of(pair, schedule_of())["pair"])
    assert [(one["exact"], one["kernels"]) for one in found] == [
        (False, None),
        (True, None),
        (False, ["a", "b"]),
    ]
    assert len({one["target_weights"] for one in found}) == 1


# --- modes ------------------------------------------------------------------------------------


def test_modes_are_those_of_the_engine():
    """Each with its own width, or that of the schedule."""
    found = modes.parse_modes(" dflash:4, baseline")
    assert [v.label for v in found] == ["dflash:4", "baseline"]
    schedule = schedule_of(block_size=6)
    sizes = [(o.block_size, o.tree_budget) for o in (schedule.options(KEY, v) for v in found)]
    assert sizes == [(4, None), (None, None)]
    options = schedule.options(KEY, modes.Variant("ddtree", 8))
    assert (options.mode, options.block_size, options.tree_budget) == ("ddtree", 6, 8)


# --- differences --------------------------------------------------------------------------------


def test_differences_are_those_of_the_same_repeat_at_zero():
    """Samples are not compared, nor what has no baseline."""
    wrong = turn(tokens=(0, 1, 9))
    records = [
        record(KEY, turn(count=3), mode="baseline"),
        record(KEY, wrong),
        record(KEY, wrong, temperature=1.0),
        record(KEY, turn(count=3), mode="baseline", temperature=1.0),
        record(KEY, wrong, repeat=2),
    ]
    (found,) = summary.find_differences(records)
    assert (found.key, found.turn, found.token) == (KEY, 1, 3)
    assert (found.wanted, found.said, found.gap) == (2, 9, None)
    row = next(r for r in summary.summarise(records) if r.mode == "dflash" and not r.temperature)
    assert (row.identical, row.compared) == (0, 1)
    ended = summary.difference_of(records[0], record(KEY, turn(count=2)))
    assert ended is not None
    assert (ended.token, ended.wanted, ended.said) == (3, 2, None)


def test_gap_is_that_of_the_shared_prefix(pair):
    """The gap in a second turn, against logits from one plain pass over all tokens before it."""
    chat = asked("hello", "and again")
    made = {r.key: r for r in runner.run(pair, [chat], schedule_of(max_tokens=6), {})}
    key = next(key for key in made if key.mode == "dflash")
    first, second = made[key].turns
    changed = (*second.tokens[:4], second.tokens[4] + 1)
    made[key] = replace(made[key], turns=(first, replace(second, tokens=changed)))
    (found,) = summary.find_differences(made.values())
    assert (found.turn, found.token) == (2, 5)
    found = summary.with_gap(found, pair, [chat], made, schedule_of())
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "and again"},
    ]
    ids = [*pair.chat_tokens(messages), *second.tokens[:4]]
    row = sorted(pair.target.forward(mx.array([ids]), None)[0][0, -1].tolist())  # type: ignore
    assert found.gap == pytest.approx(row[-1] - row[-2], abs=1e-4)
    assert found.data()["gap"] == found.gap
