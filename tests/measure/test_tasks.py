"""Counts of the tasks for real models: replayed answers, and what a table says of them."""

from dataclasses import replace

import pytest
import tasks
from bench_records import KEY, record, turn
from text import held_out

import dflash_mlx
from dflash_mlx import SamplingParams, Session
from dflash_mlx.bench.records import Record, Rounds
from dflash_mlx.options import Mode


@pytest.fixture(scope="module")
def pair() -> dflash_mlx.Pair:
    return dflash_mlx.load(draft="lookup", cache_ram=0)


@pytest.mark.parametrize(("mode", "temperature"), [("dflash", 0.7), ("ddtree", 0.0)])
def test_replay_counts_the_passes_of_the_engine(
    pair: dflash_mlx.Pair, mode: Mode, temperature: float
) -> None:
    """Else a table would have a τ that nobody gets, such as with drafts in the first step."""
    session = Session(pair, mode=mode, use_prefix_cache=False)
    most = 0
    for sample in held_out(8):
        sampling = SamplingParams(temperature=temperature, seed=3)
        stream = session.stream(sample.prompt, sampling=sampling, max_tokens=80)
        blocks = [block.tokens for block in stream]
        answer = [token for tokens in blocks for token in tokens]
        stops = pair.target.eos_ids
        passes = tasks.passes_with_copies(
            session.tokens(sample.prompt), answer, stops, tree=mode == "ddtree"
        )
        assert passes == [len(tokens) for tokens in blocks[1:]]
        most = max(most, *passes)
    assert most > 4, "no draft was accepted"


def answers(seconds: float, number: int = 1) -> list[Record]:
    """20 tokens in 20 plain steps of 0.1 s; in auto four steps, and two passes that commit 8."""
    plain = turn(21, 2.0, rounds=(Rounds(1, 20, 20, 2.0),))
    rounds = (Rounds(1, 4, 4, 0.4), Rounds(16, 2, 16, seconds - 0.4))
    auto = turn(21, seconds, accepted=14, verifies=2, rounds=rounds)
    return [
        record(KEY, plain, number=number, mode="baseline"),
        record(KEY, auto, number=number, mode="auto"),
    ]


def test_steps_without_drafts_count_in_tau() -> None:
    """16 tokens in two passes are 8 a pass, but the answer's 20 took six passes and steps."""
    summary = tasks.summarise("edit", answers(1.0))
    assert summary.tau == pytest.approx(20 / 6)
    assert summary.drafts == pytest.approx(14 / 21)
    assert (summary.step, summary.verify) == pytest.approx((0.1, 0.3))
    assert summary.rows == 16
    assert summary.ratio == pytest.approx(2)
    assert "†" not in summary.line()


def test_more_speed_than_tau_is_marked() -> None:
    """Passes of 16 rows that take less time than a step of one: four times as fast with τ 3.3."""
    assert "4.00× †" in tasks.summarise("edit", answers(0.5)).line()


def test_speeds_are_of_tasks_answered_both_ways() -> None:
    """A slow answer of auto alone changes τ, not the comparison; different tokens are seen."""
    (plain, auto), (_, alone) = answers(1.0), answers(60.0, number=2)
    summary = tasks.summarise("edit", [plain, auto, alone])
    assert (summary.tasks, summary.compared, summary.same) == (2, 1, 1)
    assert summary.ratio == pytest.approx(2)
    other = replace(auto, turns=(replace(auto.turns[0], tokens=(9,) * 21),))
    assert tasks.summarise("edit", [plain, other]).same == 0
