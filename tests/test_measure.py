"""What a machine costs: the survey on simulated clocks, scratch contexts of every family, the file.

No wall-clock time is asserted: clocks are made up, and real passes are only held to leaving
everything as it was.
"""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
import tiny
from simulated import BLOCK, MACHINES, Machine
from tiny import WINDOW, make_target, prompt_of, random_drafter

from dflash_mlx.context import Context
from dflash_mlx.pair import Pair
from dflash_mlx.policy.costs import Costs
from dflash_mlx.session import Session
from dflash_mlx.target.caches.target_cache import members
from dflash_mlx.timing.adaptive import usual_tree
from dflash_mlx.timing.measure import BUDGET, Job, Scratch, measure, survey
from dflash_mlx.timing.ruler import (
    Ruler,
    cost_file,
    depth_for,
    fingerprint,
    read_costs,
    write_costs,
)
from dflash_mlx.types import SamplingParams

JOBS: list[Job] = [("plain", 1), ("draft", 8), ("chain", 2), ("chain", 8)]


def clocked(seconds: Callable[[Job], float]) -> tuple[Callable[[Job], None], Callable[[], float]]:
    """Jobs that take these seconds on a clock that nothing else moves, and the clock."""
    now = [0.0]

    def run(job: Job) -> None:
        now[0] += seconds(job)

    return run, lambda: now[0]


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_survey_finds_what_there_is(machine: Machine) -> None:
    """All it says is true, and the useful widths are there."""
    found = machine.costs(trees=(16, 32))
    assert found.plain == pytest.approx(machine.verify(1))
    assert found.draft == pytest.approx(machine.draft)
    for rows, seconds in found.chain:
        assert seconds == pytest.approx(machine.verify(rows))
    assert {1, 2, 4, 8, BLOCK} <= {rows for rows, _ in found.chain}


def test_survey_looks_where_costs_step_up() -> None:
    """With time to spare it closes in on a step between measured widths."""
    run, clock = clocked(lambda job: 1e-3 if job[1] < 6 else 2e-3)
    found = survey(run, BLOCK, clock=clock)
    assert {5, 6} <= {rows for rows, _ in found.chain}
    assert found.verify(5) == pytest.approx(1e-3)
    assert found.verify(6) == pytest.approx(2e-3)


def test_survey_keeps_to_its_budget() -> None:
    """A slow target is not measured for long; the widths that are left out cost as wider ones."""
    run, clock = clocked(lambda job: 0.02 + 0.01 * job[1])
    found = survey(run, BLOCK, (16, 24, 32, 64), clock=clock)
    assert clock() < max(BUDGET, 24 * 0.03) + 0.7
    assert not found.tree
    run, clock = clocked(lambda job: 10.0)
    found = survey(run, BLOCK, budget=0.0, clock=clock)
    assert found.chain[-1] == (BLOCK, 10.0)
    run, clock = clocked(lambda job: 1e-4 * job[1])
    assert [rows for rows, _ in survey(run, BLOCK, (16, 64), clock=clock).tree] == [16, 64]


def test_survey_bears_noise() -> None:
    """Now and then something else takes the machine: no cost is far from the truth for it."""
    machine, rng = Machine("M5 Max", "wide"), np.random.default_rng(0)
    off: list[float] = []
    for _ in range(20):
        run, clock = clocked(
            lambda job: machine.seconds(job) * (1 + 9 * (rng.random() < 0.1)) * rng.uniform(1, 1.05)
        )
        found = survey(run, BLOCK, clock=clock)
        off += [seconds / machine.verify(rows) for rows, seconds in found.chain]
    assert np.mean(np.array(off) > 1.1) < 0.05


def test_first_runs_do_not_count() -> None:
    """What is built once for a shape is no cost of a round."""
    seen: set[Job] = set()

    def seconds(job: Job) -> float:
        first = job not in seen
        seen.add(job)
        return 1e-3 * job[1] + 0.02 * first

    run, clock = clocked(seconds)
    found = survey(run, BLOCK, clock=clock)
    assert found.plain == pytest.approx(1e-3)
    assert found.verify(4) == pytest.approx(4e-3)


def test_what_a_look_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to build a verify, which no longer happens while the drafter runs; no more."""
    pair = pair_of("qwen3")
    for build, ponder in ((1e-9, 0.0), (1e-9, 0.5), (1e9, 0.0)):
        monkeypatch.setattr(Scratch, "building", lambda *_, build=build: build)
        found = measure(pair, 33, budget=0.0, ponder=ponder)
        assert found.look == min(build, found.draft) + ponder


def pair_of(family: str) -> Pair:
    """A tiny pair that was never trained."""
    target = make_target(family)
    return Pair(target, random_drafter(target), f"tiny-{family}", "tiny")


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("depth", [WINDOW - 1, 300])
def test_scratch_contexts(family: str, depth: int) -> None:
    """Every kind of cache can pretend a depth, and every job leaves it there with sound numbers."""
    pair = pair_of(family)
    scratch = Scratch(pair, depth)
    context = scratch._context
    for job in JOBS:
        assert scratch.building(job[1]) > 0
        scratch.run(job)
        assert context.target_cache.offset == context.draft_cache.offset == depth, job
        assert len(context.tokens) == depth
    logits, _ = context.verify(5, mx.array([6, 7, 8]))
    assert mx.isfinite(logits).all().item()
    for cache in members(context.target_cache.layers):
        assert cache.offset == depth + 4


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "qwen3_5"])
def test_scratch_rows_are_as_many_as_real_ones(family: str) -> None:
    """A pass reads as much as it would after a real prefill: the shapes say what it costs."""
    pair, depth = pair_of(family), 70
    real = Context(pair.target, pair.drafter)
    real.read(prompt_of(depth), tiny.silent)
    scratch = Scratch(pair, depth)._context
    shapes = []
    for context in (real, scratch):
        context.verify(5, mx.array([6, 7, 8]))
        caches = members(context.target_cache.layers)
        shapes.append([held(cache) for cache in caches])
        context.target_cache.rewind(depth)
    assert shapes[0] == shapes[1]
    assert real.draft_cache is not None
    assert held(real.draft_cache.rows) == held(scratch.draft_cache.rows)


def held(cache: Any) -> list[tuple[int, ...]]:
    """The shapes of what one cache gives a pass to read."""
    if hasattr(cache, "keys_and_values"):
        return [part.shape for part in cache.keys_and_values()]
    return [part.shape for part in cache.cache]


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "qwen3_5"])
def test_measuring_does_not_disturb_a_conversation(family: str) -> None:
    """An answer goes on as if nothing had been measured in its middle."""
    pair = pair_of(family)

    def answer(between: Callable[[], None]) -> list[int]:
        """The tokens of an answer, with something done after each block."""
        tokens: list[int] = []
        options: dict[str, Any] = {"block_size": 6, "max_tokens": 24, "stops": frozenset()}
        context = Context(pair.target, pair.drafter)
        for block in tiny.start(context, prompt_of(20), SamplingParams(), "match", **options):
            tokens += block.tokens
            between()
        return tokens

    def measured() -> None:
        """Every job, on a scratch context that is as deep as the conversation's."""
        scratch = Scratch(pair, 20 + WINDOW)
        for job in JOBS:
            scratch.run(job)

    assert answer(measured) == answer(lambda: None)


def test_measure_gives_costs() -> None:
    """All that a policy needs is there, above 0, and the depth that it holds for."""
    found = measure(pair_of("qwen3"), 33, budget=0.0)
    assert found.depth == 33
    assert min(found.plain, found.draft, *(s for _, s in found.chain)) > 0
    assert [rows for rows, _ in found.chain][-1] == 8
    assert 0 <= found.look <= found.draft


# The file.


COSTS = Costs(
    plain=0.01, draft=0.004, chain=((1, 0.01), (8, 0.014)), tree=((16, 0.02),), look=1e-4, depth=256
)


class Counted:
    """Stands in for measuring; counts."""

    def __init__(self) -> None:
        self.depths: list[int] = []

    def __call__(self, depth: int) -> Costs:
        self.depths.append(depth)
        return replace(COSTS, depth=depth)


def test_depths_are_powers_of_four() -> None:
    """A context is measured again when it is about four times as long, never beyond its length."""
    depths = [0, 1, 64, 127, 129, 511, 513, 2047, 2049, 6000, 100_000]
    assert [depth_for(d) for d in depths] == [
        *[64] * 4, *[256] * 2, *[1024] * 2, *[4096] * 2, 8192
    ]  # fmt: skip
    assert depth_for(5000, 4000) == 4000
    assert depth_for(3, 50) == 50


def test_costs_are_measured_once() -> None:
    """A second process finds them in the user's cache folder; so does the first, in memory."""
    pair, count = pair_of("qwen3"), Counted()
    ruler = Ruler(pair, count)
    assert ruler.at(10) == ruler.at(120) == replace(COSTS, depth=64)
    assert ruler.at(600).depth == 1024
    assert Ruler(pair, count).at(100) == ruler.at(100)
    assert count.depths == ruler.measured == [64, 1024]
    assert cost_file().is_relative_to(Path.home())


def test_the_next_conversation_measures_once_more() -> None:
    """A machine that was busy at first is not thought slow for ever; twice is enough."""
    busy = replace(COSTS, plain=0.011, chain=((1, 0.011), (4, 0.012), (8, 0.03)), look=2e-4)
    quiet = [busy, replace(COSTS, chain=((1, 0.01), (6, 0.013), (8, 0.014)))]
    pair = pair_of("qwen3")
    for times in (1, 2, 2):
        ruler = Ruler(pair, lambda depth: replace(quiet.pop(0), depth=depth))
        ruler.begin(100)
        assert ruler.at(100).runs == times
        ruler.at(90)
    best = ((1, 0.01), (4, 0.012), (6, 0.013), (8, 0.014))
    assert ruler.at(100) == replace(COSTS, chain=best, depth=64, runs=2)
    assert quiet == []


def test_a_width_that_met_a_busy_moment_is_measured_again() -> None:
    """A chain that took longer than a wider tree: other work was counted, for three runs on end."""
    late = [("chain", 16)] * 3

    def seconds(job: Job) -> float:
        busy = job in late
        if busy:
            late.remove(job)
        return 0.01 + 0.0002 * job[1] + 0.006 * busy

    run, clock = clocked(seconds)
    found = survey(run, BLOCK, (9, 17, 33, 65), clock=clock)
    assert found.verify(16) == pytest.approx(0.01 + 0.0002 * 16)


def test_between_two_depths_costs_grow_by_proportion() -> None:
    """Where both neighbours are known; a depth that is not is not measured for that."""

    depths: list[int] = []

    def growing(depth: int) -> Costs:
        depths.append(depth)
        some = 4 if depth == 64 else 8
        return Costs(
            plain=1 + depth / 64,
            draft=depth / 640,
            chain=((1, 1 + depth / 64), (some, 2 + depth / 32), (16, 3 + depth / 32)),
            tree=((32, depth / 16),) if depth < 300 else (),
            depth=depth,
        )

    pair = pair_of("qwen3")
    ruler = Ruler(pair, growing)
    assert [ruler.at(depth).depth for depth in (125, 256)] == [64, 256]
    for other in (ruler, Ruler(pair, growing)):
        found = other.at(175)
        assert found.depth == 181  # 64 * 2 ** 1.5
        assert found.plain == pytest.approx(1 + 181 / 64, rel=0.01)
        assert found.draft == pytest.approx(181 / 640, rel=0.01)
        assert [rows for rows, _ in found.chain] == [1, 4, 8, 16]
        assert found.verify(16) == pytest.approx(3 + 181 / 32, rel=0.01)
        assert found.verify(32, tree=True) == pytest.approx(181 / 16, rel=0.01)
    assert ruler.at(1000).tree == ()
    half = ruler.at(512)  # a tree that is measured at one end costs as a chain at the other
    assert half.verify(32, tree=True) == pytest.approx(16 + (2 * 35 - 16) / 3)
    assert ruler.at(10).depth == 64
    assert depths == [64, 256, 1024]


def test_a_long_prompt_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is read, at its own depth: not at depth 0 too, nor before the first token comes."""
    target = make_target("qwen3")
    pair = Pair(target, random_drafter(target), "t", "d")
    depths: list[int] = []

    def costs(pair: Pair, depth: int, **_: Any) -> Costs:
        depths.append(depth)
        return Costs(1.0, 0.1, ((1, 1.0), (8, 1.5)))

    monkeypatch.setattr("dflash_mlx.timing.adaptive.measure", costs)
    session = Session(pair, mode="auto")
    answer = session.stream(prompt_of(200), max_tokens=9)
    assert depths == [256]
    list(answer)
    list(session.stream(prompt_of(20, 1), max_tokens=9))
    assert depths == [256, 64]


def test_other_pairs_and_kinds_have_their_own_costs() -> None:
    """Costs of one pair never serve another, nor another block size."""
    count = Counted()
    pair, other = pair_of("qwen3"), pair_of("llama")
    for ruler in (Ruler(pair, count), Ruler(other, count), Ruler(pair, count, kind="4")):
        ruler.at(1)
    assert len(count.depths) == 3
    assert fingerprint(pair) == fingerprint(pair_of("qwen3"))
    assert fingerprint(pair) != fingerprint(other)


def test_other_versions_measure_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new MLX may have faster kernels."""
    pair, count = pair_of("qwen3"), Counted()
    Ruler(pair, count).at(1)
    monkeypatch.setattr("dflash_mlx.timing.ruler.version", lambda name: "9.9")
    Ruler(pair, count).at(1)
    assert len(count.depths) == 2


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"format": 0, "costs": {}}',
        '{"format": 2, "costs": 3}',
        '{"format": 2, "costs": {"KEY": {"plain": 1}}}',
        "plain",
        "chain",
        "rows",
        "look",
        "host",
        "depth",
        "infinite",
    ],
)
def test_damaged_files_are_measured_again(damage: str) -> None:
    """Whatever is in the file: costs are measured, and the file is sound afterwards."""
    pair, count = pair_of("qwen3"), Counted()
    Ruler(pair, count).at(1)
    file = cost_file()
    data = json.loads(file.read_text())
    (entry,) = data["costs"].values()
    if damage == "plain":
        entry["plain"] = -1.0
    elif damage == "chain":
        entry["chain"] = []
    elif damage == "rows":
        entry["chain"] = [[8, 1.0], [4, 1.0]]
    elif damage in entry:
        entry[damage] = None
    elif damage == "infinite":
        entry["draft"] = math.nan
    named = damage in entry or damage in ("rows", "infinite")
    file.write_text(json.dumps(data) if named else damage)
    assert Ruler(pair, count).at(1) == replace(COSTS, depth=64)
    assert len(count.depths) == 2
    assert list(read_costs(file).values()) == [replace(COSTS, depth=64)]


def test_a_damaged_entry_takes_no_other_along(caplog: pytest.LogCaptureFixture) -> None:
    """What can be read stays, and the log names what cannot."""
    Ruler(pair_of("qwen3"), Counted()).at(64)
    file = cost_file()
    data = json.loads(file.read_text())
    ((key, entry),) = data["costs"].items()
    data["costs"] = {"broken": {**entry, "grow": "x"}, key: entry}
    file.write_text(json.dumps(data))
    with caplog.at_level(logging.WARNING):
        assert list(read_costs(file)) == [key]
    assert "the costs broken in" in caplog.text


def test_a_folder_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    """Costs are used all the same, and the log says that they are not kept."""
    cost_file().parent.parent.mkdir(parents=True, exist_ok=True)
    cost_file().parent.write_text("a file, not a folder")
    with caplog.at_level(logging.WARNING):
        assert Ruler(pair_of("qwen3"), Counted()).at(1).depth == 64
    assert "cannot be kept" in caplog.text


def test_writing_is_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while it writes leaves the old file; old entries make room for new."""
    file = cost_file()
    write_costs(file, "a", COSTS)

    def fails(*args: object) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr("dflash_mlx.timing.ruler.os.replace", fails)
        write_costs(file, "b", COSTS)
    assert read_costs(file) == {"a": COSTS}
    for number in range(70):
        write_costs(file, str(number), COSTS)
    assert len(read_costs(file)) == 64
    assert "69" in read_costs(file)
    assert "a" not in read_costs(file)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("block_size", [2, 3, 4, 16])
def test_usual_trees_have_as_many_nodes_as_they_should(block_size: int) -> None:
    """The smallest blocks have room for few tokens a path; vocabularies have many."""
    for nodes in (8, 16, 32, 64):
        tree = usual_tree(nodes, block_size - 1)
        assert len(tree.tokens) == nodes
        assert max(tree.depths) <= block_size - 1


def test_a_tree_is_measured_where_one_is_given() -> None:
    """The verify of a tree gets it; nothing is measured for trees without."""
    pair, asked = pair_of("qwen3"), []

    def verify(anchor: int, drafts: mx.array, *tree: object) -> tuple[mx.array, mx.array]:
        asked.extend(tree)
        return Context.verify(scratch._context, anchor, drafts)

    scratch = Scratch(pair, 40, lambda nodes: SimpleNamespace(nodes=nodes))
    scratch._context.verify = verify
    scratch.run(("tree", 5))
    scratch.run(("chain", 5))
    assert [cast(Any, tree).nodes for tree in asked] == [4]
    assert scratch._context.target_cache.offset == 40
