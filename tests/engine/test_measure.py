"""What a machine costs: the survey on simulated clocks, scratch sequences, the file.

No wall-clock time is asserted: clocks are made up, and real passes are only held to leaving
everything as it was.
"""

import gc
import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from counted_macs import MacProcess, counted_mac
from ledger.recorded import CONTEXTS, MEMORY, load
from simulated import BLOCK, MACHINES, Machine, Process
from tiny import WINDOW, make_target, prompt_of, random_drafter

from dflash_mlx.drafters.dflash.drafter import DFlashDrafter
from dflash_mlx.engine.latency_table import STORE, LatencyTable, depth_for, fingerprint
from dflash_mlx.engine.profiler import (
    BUDGET,
    Job,
    Scratch,
    depth_that_fits,
    measure,
    survey,
)
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.models.parts import flat
from dflash_mlx.models.target import Target
from dflash_mlx.options import SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.policy.latency import Latencies
from dflash_mlx.session import Session
from dflash_mlx.speculation.acceptance import Match
from dflash_mlx.speculation.drafts import Draft

JOBS = [
    Job("plain", 1),
    Job("draft", 8),
    Job("chain", 2),
    Job("chain", 8),
    Job("look", 8),
    Job("draft", 8, 2),
    Job("chain", 8, 2),
]


def test_survey_times_a_second_sequence() -> None:
    """What a second sequence adds to a pass of as many rows, and a second block to a draft."""

    def seconds(job: Job) -> float:
        drafts, verifies = job.kind != "plain", job.kind != "draft"
        more = (3e-4 * drafts + 2e-4 * verifies) * (job.sequences - 1)
        return 5e-4 * drafts + (1e-3 + 1e-4 * job.rows) * verifies + more

    process = Process(seconds)
    found = survey(process.run, BLOCK, batch=True)
    assert found.sequence == pytest.approx(2e-4)
    assert found.block == pytest.approx(3e-4)
    assert found.chain[-1][0] == 64
    process = Process(seconds)
    alone = survey(process.run, BLOCK)
    assert (alone.sequence, alone.block, alone.chain[-1][0]) == (0.0, 0.0, BLOCK)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_survey_amid_other_work(share: float) -> None:
    """A share of all runs takes 2 to 9 times as long: costs are true, or said not to be."""
    machine, rng = Machine("M5 Max", "wide"), np.random.default_rng(1)
    believed = wrong = 0
    for _ in range(60):
        process = Process(
            lambda job: machine.seconds(job) * (rng.uniform(2, 9) if rng.random() < share else 1)
        )
        found = survey(process.run, BLOCK, batch=True)
        late = [seconds / machine.verify(rows) > 1.3 for rows, seconds in found.chain]
        believed += not found.disturbed
        wrong += any(late) and not found.disturbed
    assert wrong <= 6
    assert believed > 30 or share > 0.3


def test_fault_that_believes_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that do not agree are taken all the same, and never measured again."""
    monkeypatch.setattr("dflash_mlx.engine.profiler.agree", lambda times: True)
    with pytest.raises(AssertionError):
        test_survey_amid_other_work(0.3)


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("hitch", [0.05, 0.1, 0.25])
def test_a_process_that_has_just_begun(machine: Machine, hitch: float) -> None:
    """First runs build kernels: no cost shows it, and no width is left out for lack of time."""
    process = Process(machine.seconds, hitch, ramp=True)
    found = survey(process.run, BLOCK, batch=True)
    assert found.plain == pytest.approx(machine.verify(1), rel=0.05)
    assert found.draft == pytest.approx(machine.draft, rel=0.05)
    for rows, seconds in found.chain:
        assert seconds == pytest.approx(machine.verify(rows), rel=0.05), rows
    assert {1, 2, 3, 4, 6, 8, 12, BLOCK} <= {rows for rows, _ in found.chain}
    last = 2 * machine.seconds(Job("chain", 64)) + hitch  # what was begun is done
    assert process.now < max(BUDGET[0], BUDGET[1] * machine.verify(1)) + last


@pytest.mark.parametrize("chip", MEMORY)
@pytest.mark.parametrize("hitch", [0.05, 0.25])
def test_costs_of_macs_that_have_just_begun(chip: str, hitch: float) -> None:
    """The same with rounds whose host and GPU work at the same time, for all pairs."""
    for mac in [counted_mac(found, CONTEXTS[0]) for found in load() if found.chip == chip]:
        found, true = MacProcess(mac, hitch).survey(), mac.true_costs()
        assert found.plain == pytest.approx(true.plain, rel=0.05)
        assert found.draft == pytest.approx(true.draft, rel=0.05)
        for rows, seconds in found.chain:
            wanted = max(true.plain, true.verify(rows))  # no pass counts as faster than a step
            assert seconds == pytest.approx(wanted, rel=0.05), (str(mac), rows)
        widths = {rows for rows, _ in found.chain}
        assert {1, 2, 4, 8, mac.block_size} <= widths, str(mac)


def cold(run: Callable[[Job], float], job: Job) -> float:
    """What stands for a warm-up that only builds."""
    return run(job)


COLD = {
    "dflash_mlx.engine.profiler.warm_up": cold,
    "dflash_mlx.engine.profiler.TURNS": 1,
    "dflash_mlx.engine.profiler.MORE_TURNS": 0,
}
BRIEF = {"counted_macs.survey": partial(survey, budget=(0.0, 0))}


@pytest.mark.parametrize("faults", [COLD, BRIEF], ids=["cold", "brief"])
def test_fault_in_what_is_measured(faults: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: no warm-up before a single turn, no time for more widths."""
    for name, value in faults.items():
        monkeypatch.setattr(name, value)
    with pytest.raises(AssertionError):
        test_costs_of_macs_that_have_just_begun("M4 Max", 0.05)


def test_building_has_a_bound() -> None:
    """Where each library takes seconds, some widths are left out; what counts is still true."""
    machine = Machine("M4 Max", "wide")
    process = Process(machine.seconds, 2.0)
    found = survey(process.run, BLOCK, batch=True)
    assert process.now < BUDGET[0] + 2 * 2.1
    assert [rows for rows, _ in found.chain] == [1, BLOCK]
    assert found.plain == pytest.approx(machine.verify(1))


def test_what_reading_confidence_costs() -> None:
    """What a round takes longer for it; nothing where noise says that it would be quicker."""
    for more, read in ((2e-4, 2e-4), (-2e-4, 0.0), (1.0, 0.01)):
        process = Process(lambda job, more=more: 0.01 + more * (job.kind == "look"))
        found = survey(process.run, BLOCK)
        assert found.read == pytest.approx(read)


def pair_of(family: str) -> Pair:
    target = make_target(family)
    return tiny.make_pair(target, random_drafter(target), f"tiny-{family}", "tiny")


def scratch_of(pair: Pair, depth: int) -> Scratch:
    assert pair.drafter is not None
    return Scratch(pair.target, pair.drafter, depth, 8)


def measured(pair: Pair, depth: int) -> Latencies:
    assert pair.drafter is not None
    return measure(pair.target, pair.drafter, depth, 8, budget=(0.0, 0))


def table_of(pair: Pair, costs: Callable[[int], Latencies], block_size: int = 8) -> LatencyTable:
    assert pair.drafter is not None
    return LatencyTable(pair.target, pair.drafter, block_size, costs)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("depth", [WINDOW - 1, 300])
def test_scratch_sequences(family: str, depth: int) -> None:
    """Every kind of cache can pretend a depth, and every job leaves it there with sound numbers."""
    scratch = scratch_of(pair_of(family), depth)
    for job in JOBS:
        scratch.run(job)
        for sequence in scratch._sequences:
            assert sequence.draft_cache is not None
            assert sequence.target_cache.offset == sequence.draft_cache.offset == depth, job
            assert len(sequence.tokens) == depth
    sequence = scratch._sequences[0]
    assert mx.isfinite(sequence.verify(5, mx.array([6, 7, 8])).logits).all().item()
    for cache in flat(sequence.target_cache.layers):
        assert cache.offset == depth + 4


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "qwen3_5"])
def test_scratch_rows_are_as_many_as_real_ones(family: str) -> None:
    """A pass reads as much as it would after a real prefill: the shapes say what it costs."""
    pair, depth = pair_of(family), 70
    real = Sequence(pair.target, pair.drafter)
    real.read(prompt_of(depth))
    scratch = scratch_of(pair, depth)._sequences[0]
    shapes = []
    for sequence in (real, scratch):
        sequence.verify(5, mx.array([6, 7, 8]))
        shapes.append([held(cache) for cache in flat(sequence.target_cache.layers)])
        sequence.target_cache.rewind(depth)
    assert shapes[0] == shapes[1]
    assert real.draft_cache is not None
    assert scratch.draft_cache is not None
    each = zip(real.draft_cache.rows, scratch.draft_cache.rows, strict=True)
    assert all(held(rows) == held(filled) for rows, filled in each)


def held(cache: Any) -> list[tuple[int, ...]]:
    if hasattr(cache, "keys_and_values"):
        return [part.shape for part in cache.keys_and_values()]
    return [part.shape for part in cache.cache]


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "qwen3_5"])
def test_measuring_does_not_disturb_a_conversation(family: str) -> None:
    """An answer goes on as if nothing had been measured in its middle."""
    pair = pair_of(family)

    def answer(meanwhile: Callable[[], None]) -> list[int]:
        tokens: list[int] = []
        sequence = Sequence(pair.target, pair.drafter)
        options: dict[str, Any] = {"block_size": 6, "max_tokens": 24}
        for block in tiny.start(sequence, prompt_of(20), SamplingParams(), **options):
            tokens += block.tokens
            meanwhile()
        return tokens

    def all_jobs() -> None:
        scratch = scratch_of(pair, 20 + WINDOW)
        for job in JOBS:
            scratch.run(job)

    assert answer(all_jobs) == answer(lambda: None)


def test_measure_gives_costs() -> None:
    """All that a policy needs is there, above 0, and the depth that it holds for."""
    found = measured(pair_of("qwen3"), 33)
    assert found.depth == 33
    assert min(found.plain, found.draft, *(s for _, s in found.chain)) > 0
    assert 8 in [rows for rows, _ in found.chain]
    assert 0 <= found.read <= found.draft


class Timeline:
    """Real rounds on a device that computes while the host goes on: a clock for both.

    A pass takes the host `HOST` and the device `PASS` seconds, a draft `HOST` and `BLOCK_PASS`, and
    `SYNC` go by until the host sees what the device has done.
    """

    HOST, PASS, BLOCK_PASS, SYNC = 2.0, 12.0, 3.0, 1.0

    def __init__(self, patch: pytest.MonkeyPatch):
        self.now = self.free = 0.0
        self._done: dict[int, float] = {}
        self._kept: list[mx.array] = []  # so that no id is used again
        read, draft, step = Target.read, DFlashDrafter.draft, Match.step
        outcome, accept = Match.outcome, Match.accept

        def timed_read(target: Target, parts: Any, **options: Any) -> Any:
            found = read(target, parts, **options)
            self._compute(self.PASS)
            for part in found:
                self._note(part.logits, self.free)
            return found

        def timed_draft(*args: Any) -> Any:
            self._compute(self.BLOCK_PASS)
            return draft(*args)

        def timed_step(rule: Match, logits: mx.array, *rest: Any) -> Any:
            found = step(rule, logits, *rest)
            self._note(found[1], self._done[id(logits)])
            return found

        def timed_outcome(rule: Match, drafts: Draft, logits: mx.array, *rest: Any) -> mx.array:
            found = outcome(rule, drafts, logits, *rest)
            self._note(found, self._done[id(logits)])
            return found

        def timed_accept(rule: Match, drafts: Draft, found: mx.array) -> Any:
            self.now = max(self.now, self._done[id(found)]) + self.SYNC
            return accept(rule, drafts, found)

        patch.setattr(Target, "read", timed_read)
        patch.setattr(DFlashDrafter, "draft", timed_draft)
        patch.setattr(Match, "step", timed_step)
        patch.setattr(Match, "outcome", timed_outcome)
        patch.setattr(Match, "accept", timed_accept)
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        patch.setattr("dflash_mlx.engine.profiler.time", clock)

    def _compute(self, seconds: float) -> None:
        self.now += self.HOST
        self.free = max(self.free, self.now) + seconds

    def _note(self, array: mx.array, done: float) -> None:
        self._kept.append(array)
        self._done[id(array)] = done


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_jobs_take_what_the_engine_takes(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain step is one of many, each begun before the last is read, and a chain a whole round.

    Guards against steps that are timed one by one, the host's time and the wait for the device
    included, which made drafting look better than it is.
    """
    pair = pair_of(family)
    line = Timeline(monkeypatch)
    scratch = scratch_of(pair, 70)
    a_round, seconds = line.HOST + line.BLOCK_PASS + line.PASS + line.SYNC, []
    for job, wanted in [(Job("plain", 1), line.PASS), (Job("chain", 4), a_round)] * 2:
        assert scratch.run(job) == pytest.approx(wanted)
        line.now = max(line.now, line.free)
    for mode in ("baseline", "dflash"):
        sequence, ends = Sequence(pair.target, pair.drafter), []
        for _ in tiny.start(sequence, prompt_of(20), SamplingParams(), mode=mode, max_tokens=40):
            ends.append(line.now)
        took = np.diff(ends)
        seconds.append(float(np.median(took)))
    assert seconds == pytest.approx([line.PASS, a_round])


def test_fault_steps_that_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: steps of which none begins before the last is done."""
    line = Timeline(monkeypatch)
    scratch, read = scratch_of(pair_of("qwen3"), 70), Target.read

    def waiting(target: Target, parts: Any, **options: Any) -> Any:
        line.now = max(line.now, line.free)
        return read(target, parts, **options)

    monkeypatch.setattr(Target, "read", waiting)
    assert scratch.run(Job("plain", 1)) >= line.PASS + line.HOST


def test_scratch_sequences_take_the_memory_that_is_left() -> None:
    """Both together half of it at most; where that is not the depth asked for, nothing is kept."""
    pair = pair_of("qwen3")
    assert pair.drafter is not None
    gc.collect()  # what earlier tests left must not be freed between the two readings
    before = mx.get_active_memory()
    scratch = scratch_of(pair, 4096)
    held = mx.get_active_memory() - before
    assert held > 0
    parts = pair.target, pair.drafter, 4096
    assert depth_that_fits(*parts, 3 * held) == 4096
    assert depth_that_fits(*parts, held) < 4096
    assert depth_that_fits(*parts, 0) == 1
    del scratch
    shallow = table_of(pair, lambda depth: replace(COSTS, depth=depth // 4))
    assert shallow.at(600).depth == 256
    assert not STORE.read()


# The file.


COSTS = Latencies(plain=0.01, draft=0.004, chain=((1, 0.01), (8, 0.014)), read=1e-4, depth=256)


class Counted:
    def __init__(self) -> None:
        self.depths: list[int] = []

    def __call__(self, depth: int) -> Latencies:
        self.depths.append(depth)
        return replace(COSTS, depth=depth)


def test_costs_are_measured_once() -> None:
    """A second process finds them in the user's cache folder; so does the first, in memory."""
    pair, count = pair_of("qwen3"), Counted()
    table = table_of(pair, count)
    assert table.at(10) == table.at(120) == replace(COSTS, depth=64)
    assert table.at(600).depth == 1024
    assert table_of(pair, count).at(100) == table.at(100)
    assert count.depths == [64, 1024]
    assert STORE.path.is_relative_to(Path.home())


def test_the_depths_between_two_contexts() -> None:
    """What is measured for contexts that grow from one length to another."""
    table = table_of(pair_of("qwen3"), Counted())
    assert table.between(3, 9) == [64]
    assert table.between(100, 700) == [64, 256, 1024]
    assert table.between(1000, 10**6)[-1] == depth_for(10**6, make_target("qwen3").context_length)


def test_a_long_prompt_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is read, at its own depth: not at depth 0 too, nor before the first token comes."""
    pair, depths = pair_of("qwen3"), list[int]()
    monkeypatch.setattr("dflash_mlx.engine.latency_table.measure", recorded(depths))
    session = Session(pair, mode="auto")
    answer = session.stream(prompt_of(200), max_tokens=9)
    assert depths == [256]
    list(answer)
    list(session.stream(prompt_of(20, 1), max_tokens=9))
    assert depths == [256, 64]
    list(Session(pair, mode="auto").stream(prompt_of(20, 1), max_tokens=9))
    list(Session(pair_of("qwen3"), mode="auto").stream(prompt_of(200), max_tokens=9))
    assert depths == [256, 64]


@pytest.mark.parametrize("length", [120, 500, 2_040, 5_780])
def test_nothing_is_measured_inside_an_answer(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer whose context grows past 128, 512, 2,048 or 5,793 tokens stops for nothing.

    Guards against rounds that measured the machine: an answer stood still for seconds. The check
    can fail: rounds that ask for measured costs are noticed.
    """
    target = make_target("qwen3", max_position_embeddings=10_000)
    pair = tiny.make_pair(target, random_drafter(target), "", "")
    depths = list[int]()
    monkeypatch.setattr("dflash_mlx.engine.latency_table.measure", recorded(depths))
    session = Session(pair, mode="auto")
    list(session.stream(prompt_of(length), max_tokens=40))
    before = depth_for(length)
    assert depths == [before]  # before the first token
    monkeypatch.setattr(LatencyTable, "estimate", LatencyTable.at)
    list(session.stream(prompt_of(length), max_tokens=40))
    assert len(depths) == 2
    assert depths[-1] > before


def test_costs_between_two_depths() -> None:
    """In proportion between two measured depths, as the nearest beyond them; never measured."""
    pair, depths = pair_of("qwen3"), list[int]()

    def measured(depth: int) -> Latencies:
        depths.append(depth)
        return Latencies(depth / 64, 0.5, ((1, depth / 64), (8, depth / 32)), depth=depth)

    table = LatencyTable(pair.target, pair.drafter, 8, measured)
    assert table.estimate(300) is None
    table.at(64)
    assert table.estimate(300) == table.at(64)
    table.at(1024)
    between = table.estimate(300)
    assert between is not None
    assert between.plain == pytest.approx(4.0)  # 256 tokens
    assert between.verify(8) == pytest.approx(8.0)
    assert table.estimate(4000) == table.at(1024)
    assert depths == [64, 1024]


def test_an_answer_that_runs_is_not_stopped_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that begins while another is answered waits with measuring; the next one measures.

    Guards against a server whose clients all wait for one that asks for another block size.
    """
    pair, depths = pair_of("qwen3"), list[int]()
    monkeypatch.setattr("dflash_mlx.engine.latency_table.measure", recorded(depths))
    first = Session(pair, mode="baseline").stream(prompt_of(20), max_tokens=30)
    next(first)
    second = Session(pair, mode="auto")
    list(second.stream(prompt_of(20, 1), max_tokens=9))
    assert depths == []
    assert second.policy is not None
    assert "when no other answer is running" in second.policy.reason
    list(first)
    list(second.stream(prompt_of(20, 1), max_tokens=9))
    assert depths == [64]
    assert second.policy.name == "auto"


def test_other_kernels_have_other_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of kernels that changed between two answers are measured anew, when nobody waits."""
    pair, depths = pair_of("qwen3"), list[int]()
    monkeypatch.setattr("dflash_mlx.engine.latency_table.measure", recorded(depths))
    session = Session(pair, mode="auto")

    def answer() -> Any:
        list(session.stream(prompt_of(20), max_tokens=9))
        assert session.policy is not None
        return session.policy

    def change(**parts: Any) -> None:
        kernels = replace(pair.target.kernels, **parts)
        mlx_thread().call(pair.engine.change_kernels, kernels)

    answer()
    change(on=frozenset({"a"}))
    assert depths == [64]
    answer()
    assert depths == [64, 64]
    change(off={"b": "1.4x as slow as MLX's own"})  # it did not run before, either
    answer()
    change(sizes={"a": frozenset({(1, "4-bit"), (2, "4-bit")})})
    other = Session(pair, mode="baseline").stream(prompt_of(20, 1), max_tokens=30)
    next(other)
    assert "when no other answer is running" in answer().reason
    assert depths == [64, 64]
    list(other)
    answer()
    assert depths == [64, 64, 64]
    for parts in ({"on": frozenset({"a"}), "sizes": {}}, {"on": None, "sizes": {}}):
        change(**parts)
        answer()
    assert depths == [64, 64, 64]  # those of both are in the file


def recorded(depths: list[int]) -> Callable[..., Latencies]:
    def costs(target: Target, drafter: Any, depth: int, block_size: int) -> Latencies:
        depths.append(depth)
        return Latencies(1.0, 0.01, ((1, 1.0), (8, 1.1)), depth=depth)

    return costs


def test_all_depths_are_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a server that measures while clients wait: one stalled for four seconds."""
    pair, depths = pair_of("qwen3"), list[int]()
    monkeypatch.setattr("dflash_mlx.engine.latency_table.measure", recorded(depths))
    list(Session(pair, mode="auto").stream(prompt_of(20), max_tokens=9))
    mlx_thread().call(pair.engine.scheduler.measure, 1200)
    assert depths == [64, 256, 1024]
    list(Session(pair, mode="auto").stream(prompt_of(1100), max_tokens=90))
    assert depths == [64, 256, 1024]


def test_other_pairs_sizes_and_versions_have_their_own_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Costs of one pair never serve another, nor another block size, nor a new MLX."""
    count = Counted()
    pair, other = pair_of("qwen3"), pair_of("llama")
    for table in (table_of(pair, count), table_of(other, count), table_of(pair, count, 4)):
        table.at(1)
    assert len(count.depths) == 3
    table_of(pair_of("qwen3"), count).at(1)
    assert len(count.depths) == 3
    parts = [(p.target, random_drafter(p.target)) for p in (pair, other)]
    assert fingerprint(*parts[0]) != fingerprint(*parts[1])
    monkeypatch.setattr("dflash_mlx.engine.latency_table.version", lambda name: "9.9")
    table_of(pair, count).at(1)
    assert len(count.depths) == 4


@pytest.mark.parametrize(
    "damage",
    [
        *("", "{", "[]", '{"format": 0, "costs": {}}', '{"format": 4, "costs": 3}'),
        '{"format": 4, "costs": {"KEY": {"plain": 1}}}',
        *({"plain": -1.0}, {"chain": []}, {"chain": [[8, 1.0], [4, 1.0]]}, {"draft": math.nan}),
        *({"read": None}, {"block": None}, {"depth": None}),
    ],
)
def test_damaged_files_are_measured_again(damage: str | dict[str, Any]) -> None:
    """Whatever is in the file: costs are measured, and the file is sound afterwards."""
    pair, count = pair_of("qwen3"), Counted()
    table_of(pair, count).at(1)
    file = STORE.path
    data = json.loads(file.read_text())
    (entry,) = data["costs"].values()
    if isinstance(damage, dict):
        entry.update(damage)
        damage = json.dumps(data)
    file.write_text(damage)
    assert table_of(pair, count).at(1) == replace(COSTS, depth=64)
    assert len(count.depths) == 2
    assert list(STORE.read().values()) == [replace(COSTS, depth=64)]


def test_a_damaged_entry_takes_no_other_along(caplog: pytest.LogCaptureFixture) -> None:
    """What can be read stays, and the log names what cannot."""
    table_of(pair_of("qwen3"), Counted()).at(64)
    file = STORE.path
    data = json.loads(file.read_text())
    ((key, entry),) = data["costs"].items()
    data["costs"] = {"broken": {**entry, "block": "x"}, key: entry}
    file.write_text(json.dumps(data))
    with caplog.at_level(logging.WARNING):
        assert list(STORE.read()) == [key]
    assert "the costs broken in" in caplog.text


def test_a_folder_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    """Costs are used all the same, and the log says that they are not kept."""
    STORE.path.parent.parent.mkdir(parents=True, exist_ok=True)
    STORE.path.parent.write_text("a file, not a folder")
    with caplog.at_level(logging.WARNING):
        assert table_of(pair_of("qwen3"), Counted()).at(1).depth == 64
    assert "cannot be kept" in caplog.text


def test_writing_is_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while it writes leaves the old file; old entries make room for new."""
    file = STORE.path
    STORE.write("a", COSTS)

    def fails(*args: object) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr("dflash_mlx.files.checkpoint.os.replace", fails)
        STORE.write("b", COSTS)
    assert STORE.read() == {"a": COSTS}
    for number in range(70):
        STORE.write(str(number), COSTS)
    assert len(STORE.read()) == 64
    assert "69" in STORE.read()
    assert "a" not in STORE.read()
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(("busy", "measured"), [(0, 1), (1, 2), (9, 3)])
def test_costs_of_a_busy_machine_are_not_kept(busy: int, measured: int) -> None:
    """The process uses them, and the next one measures again."""
    pair, count = tiny.golden_pair("qwen3_full"), 0
    quiet = Latencies(1.0, 0.3, ((1, 1.0), (4, 3.0), (16, 4.0)), depth=64)
    late = replace(quiet, disturbed=True)

    def costs(depth: int) -> Latencies:
        nonlocal count
        count += 1
        return late if count <= busy else quiet

    for _ in range(3):
        table = table_of(pair, costs)
        assert table.at(64) == table.at(64) == (late if count <= busy else quiet)
    assert count == measured
    assert list(STORE.read().values()) == [quiet] * (busy < 3)


def test_costs_of_a_busy_minute_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was started amid other work does not keep such costs for its whole life."""
    quiet = Latencies(1.0, 0.3, ((1, 1.0), (16, 4.0)), depth=64)
    found = iter([replace(quiet, disturbed=True), quiet])
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("dflash_mlx.engine.latency_table.time", clock)
    table = table_of(tiny.golden_pair("qwen3_full"), lambda _: next(found))
    for clock.now in (0.0, 1.0, 59.0):
        assert table.at(64).disturbed
    for clock.now in (61.0, 600.0):
        assert table.at(64) == table.estimate(64) == quiet
    assert list(STORE.read().values()) == [quiet]
